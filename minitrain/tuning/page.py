"""A search as one HTML page that opens without internet: all configurations, the front, and any layout at a click.

Configurations are drawn on canvases, since there may be tens of thousands. The best are simulated once more: for them,
the page has where their time goes, what fills the memory, and what each place of the pipeline does. For the others, it
has the command that shows it.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrain.analysis.labels import GIB
from minitrain.events import PASSES, Event
from minitrain.files import write_text
from minitrain.tuning.explanation import Spending
from minitrain.tuning.findings import Findings, described
from minitrain.tuning.page_script import SCRIPT, STYLE
from minitrain.tuning.rows import FITS, Row, distinct, options_of

if TYPE_CHECKING:
    from minitrain.run.result import Run

_FIGURES = {
    "step s": ("step_time_s", 1.0),
    "GiB": ("needed_memory_bytes", 1 / GIB),
    "tensors GiB": ("peak_memory_bytes", 1 / GIB),
    "tok/s/GPU": ("tokens_per_second_per_rank", 1.0),
    "MFU %": ("mfu", 100.0),
    "USD": ("dollars", 1.0),
    "kJ": ("energy_joules", 1e-3),
}
_NAMED = 200  # layouts that are listed
MOST_EVENTS = 400_000
"""The most events of a run, of one rank of each class, that a page draws."""
FORWARD, BACKWARD, UPDATE, COMMUNICATION = range(4)
"""The kinds of spans in a Gantt chart."""


def write_tuning_page(path: Path, tuning: Findings, pictures: int) -> Path:
    """Write the page and return its path.

    Args:
        path: where to.
        tuning: the search.
        pictures: how many of the best are simulated once more.
    """
    return write_text(path, _page(tuning, pictures))


def _page(tuning: Findings, pictures: int) -> Iterator[str]:
    """Yield the page in pieces."""
    title = _title(tuning)
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
    yield f"<p>{html.escape(tuning.verdicts())}. Click a line, a point or a row to see it.</p>\n"
    yield "<figure><figcaption>All configurations with figures: the strongest blue is the quickest, grey does not fit"
    yield '</figcaption><div class="wide"><div id="lines" class="plot"></div></div></figure>\n'
    yield '<div class="plots"><figure><figcaption><label><select id="y"></select></label> over '
    yield '<label><select id="x"></select></label>; ringed: nothing beats them</figcaption>'
    yield '<div id="points" class="plot"></div></figure>\n<section id="details"></section></div>\n'
    yield '<div class="wide"><table id="table"></table></div>\n'
    yield f"<details><summary>What was not priced, and why</summary><ul>{''.join(_reasons(tuning))}</ul></details>\n"
    text = json.dumps(_data(tuning, pictures), allow_nan=False).replace("<", "\\u003c")
    yield f'<script id="data" type="application/json">{text}</script>\n<script>{SCRIPT}</script></body></html>\n'


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


def _data(tuning: Findings, pictures: int) -> dict[str, Any]:
    """Return what the page's script draws."""
    rows = [row for row in tuning.rows if row["step_time_s"] is not None]
    names = _varied(rows)
    order = {id(row): place for place, row in enumerate(rows)}
    best = distinct(tuning.ranked)[:_NAMED]
    return {
        "options": {name: _coded([_text(row.get(name)) for row in rows]) for name in names},
        "figures": {name: [_figure(row, name) for row in rows] for name in _FIGURES if _is_known(rows, name)},
        "fits": [int(row["status"] == FITS) for row in rows],
        "front": sorted(order[id(row)] for row in tuning.front),
        "ranked": [order[id(row)] for row in best],
        "names": [f"{row['strategy']} {described(options_of(row))}" for row in best],
        "commands": [tuning.choice(row).command for row in best],
        "drawn": _drawn(tuning, pictures),
    }


def _varied(rows: Sequence[Row]) -> list[str]:
    """Return the options and parameters that are not the same in all rows."""
    names = dict.fromkeys(name for row in rows for name in ("strategy", "hardware", "world_size", *options_of(row)))
    return [name for name in names if len({_text(row.get(name)) for row in rows}) > 1]


def _coded(texts: Sequence[str]) -> dict[str, Any]:
    """Return texts as indices into the distinct ones, and the distinct ones in their order."""
    kinds = sorted(set(texts), key=lambda text: (not text.isdigit(), int(text) if text.isdigit() else 0, text))
    numbers = {kind: number for number, kind in enumerate(kinds)}
    return {"kinds": kinds, "codes": [numbers[text] for text in texts]}


def _text(value: Any) -> str:
    """Return an option's value as text."""
    if value is None:
        return "-"
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def _is_known(rows: Sequence[Row], name: str) -> bool:
    return any(row[_FIGURES[name][0]] is not None for row in rows)


def _figure(row: Row, name: str) -> float | None:
    """Return a figure in the unit of the page, in five digits."""
    column, factor = _FIGURES[name]
    return None if row[column] is None else float(f"{row[column] * factor:.5g}")


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
                "gantt": gantt_of(run) if sum(map(len, run.class_logs)) <= MOST_EVENTS else [],
                "step": run.step_time,
            }
        )
    return found


def gantt_of(run: Run) -> list[list[list[float]]]:
    """Return what each class of ranks does: spans as [kind, start s, end s], those of one pass of a microbatch in one.

    The step begins at 0, when all weights are there.

    A collective among the parts of a layer belongs to the pass that it is part of.
    """
    return [_spans(log, run.load_time) for log in run.class_logs]


def _spans(log: Sequence[Event], begin: float) -> list[list[float]]:
    """Return the spans of one rank."""
    spans: list[list[float]] = []
    last: Any = None
    for event in sorted(log, key=lambda event: event.time):
        if not event.duration or event.typ == "load_weights":
            continue
        kind, key = _kind(event, last)
        end = event.time + event.duration
        if spans and last == key and event.time <= spans[-1][2] + 1e-9 + 1e-6 * end:
            spans[-1][2] = max(spans[-1][2], end)
        else:
            spans.append([kind, event.time, end])
        last = key
    return [[kind, float(f"{max(start - begin, 0):.7g}"), float(f"{end - begin:.7g}")] for kind, start, end in spans]


def _kind(event: Event, last: Any) -> tuple[int, Any]:
    """Return the kind of an event, and a key that differs between passes."""
    if event.typ in ("forward", "loss"):
        return FORWARD, (FORWARD, event.samples)
    if event.typ in PASSES:
        return BACKWARD, (BACKWARD, event.samples)
    if event.typ == "update":
        return UPDATE, (UPDATE, None)
    if event.peer is None and isinstance(last, tuple) and last[1] is not None and last[1] == event.samples:
        return last
    return COMMUNICATION, (COMMUNICATION, None)
