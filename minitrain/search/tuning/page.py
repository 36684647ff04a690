"""A search as one HTML page: all configurations, the front, and any layout at a click.

The best are simulated once more: for them, the page has where their time goes, what fills the memory, and what each
place of the pipeline does. `minitrain.search.page` writes it.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from minitrain.run.analysis.labels import GIB
from minitrain.run.figures import TABLES
from minitrain.search.page import MOST_EVENTS, Configurations, numbers_of, option_text, write_page
from minitrain.search.tuning.explanation import Spending
from minitrain.search.tuning.findings import Findings, described
from minitrain.search.tuning.search import FITS, Row, distinct, options_of
from minitrain.view.run_folder import picture_of

_NAMED = 200  # layouts that are named
_LISTED = 50  # of these, in the table at a time
_AXES = ("step s", "GiB", "MFU %")


def write_tuning_page(path: Path, tuning: Findings, pictures: int) -> Path:
    """Write the page and return its path.

    Args:
        path: where to.
        tuning: the search.
        pictures: how many of the best are simulated once more.
    """
    said = [f"{tuning.verdicts()}"]
    caption = "All configurations with figures: the strongest blue is the quickest, grey does not fit"
    why = f"<details><summary>What was not priced, and why</summary><ul>{''.join(_reasons(tuning))}</ul></details>\n"
    return write_page(path, _title(tuning), _configurations(tuning, pictures), said, caption, why)


def _title(tuning: Findings) -> str:
    """Return what was searched."""
    row = tuning.rows[0] if tuning.rows else None
    if row is None:
        return "no configurations"
    problem = tuning.choice(row).candidate.problem
    name = getattr(problem.machine.workload, "name", "layers")
    return f"{name} on {row['world_size']:,} x {row['hardware']}, batch {row['global_batch_size']:,}"


def _reasons(tuning: Findings) -> Iterator[str]:
    """Yield how many configurations have each reason, the most frequent first."""
    found = Counter(
        (row["status"], _general(row["reason"])) for row in tuning.rows if row["reason"] and row["step_time_s"] is None
    )
    for (status, reason), count in found.most_common(20):
        yield f"<li>{count:,} {html.escape(status)}: {html.escape(reason)}</li>"


def _general(reason: str) -> str:
    """Return a reason without its numbers, so that equal ones count together."""
    return " ".join("..." if any(sign.isdigit() for sign in word) else word for word in reason.split())


def _configurations(tuning: Findings, pictures: int) -> Configurations:
    """Return what the page shows of the search."""
    rows = [row for row in tuning.rows if row["step_time_s"] is not None]
    order = {id(row): place for place, row in enumerate(rows)}
    best = distinct(tuning.ranked)[:_NAMED]
    figures, options = numbers_of(rows, TABLES["page of a search"]), _varied(rows)
    return Configurations(
        options=options,
        figures=figures,
        fits=[row["status"] == FITS for row in rows],
        pace="step s",
        named=[order[id(row)] for row in best],
        names=[f"{row['strategy']} {described(options_of(row))}" for row in best],
        commands=[tuning.choice(row).command for row in best],
        columns=["layout", *figures],
        axes=[*options, *(name for name in _AXES if name in figures)],
        x="GiB",
        listed=_LISTED,
        front=sorted(order[id(row)] for row in tuning.front),
        drawn=dict(enumerate(_drawn(tuning, pictures))),
    )


def _varied(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the options and parameters that are not the same in all rows, of each row."""
    names = dict.fromkeys(name for row in rows for name in ("strategy", "hardware", "world_size", *options_of(row)))
    texts = {name: [option_text(row.get(name)) for row in rows] for name in names}
    return {name: found for name, found in texts.items() if len(set(found)) > 1}


def _drawn(tuning: Findings, pictures: int) -> list[dict[str, Any]]:
    """Return where the time of the best goes, and what their ranks do."""
    found = []
    for row in distinct(tuning.ranked)[:pictures]:
        choice = tuning.choice(row)
        run = choice.simulate(check=False)
        spending = Spending.of_run(choice, run)
        found.append(
            {
                "parts": {name: round(seconds, 9) for name, seconds in spending.parts().items()},
                "memory": {kind: round(size / GIB, 4) for kind, size in spending.memory_bytes.items() if size},
                "picture": picture_of(run) if sum(map(len, run.class_logs)) <= MOST_EVENTS else None,
            }
        )
    return found
