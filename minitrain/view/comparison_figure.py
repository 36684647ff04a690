"""Several runs on one common time axis as a Plotly figure: a Gantt each, and their memory together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitrain.operations import COMMUNICATIONS
from minitrain.run.analysis.labels import GIB, duration, time_unit
from minitrain.run.analysis.memory_over_time import highest_in_spans
from minitrain.run.analysis.timeline import Floats, Trace, as_timeline
from minitrain.view.bars import Bars, Kind, legend_place, make_bars, merged
from minitrain.view.drawing import Drawing, Properties, as_figure, bar, changed, scatter
from minitrain.view.gantt import (
    BELOW_NUMBERS,
    MAX_BARS,
    bar_traces,
    heat_legend,
    heat_trace,
    lane_geometry,
    path_entry,
    path_trace,
)
from minitrain.view.layout import FIGURE_STYLE, GRID, MEMORY_HEIGHT, View, rank_axis, time_axis, title

_CAPTION, _MEMORY_GAP, _TOP, _BOTTOM = 34, 30, 122, 52
_MIN_ROW, _MAX_ROW = 3, 20  # px; below 20, Plotly writes no numbers
_NUM_SPANS = 600
# Paul Tol's bright scheme, which colour-blind readers can tell apart; runs beyond the seventh get dashes
_LINES = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#888888")
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a comparison: its name, bars (joined over layers, and one a layer), words and y axis."""

    name: str
    bars: Bars
    single: Bars
    view: View
    axis: str


def compare_figure(traces: Mapping[str, Trace], views: Mapping[str, View] | None = None, title: str = "") -> Any:
    """Draw several runs above one another, in the mapping's order.

    Args:
        traces: one trace a name.
        views: facts and units by name; plain ones where a name is missing.
        title: what is compared.

    Returns:
        A `plotly.graph_objects.Figure`.
    """
    runs = [
        _run(place, name, trace, (views or {}).get(name, View())) for place, (name, trace) in enumerate(traces.items())
    ]
    longest = max((run.bars.step_end for run in runs), default=0.0)
    unit, unit_name = time_unit(longest)
    memory_axis = f"y{len(runs) + 1}" if runs else "y"
    exact = _drawn_exactly(runs)
    drawn = _legend(runs, exact)
    for run in runs:
        drawn += _gantt(run, unit, run.name in exact)
    drawn += [_memory(place, run, unit, memory_axis) for place, run in enumerate(runs)]
    drawn += [_path(run, unit) for run in runs if len(run.bars)]
    return as_figure(Drawing(drawn, _layout(runs, title, longest / unit, unit_name, memory_axis)))


def _path(run: _Run, unit: float) -> Properties:
    """Return the critical path of one run; the legend has one entry for all of them."""
    center, width = lane_geometry(run.bars.num_lanes)
    return path_trace(run.single, center + BELOW_NUMBERS * width, unit, run.axis) | {"showlegend": False}


def _run(place: int, name: str, trace: Trace, view: View) -> _Run:
    """Make the bars of one run; those of consecutive layers are joined, as in the figures of papers."""
    single = make_bars(as_timeline(trace), view.step_end)
    return _Run(name, merged(single), single, view, f"y{place + 1}" if place else "y")


def _drawn_exactly(runs: list[_Run]) -> set[str]:
    """Return the runs whose bars are drawn one by one: the smallest ones, up to `MAX_BARS` bars in all."""
    names, drawn = set(), 0
    for run in sorted(runs, key=lambda run: len(run.bars)):
        drawn += len(run.bars)
        if drawn <= MAX_BARS:
            names.add(run.name)
    return names


def _gantt(run: _Run, unit: float, exact: bool) -> list[Properties]:
    """Return the bars of one run, or a heat map of it."""
    if not exact:
        return [heat_trace(run.bars, unit) | {"yaxis": run.axis}]
    drawn = bar_traces(run.bars, run.view, unit, run.axis)
    for trace in drawn:
        trace["showlegend"] = False
        if trace["name"] in COMMUNICATIONS:
            del trace["text"]  # Plotly writes beyond a bar that is narrower than its padding
    return drawn


def _legend(runs: list[_Run], exact: set[str]) -> list[Properties]:
    """Return an empty bar for every kind and an empty path, so that the legend is complete whichever run is shown."""
    kinds = {kind.name: kind for run in runs if run.name in exact for kind in run.bars.kinds}
    entries = [_legend_entry(kinds[name]) for name in sorted(kinds, key=legend_place)]
    entries += heat_legend() if len(exact) < len(runs) else []
    return [*entries, path_entry()] if any(len(run.bars) for run in runs) else entries


def _legend_entry(kind: Kind) -> Properties:
    marker: dict[str, Any] = {"color": kind.color}
    if kind.pattern:
        marker["pattern"] = {"shape": kind.pattern, "size": 6, "solidity": 0.12, "fgcolor": "#666666"}
    return bar(x=[None], y=[None], name=kind.name, legendgroup=kind.name, orientation="h", marker=marker)


def _memory(place: int, run: _Run, unit: float, axis: str) -> Properties:
    """Return the memory of a run over time: at every moment, that of the rank that holds most."""
    line, step = run.bars.timeline, run.bars.step_end
    gib = run.view.bytes_per_element / GIB
    spans: Floats = highest_in_spans(line, step, _NUM_SPANS) if line.num_ranks else np.zeros((1, _NUM_SPANS))
    dash = _DASHES[place // len(_LINES) % len(_DASHES)]
    return scatter(
        x=np.linspace(0, step / unit, _NUM_SPANS, endpoint=False),
        y=spans.max(axis=0) * gib,
        name=run.name,
        mode="lines",
        line={"shape": "hv", "width": 1.8, "color": _LINES[place % len(_LINES)], "dash": dash},
        hovertemplate=f"{run.name}<br>%{{y:.4g}} GiB at %{{x:.6g}}<extra></extra>",
        legend="legend2",
        yaxis=axis,
    )


def _layout(runs: list[_Run], text: str, longest: float, unit_name: str, memory_axis: str) -> Properties:
    """Return the layout that shows all runs."""
    names = {run.axis.replace("y", "yaxis"): run for run in runs}
    layout: dict[str, Any] = {
        "margin": {"l": 64, "r": 150, "t": _TOP, "b": _BOTTOM},
        "title": title(View(text)),
        **FIGURE_STYLE,
        "xaxis": time_axis(longest, unit_name, memory_axis),
        "annotations": [_caption(run) for run in runs],
        "legend": {"x": 1.01, "y": 1, "xanchor": "left", "yanchor": "top", "tracegroupgap": 0},
        "legend2": {"x": 1.01, "yanchor": "top", "xanchor": "left", "font": {"size": 11}},
        memory_axis.replace("y", "yaxis"): {
            "title": {"text": "memory (GiB),<br>highest rank", "standoff": 4},
            "rangemode": "tozero",
            "gridcolor": GRID,
            "zeroline": False,
            "fixedrange": True,
        },
    }
    heights = [_small_height(run.bars.timeline.num_ranks, run.bars.num_lanes) for run in runs]
    for (key, run), height in zip(names.items(), heights, strict=True):
        layout[key] = {**rank_axis(run.bars.timeline, (0, 1), height), "fixedrange": True}
    return changed(layout, _arranged(heights))


def _caption(run: _Run) -> dict[str, Any]:
    """Return the line above a run's panel: its name and facts."""
    facts = run.view.subtitle or f"step {duration(run.bars.step_end)}"
    return {
        "text": f"<b>{run.name}</b>   {facts}",
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 13},
    }


def _arranged(heights: Sequence[int]) -> dict[str, Any]:
    """Return the height of the figure, and domains and captions of panels of these heights, px, from the top."""
    inner = sum(heights) + _CAPTION * max(len(heights) - 1, 0) + (_MEMORY_GAP if heights else 0) + MEMORY_HEIGHT
    changes: dict[str, Any] = {"height": inner + _TOP + _BOTTOM, "legend2.y": MEMORY_HEIGHT / inner}
    top = inner
    for place, height in enumerate(heights):
        changes[f"annotations[{place}].y"] = top / inner
        changes[f"yaxis{place + 1 if place else ''}.domain"] = (max(top - height, 0) / inner, top / inner)
        top -= height + _CAPTION
    changes[f"yaxis{len(heights) + 1 if heights else ''}.domain"] = (0, MEMORY_HEIGHT / inner)
    return changes


def _small_height(num_ranks: int, num_lanes: int) -> int:
    """Return the height of one panel among many, px."""
    row = min(_MAX_ROW, max(_MIN_ROW, 160 // max(num_ranks, 1))) * (1.4 if num_lanes > 1 else 1)
    return int(min(max(row * num_ranks, 40), 320))
