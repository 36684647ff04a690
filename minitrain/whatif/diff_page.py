"""A gap between two runs as a table and as a page: its words, its parts, and both runs on one time axis.

On the page the operations with the largest parts are framed in both runs under one number: red where B is slower,
green where it is faster. A part's name in the table leads to its operation. A `gap` here is a
`minitrain.whatif.diff.Gap`, and a `part` one of its parts.
"""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from minitrain.run.analysis.labels import duration
from minitrain.run.analysis.timeline import Timeline
from minitrain.view.layout import View
from minitrain.view.page import html_table, run_picture, write_timelines
from minitrain.view.run_folder import view_of
from minitrain.view.tables import filled_table

if TYPE_CHECKING:
    from rich.table import Table


_FRAMED = 12  # operations, those with the largest parts
_SLOWER, _FASTER = "#d1242f", "#1a7f37"
_COLUMNS = ("of the gap", "cause", "operation", "where", "each (before)")


def cells(part: Any, gap: float) -> list[str]:
    """Return a part as the cells of a table."""
    share = f" ({part.seconds / gap:.0%})" if gap else ""
    return [
        f"{duration(part.seconds)}{share}",
        part.cause,
        part.operation,
        part.where,
        f"{duration(part.after)} ({duration(part.before)})",
    ]


def parts_table(gap: Any, most: int = 12) -> Table:
    """Return the largest parts of a gap as a rich table, and all others as its last row."""
    shown, rest = gap.attribution[:most], gap.attribution[most:]
    rows: list[list[str | Text]] = [[Text(cell) for cell in cells(part, gap.seconds)] for part in shown]
    if rest:
        seconds = sum(part.seconds for part in rest)
        rows.append([duration(seconds), f"{len(rest)} more", "", "", ""])
    last = "on the path (before)" if any(part.per == "on the path" for part in shown) else _COLUMNS[-1]
    return filled_table(dict(zip([*_COLUMNS[:-1], last], (None, 13, 14, 8, 10), strict=True)), rows)


def write_diff_page(gap: Any, path: Path) -> Path:
    """Write a gap as an HTML page that needs no internet, and return its path."""
    a, b = gap.names
    lines = gap.lines
    marks = [_marks(gap, lines, line) for line in lines] if gap.share_by_event is not None else [[], []]
    pictures = [
        run_picture(name, line, _view(run), framed)
        for name, line, run, framed in zip((a, b), lines, (gap.before, gap.after), marks, strict=True)
    ]
    links = {}
    if gap.share_by_event is not None:
        links = _places(gap, lines)
    rows = [dict(zip(_COLUMNS, cells(part, gap.seconds), strict=True)) for part in gap.attribution]
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in gap.words)
    table = html_table([{"part": f"{row.pop('operation')}, {row.pop('cause')}", **row} for row in rows], links)
    body = f'{said}<div class="wide parts">{table}</div>'
    return write_timelines(path, pictures, f"{b} beside {a}", body)


def _view(run: Any) -> View:
    """Return the words and units of a run whose ranks are all drawn."""
    drawn = "" if run.typical is None else ", drawn with the median time of each operation"
    return replace(view_of(run), facts=[f"step {duration(run.step_time)}{drawn}"], ranks_of_rows=())


def _largest(gap: Any) -> list[int]:
    """Return the operations with the largest parts of the gap."""
    order = np.argsort(-np.abs(gap.share_by_event), kind="stable")[:_FRAMED]
    return [event for event in order.tolist() if gap.share_by_event[event]]


def _marks(gap: Any, lines: tuple[Timeline, Timeline], line: Timeline) -> list[dict[str, Any]]:
    """Return frames around the operations with the largest parts in one of the runs; a number joins those of both."""
    return [
        {
            "name": str(number),
            "rank": int(line.rank[event]),
            "start": float(line.time[event]),
            "end": float(line.end[event]),
            "color": _SLOWER if gap.share_by_event[event] > 0 else _FASTER,
            "text": _said(gap, lines, event),
        }
        for number, event in enumerate(_largest(gap), 1)
    ]


def _said(gap: Any, lines: tuple[Timeline, Timeline], event: int) -> str:
    """Return what is said of a framed operation."""
    a, b = lines
    layer = f" of {a.layer_name(int(a.layer[event]))}" if a.layer[event] >= 0 else ""
    return (
        f"{a.typs[a.typ[event]]}{layer} on rank {a.rank_name(int(a.rank[event]))}: "
        f"{duration(float(gap.share_by_event[event]))} of the gap; "
        f"{gap.names[0]}: {duration(float(a.duration[event]))}, {gap.names[1]}: {duration(float(b.duration[event]))}"
    )


def _places(gap: Any, lines: tuple[Timeline, Timeline]) -> dict[str, str]:
    """Return links that zoom into the operation with the largest share of each part, by the part's name."""
    aligned = max(line.begin for line in lines)  # on the page both steps begin then
    found = {}
    for part in gap.attribution:
        line = lines[1]
        typ = part.operation.partition(" of ")[0]
        alike = line.of_types([typ]) & np.isin(line.rank, part.ranks)
        if alike.any():
            event = int(np.argmax(np.where(alike, np.abs(gap.share_by_event), -1.0)))
            both = [(each.time[event] + aligned - each.begin, each.end[event] + aligned - each.begin) for each in lines]
            low, high = min(begin for begin, _ in both), max(end for _, end in both)
            margin = (high - low) / 10
            zoom = f"javascript:void timeline.zoomTo({max(low - margin, 0):.9g}, {high + margin:.9g})"
            found[f"{part.operation}, {part.cause}"] = zoom
    return found
