"""The command `minitrain diff`: where the gap between two runs comes from."""

from __future__ import annotations

from pathlib import Path

import minitrain as mt
from minitrain.cli import options
from minitrain.cli.generation import Given
from minitrain.cli.output import print_json, print_lines, print_table


def diff(before: Path, after: Path, *, given: Given, html: Path | None = None) -> None:
    """Attribute the gap between the step times of two saved runs, and print its parts.

    Two runs of one program are compared operation by operation: predicted and measured, two machines, before and after
    a change. The parts add up to the gap. Runs of different programs are compared by what sets their step times.

    Args:
        before (RUN): The file of a run, such as a predicted one.
        after (RUN): The file of the run whose step is longer or shorter.
        given: The shared options.
        html (PAGE): Write a page: both runs on one time axis.
    """
    options.require_file("--html", html)
    names = _short_names(before, after)
    show_gap(mt.diff(before, after, names=names), html, as_json=given.as_json)


def _short_names(first: Path, second: Path) -> tuple[str, str]:
    """Return what files are called: their stems, or else the folders in which they differ.

    >>> _short_names(Path("old/zero3/run.jsonl"), Path("new/zero3/run.jsonl"))
    ('old', 'new')
    """
    pairs = zip(reversed(first.with_suffix("").parts), reversed(second.with_suffix("").parts), strict=False)
    return next(((one, other) for one, other in pairs if one != other), (str(first), str(second)))


def show_gap(gap: mt.Gap, html: Path | None, *, as_json: bool = False) -> None:
    """Print a gap, and write its page if that is asked for."""
    if html is not None:
        gap.write_html(html)
    if as_json:
        print_json(gap.summary())
        return
    print_lines(gap.words)
    if gap.attribution:
        print_table(gap.table())
    print_lines(f"wrote {path}" for path in (html,) if path is not None)
