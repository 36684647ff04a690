"""Event logs -> a Plotly figure: what every rank does, over the memory it holds, on one time axis.

Rank 0 is on top. Up to `MAX_BARS` bars are drawn one by one; beyond, the figure is a heat map of the time spent
computing, and a page (`minitrain.trace.page`) draws the bars of the part that is zoomed into.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from minitrain.analysis.labels import time_unit
from minitrain.analysis.memory_by_kind import Journals
from minitrain.analysis.timeline import NONE, Bools, Floats, Ints, Trace, as_timeline
from minitrain.trace.bars import Bars, make_bars, merged, rows_of_layers
from minitrain.trace.curves import memory_traces, peak_gib
from minitrain.trace.heat import heat
from minitrain.trace.kind_curves import kind_traces, rank_menu
from minitrain.trace.layout import layout
from minitrain.trace.overlay import path_trace
from minitrain.trace.texts import bar_labels, hover_texts
from minitrain.trace.view import View

MAX_BARS = 5000
_MAIN_LANE, _LANE_GAP = 0.8, 0.04
BELOW_NUMBERS = 0.36  # of a bar's height below its middle: where the critical path runs


def figure(trace: Trace, view: View | None = None, journals: Journals = ()) -> Any:
    """Draw one run.

    Args:
        trace: one log a rank, or columns.
        view: title, facts and units; plain ones if None.
        journals: every change of every store, for memory by kind, if they were kept.

    Returns:
        A `plotly.graph_objects.Figure`.
    """
    view = view or View()
    return figure_of_bars(make_bars(as_timeline(trace), view.step_time), view, journals)[0]


def figure_of_bars(bars: Bars, view: View, journals: Journals = ()) -> tuple[Any, int]:
    """Draw bars that were made already.

    Returns:
        The figure, and how many of its traces are the same however far one zooms: memory, and what lies over the bars.
        They come first, so that menus find them.
    """
    unit, unit_name = time_unit(bars.step_time)
    totals = memory_traces(bars, view, unit)
    kinds, owners = kind_traces(bars, view, unit, journals) if journals else ([], [])
    for trace in totals if kinds else ():
        trace.visible = False
    center, width = lane_geometry(bars.num_lanes)
    overlays = [path_trace(bars, center + BELOW_NUMBERS * width, unit)] if len(bars) else []
    if len(bars) > MAX_BARS:
        drawn = [heat_trace(bars, unit)]
    else:
        drawn = [*bar_traces(bars, view, unit), *microbatch_labels(bars, unit)]
    fixed = [*totals, *kinds, *overlays]
    arranged = layout(bars, view, unit, unit_name, peak_gib(bars, view, journals))
    arranged["updatemenus"] = rank_menu(len(totals), owners, arranged["yaxis2"]["domain"][1])
    return go.Figure([*fixed, *drawn], arranged), len(fixed)


def bar_traces(bars: Bars, view: View, unit: float, axis: str = "y") -> list[Any]:
    """Return one bar trace a kind, over time in `unit` s, on rows 0 to num_ranks - 1 of `axis`."""
    center, width = lane_geometry(bars.num_lanes)
    numbers = np.where(_has_common_label(bars), NONE, bar_labels(bars))
    traces = []
    for code, kind in enumerate(bars.kinds):
        chosen = np.flatnonzero(bars.kind == code)
        if not len(chosen):
            continue
        part = bars.take(chosen)
        traces.append(
            go.Bar(
                name=kind.name,
                legendgroup=kind.name,
                orientation="h",
                base=part.start / unit,
                x=part.duration / unit,
                y=part.rank + center[part.lane],
                width=width[part.lane] if bars.num_lanes > 1 else _MAIN_LANE,
                text=_texts(numbers[chosen]),
                **_text_style(kind.ink),
                hovertext=hover_texts(part, view.bytes_per_element),
                hoverinfo="text",
                marker=_marker(kind.color, kind.pattern),
                yaxis=axis,
                cliponaxis=True,
            )
        )
    return traces


def microbatch_labels(bars: Bars, unit: float) -> list[Any]:
    """Return one number over the bars of a microbatch's layers in a row, each too short to carry it."""
    whole = merged(bars)
    whole = whole.take(np.flatnonzero((whole.last != whole.event) & (bar_labels(whole) != NONE)))
    center, width = lane_geometry(bars.num_lanes)
    traces = []
    for code, kind in enumerate(bars.kinds):
        part = whole.take(whole.kind == code)
        if not len(part):
            continue
        traces.append(
            go.Bar(
                name=kind.name,
                legendgroup=kind.name,
                showlegend=False,
                orientation="h",
                base=part.start / unit,
                x=part.duration / unit,
                y=part.rank + center[part.lane],
                width=width[part.lane],
                text=_texts(bar_labels(part)),
                **_text_style(kind.ink),
                hoverinfo="skip",
                marker={"color": "rgba(0,0,0,0)", "line": {"width": 0}},
            )
        )
    return traces


def _has_common_label(bars: Bars) -> Bools:
    """Tell which bars are in a row that `microbatch_labels` writes one number over, (num_bars,)."""
    labels = bar_labels(bars)
    first, last = rows_of_layers(bars)
    order = np.lexsort((bars.start, bars.lane, bars.rank))
    place = np.empty(len(bars), np.int64)
    place[order] = np.arange(len(bars))
    common = np.repeat((first != last) & (labels[first] == labels[last]), place[last] - place[first] + 1)
    found = np.zeros(len(bars), dtype=bool)
    found[order] = common
    return found


def _text_style(ink: str) -> dict[str, Any]:
    """Return how the number on a bar is written: in the middle, or not at all where it does not fit."""
    font = {"color": ink, "size": 11}
    return {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "insidetextfont": font}


def lane_geometry(num_lanes: int) -> tuple[Floats, Floats]:
    """Return the centre (from the row's middle, downwards) and the height of each lane, in rows."""
    if num_lanes == 1:
        return np.zeros(1), np.full(1, _MAIN_LANE)
    main = _MAIN_LANE * 0.6
    rest = (_MAIN_LANE - main) / (num_lanes - 1)
    width = np.array([main - _LANE_GAP, *[rest] * (num_lanes - 1)])
    top = np.array([0.0, *(main + rest * place for place in range(num_lanes - 1))])
    return top + width / 2 - _MAIN_LANE / 2, width


def heat_trace(bars: Bars, unit: float) -> Any:
    """Return the heat map of the time spent computing, in percent."""
    shares = heat(bars)
    num_bins = shares.computing.shape[1]
    step = bars.step_time / unit / num_bins
    return go.Heatmap(
        z=np.rint(shares.computing * 100).astype(np.uint8),
        customdata=np.rint(shares.communicating * 100).astype(np.uint8),
        x0=step / 2,
        dx=step,
        y0=(shares.ranks_per_row - 1) / 2,
        dy=shares.ranks_per_row,
        zmin=0,
        zmax=100,
        colorscale=HEAT_SCALE,
        colorbar={
            "title": {"text": "computing"},
            "ticksuffix": " %",
            "thickness": 12,
            "len": 0.4,
            "y": 0.94,
            "yanchor": "top",
        },
        hovertemplate="rank %{y:.0f}<br>at %{x:.6g}<br>computing %{z} %<br>communicating %{customdata} %"
        "<extra></extra>",
        name="computing",
    )


HEAT_SCALE = [[0, "#F2F2F2"], [0.25, "#B9DDF1"], [0.6, "#56B4E9"], [1, "#08519C"]]


def _marker(color: str, pattern: str) -> dict[str, Any]:
    """Return how bars of a kind are filled."""
    marker: dict[str, Any] = {"color": color, "line": {"width": 0}}
    if pattern:
        marker["pattern"] = {"shape": pattern, "size": 6, "solidity": 0.12, "fgcolor": "#666666"}
    return marker


def _texts(numbers: Ints) -> list[str]:
    """Return the number to write on each bar, or nothing."""
    return ["" if number == NONE else str(number) for number in numbers.tolist()]
