"""The command `minitrain validate`: published runs, simulated again and compared."""

from __future__ import annotations

from pathlib import Path

import typer

import minitrain as mt
from minitrain.cli import options
from minitrain.cli.failures import FAILED, saying_what_is_kept
from minitrain.cli.generation import Given
from minitrain.cli.output import Counted, Progress, print_json, print_lines, print_table, user_prints_to_stderr
from minitrain.errors import UsageError
from minitrain.evidence import columns
from minitrain.evidence.errors_by_table import TableErrors
from minitrain.files import write_text
from minitrain.machine.given_durations import LEVEL
from minitrain.plain_text import printable
from minitrain.tensors.index_sets import grouped
from minitrain.view.tables import filled_table, frameless_table

_SKIPPED_SHOWN = 8
_ROWS_SHOWN = 3


def validate(
    tables: list[str] | None = None,
    *,
    given: Given,
    table: list[Path] | None = None,
    platform: str | None = None,
    layers: Path | None = None,
    without: str | None = None,
    strict: bool = False,
    template: Path | None = None,
    jobs: int | None = None,
    html: Path | None = None,
) -> None:
    """Simulate published runs, and print how far each table's predictions are off.

    The tables are listed in docs/accuracy.md. A row that lacks what the model needs is listed with its reason.
    Exit code 1 if no row could be simulated.

    Args:
        tables (TABLE): Tables of the package, such as c2 b2 a1; all of them by default.
        given: The shared options.
        table (FILE): Your own table of measured runs, or a folder of real runs; repeat it for more.
        platform (NAME): One platform for all rows; components for none.
        layers (FILE): Measured times of layers, for clusters of several devices.
        without (TERMS): Terms of the price to leave out, such as waves,launches.
        strict: Leave out rows where something assumed moves the time by more than 2 %, or words were not read.
        template (FILE.csv): Write a table to fill in, with a row of examples; list its columns and their words.
        jobs (N): Processes; one a core by default.
        html (FILE): Write a page: predicted against measured.
    """
    as_json = given.as_json
    options.require_file("--html", html)
    options.require_file("--template", template)
    if template is not None:
        write_text(template, [columns.template()])
        about = {"columns": {name: column.about for name, column in columns.columns().items()}}
        written = [columns.described(), f"wrote {template}"]
        print_json({"template": str(template), **about}) if as_json else print_lines(written)
        return
    with (
        user_prints_to_stderr(as_json),
        Progress() as progress,
        saying_what_is_kept(lambda: "nothing was kept; give fewer tables for a shorter run"),
    ):
        done = mt.validate(
            tables or None,
            table or (),
            platform=platform,
            layers=layers,
            without=options.terms_of(without),
            strict=strict,
            jobs=jobs,
            progress=Counted(progress, lambda _, num, total: f"{num} of {total} rows"),
        )
        if not (done.results or done.skipped):
            named = ", ".join(map(str, table or ()))
            raise UsageError(f"{named}: expected rows, found none; give a CSV file whose first line names the columns")
        if html is not None:
            done.write_html(html)
    if as_json:
        print_json([*done.rows, *(skipped.summary() for skipped in done.skipped)])
    else:
        _print(done)
        print_lines([] if html is None else [f"wrote {html}"])
    if not done.results:
        raise typer.Exit(FAILED)


def _print(done: mt.Validation) -> None:
    """Print the errors by table, and what was left out."""
    if done.results:
        counts = {name: f"{num} of {of_all}" for name, (num, of_all) in done.answered.items()}
        rows = [_row(errors, "" if errors.group else counts[errors.table]) for errors in done.tables]
        heads = {**dict.fromkeys(_FIGURES), "rows": None, "fitted on it": 8}
        print_table(filled_table({"table": 0, "of": 6, **heads}, rows, frameless_table()))
        kinds = [(errors.table, errors.group, *_figures(errors)) for errors in done.kinds]
        if len(kinds) > 1:
            heads = {"device, framework": 6, "parallelism": 3, **dict.fromkeys(_FIGURES)}
            print_table(filled_table(heads, kinds, frameless_table()))
    held, num_sure = done.in_interval
    if num_sure:
        print_lines([f"{held} of {num_sure} measured times lie in their intervals of {100 * LEVEL:.0f} %"])
    if done.without:
        print_lines([f"left out: {', '.join(done.without)}"])
    _print_skipped(done)


_FIGURES = ("runs", "mean %", "median %", "p90 %", "bias %")


def _figures(errors: TableErrors) -> tuple[str, ...]:
    """Return the cells of `_FIGURES`."""
    found = errors.errors
    means = (f"{100 * value:.1f}" for value in (found.mean, found.median, found.p90))
    return (str(found.num_runs), *means, f"{100 * found.bias:+.1f}")


def _row(errors: TableErrors, answered: str) -> tuple[str, ...]:
    """Return the row of a table, or of a group below it."""
    if errors.group:
        of = errors.group if errors.of == "time" else f"{errors.group}: {errors.of}"
        return ("", printable(of), *_figures(errors), "", "")
    return (errors.table, printable(errors.of), *_figures(errors), answered, errors.fitted or "nothing")


def _print_skipped(done: mt.Validation) -> None:
    """Print why rows were not simulated and which, the most frequent reasons first; and what was not read of others."""
    reasons = grouped(((skipped.table, skipped.reason), skipped.row_id) for skipped in done.skipped)
    ordered = sorted(reasons.items(), key=lambda item: -len(item[1]))
    if ordered:
        left_out = len(done.skipped)
        print_lines([f"{left_out} rows were not simulated:" if left_out > 1 else "1 row was not simulated:"])
    for (table, reason), rows in ordered[:_SKIPPED_SHOWN]:
        named = ", ".join(rows[:_ROWS_SHOWN]) + (" ..." if len(rows) > _ROWS_SHOWN else "")
        print_lines([printable(f"  {table}, {len(rows)} ({named}): {reason}")])
    if len(ordered) > _SKIPPED_SHOWN:
        print_lines([f"  and {len(ordered) - _SKIPPED_SHOWN} more reasons; --json and mt.validate().skipped have all"])
    unread = list(dict.fromkeys(f"  {result.table}: {words}" for result in done.results for words in result.unread))
    if unread:
        print_lines(["Words that were not read:", *map(printable, unread[:_SKIPPED_SHOWN])])
    if len(unread) > _SKIPPED_SHOWN:
        print_lines([f"  and {len(unread) - _SKIPPED_SHOWN} more; --json has all"])
