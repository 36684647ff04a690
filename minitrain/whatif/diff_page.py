"""A gap between two runs as a table and as a page: its words, its parts, and both runs on one time axis.

On the page the operations with the largest parts are framed in both runs and joined: red where B is slower, green where
it is faster. A part's name in the table leads to its operation. A `gap` here is a `minitrain.whatif.diff.Gap`, and a
`part` one of its parts.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from minitrain.run.analysis.labels import duration, time_unit
from minitrain.run.analysis.timeline import Timeline
from minitrain.view.bars import lanes
from minitrain.view.comparison_figure import drawn_comparison
from minitrain.view.gantt import lane_geometry
from minitrain.view.layout import View
from minitrain.view.page import html_table, write_page
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
    return filled_table(dict(zip([*_COLUMNS[:-1], last], (None, 13, 8, 8, None), strict=True)), rows)


def write_diff_page(gap: Any, path: Path) -> Path:
    """Write a gap as an HTML page that needs no internet, and return its path."""
    a, b = gap.names
    lines = gap.before.step_timeline, gap.after.step_timeline
    views = {name: View(facts=[f"step {duration(run.step_time)}"]) for name, run in ((a, gap.before), (b, gap.after))}
    drawing = drawn_comparison(dict(zip(gap.names, lines, strict=True)), views, "")
    links = {}
    if gap.share_by_event is not None:
        _frame(drawing, gap, lines)
        links = _places(gap, lines)
    rows = [dict(zip(_COLUMNS, cells(part, gap.seconds), strict=True)) for part in gap.attribution]
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in gap.words)
    table = html_table([{"part": f"{row.pop('operation')}, {row.pop('cause')}", **row} for row in rows], links)
    body = f'{said}<div class="wide">{table}</div>'
    return write_page(path, drawing, f"{b} beside {a}", body=body)


def _largest(gap: Any) -> list[int]:
    """Return the operations with the largest parts of the gap."""
    order = np.argsort(-np.abs(gap.share_by_event), kind="stable")[:_FRAMED]
    return [event for event in order.tolist() if gap.share_by_event[event]]


def _frame(drawing: Any, gap: Any, lines: tuple[Timeline, Timeline]) -> None:
    """Frame the operations with the largest parts in both runs, and say in their hover texts what they are."""
    longest = max(line.last_end for line in lines)
    unit, _ = time_unit(longest)
    lane = lanes(lines[0])
    center, width = lane_geometry(int(lane.max(initial=0)) + 1)
    for place, (line, axis) in enumerate(zip(lines, ("y", "y2"), strict=True)):
        chosen = _largest(gap)
        seconds = gap.share_by_event[chosen]
        drawing.data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": "parts of the gap",
                "legendgroup": "parts of the gap",
                "showlegend": not place,
                "base": (line.time[chosen] / unit).tolist(),
                "x": np.maximum(line.duration[chosen] / unit, longest / unit / 2000).tolist(),
                "y": (line.rank[chosen] + center[lane[chosen]]).tolist(),
                "width": (width[lane[chosen]] * 1.1).tolist(),
                "yaxis": axis,
                "marker": {
                    "color": "rgba(0,0,0,0)",
                    "line": {"color": [_SLOWER if more > 0 else _FASTER for more in seconds], "width": 2.5},
                },
                "hovertext": [_said(gap, lines, event) for event in chosen],
                "hoverinfo": "text",
            }
        )
    _join(drawing.layout, gap, lines, unit)


def _join(layout: Any, gap: Any, lines: tuple[Timeline, Timeline], unit: float) -> None:
    """Join the framed operations of both runs by lines, which the buttons show with both runs alone."""
    below, above = layout["yaxis"]["domain"][0], layout["yaxis2"]["domain"][1]
    middles = [(line.time + line.end) / 2 / unit for line in lines]
    layout["shapes"] = [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": float(middles[0][event]),
            "y0": below,
            "x1": float(middles[1][event]),
            "y1": above,
            "line": {"color": _SLOWER if gap.share_by_event[event] > 0 else _FASTER, "width": 1, "dash": "dot"},
        }
        for event in _largest(gap)
    ]
    for button in layout["updatemenus"][0]["buttons"]:
        shown, changes = button["args"]
        is_all = button["label"] == "all"
        shown["visible"] += [is_all or button["label"] == name for name in gap.names]
        changes |= {f"shapes[{place}].visible": is_all for place in range(len(layout["shapes"]))}


def _said(gap: Any, lines: tuple[Timeline, Timeline], event: int) -> str:
    """Return what the hover text of a framed operation says."""
    a, b = lines
    layer = f" of {a.layer_name(int(a.layer[event]))}" if a.layer[event] >= 0 else ""
    return (
        f"{a.typs[a.typ[event]]}{layer} on rank {a.rank_name(int(a.rank[event]))}<br>"
        f"{duration(float(gap.share_by_event[event]))} of the gap<br>"
        f"{gap.names[0]}: {duration(float(a.duration[event]))}, {gap.names[1]}: {duration(float(b.duration[event]))}"
    )


def _places(gap: Any, lines: tuple[Timeline, Timeline]) -> dict[str, str]:
    """Return links that zoom into the operation with the largest share of each part, by the part's name."""
    unit, _ = time_unit(max(line.last_end for line in lines))
    found = {}
    for part in gap.attribution:
        line = lines[1]
        typ = part.operation.partition(" of ")[0]
        alike = line.of_types([typ]) & np.isin(line.rank, part.ranks)
        if alike.any():
            event = int(np.argmax(np.where(alike, np.abs(gap.share_by_event), -1.0)))
            both = [(each.time[event] / unit, each.end[event] / unit) for each in lines]
            low, high = min(begin for begin, _ in both), max(end for _, end in both)
            margin = (high - low) / 10
            window = f"[{max(low - margin, 0):.6g}, {high + margin:.6g}]"
            found[f"{part.operation}, {part.cause}"] = (
                f"javascript:void Plotly.relayout('figure', {{'xaxis.range': {window}}})"
            )
    return found
