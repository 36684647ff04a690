"""The critical path as a line over the bars of a Gantt chart, to be switched on in the legend."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from minitrain.analysis.critical_path import critical_path
from minitrain.analysis.dependencies import make_graph
from minitrain.analysis.timeline import Floats
from minitrain.trace.bars import Bars

CRITICAL_PATH = "critical path (click)"
COLOR = "#D6006C"


def path_trace(bars: Bars, center: Floats, unit: float, axis: str = "y") -> Any:
    """Return the critical path as a line through its bars, hidden until it is asked for.

    Args:
        bars: the bars of the run, not merged.
        center: where the line runs on each lane, rows from the row's middle.
        unit: unit of the time axis, s.
        axis: the y axis with a row a rank.
    """
    time, row = path_points(bars, center)
    return path_entry().update(x=time / unit, y=row, yaxis=axis)


def path_entry() -> Any:
    """Return the line without its corners, as the legend shows it."""
    return go.Scatter(
        x=[None],
        y=[None],
        name=CRITICAL_PATH,
        legendgroup=CRITICAL_PATH,
        mode="lines",
        line={"color": COLOR, "width": 3},
        visible="legendonly",
        showlegend=True,
        hoverinfo="skip",
        legendrank=1100,
    )


def path_points(bars: Bars, center: Floats) -> tuple[Floats, Floats]:
    """Return the corners of the line: times in s, and rows."""
    line = bars.timeline
    path = critical_path(make_graph(line))
    lane = np.zeros(line.num_events, np.int64)
    works = ~bars.waits
    lane[bars.event[works]] = bars.lane[works]
    start = line.time[path.event]
    end = np.where(path.counts, line.end[path.event], start)
    time = np.stack([start, end], axis=1).reshape(-1)
    row = np.repeat(line.rank[path.event] + center[lane[path.event]], 2)
    corner = np.ones(len(row), dtype=bool)
    corner[1:-1] = (row[1:-1] != row[:-2]) | (row[1:-1] != row[2:])
    return time[corner], row[corner]
