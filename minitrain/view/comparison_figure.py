"""Several runs on one common time axis: a Gantt each, their memory together, and a switch to see one alone."""

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
    CRITICAL_PATH,
    MAX_BARS,
    bar_traces,
    heat_legend,
    heat_trace,
    lane_geometry,
    path_entry,
    path_trace,
)
from minitrain.view.layout import FIGURE_STYLE, GRID, MEMORY_HEIGHT, View, gantt_height, rank_axis, time_axis, title

_CAPTION, _MEMORY_GAP, _TOP, _BOTTOM = 34, 30, 122, 52
_HIDDEN = (0, 0.001)  # Plotly replaces a domain of height 0 by the whole height
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
    """Return several runs as a `plotly.graph_objects.Figure`; arguments as for `drawn_comparison`."""
    return as_figure(drawn_comparison(traces, views, title))


def drawn_comparison(traces: Mapping[str, Trace], views: Mapping[str, View] | None = None, title: str = "") -> Drawing:
    """Draw several runs above one another, in the mapping's order.

    Args:
        traces: one trace a name.
        views: facts and units by name; plain ones where a name is missing.
        title: what is compared.

    Returns:
        The drawing, with a button for all runs and one for each alone.
    """
    runs = [
        _run(place, name, trace, (views or {}).get(name, View())) for place, (name, trace) in enumerate(traces.items())
    ]
    longest = max((run.bars.step_end for run in runs), default=0.0)
    unit, unit_name = time_unit(longest)
    memory_axis = f"y{len(runs) + 1}" if runs else "y"
    exact = _drawn_exactly(runs)
    owned: list[tuple[list[Properties], str | None]] = [(_legend(runs, exact), None)]
    owned += [(_gantt(run, unit, run.name in exact), run.name) for run in runs]
    owned += [([_memory(place, run, unit, memory_axis)], run.name) for place, run in enumerate(runs)]
    owned += [([_path(run, unit)], run.name) for run in runs if len(run.bars)]
    owners = [owner for drawn, owner in owned for _ in drawn]
    overlays = [place for place, trace in enumerate(_flat(owned)) if trace["name"] == CRITICAL_PATH]
    panels = Panels([(run.name, run.bars.timeline.num_ranks, run.bars.num_lanes) for run in runs], owners, overlays)
    return Drawing(
        _flat(owned),
        _layout(runs, panels, title, longest / unit, unit_name, memory_axis),
    )


def _flat(owned: list[tuple[list[Properties], str | None]]) -> list[Properties]:
    """Return all traces."""
    return [trace for drawn, _ in owned for trace in drawn]


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


def _layout(
    runs: list[_Run], panels: Panels, text: str, longest: float, unit_name: str, memory_axis: str
) -> Properties:
    """Return the layout that shows all runs."""
    names = {run.axis.replace("y", "yaxis"): run for run in runs}
    layout: dict[str, Any] = {
        "margin": panels.margin,
        "title": title(View(text)),
        "meta": {"captions": _CAPTION + 4},  # px above a panel, for a page, which has title and buttons outside
        **FIGURE_STYLE,
        "xaxis": time_axis(longest, unit_name, memory_axis),
        "annotations": [_caption(run) for run in runs],
        "updatemenus": panels.menu() if len(runs) > 1 else [],
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
    for key, run in names.items():
        line = run.bars.timeline
        height = _small_height(line.num_ranks, run.bars.num_lanes)
        layout[key] = {**rank_axis(line, (0, 1), height), "fixedrange": True}
    return changed(layout, panels.everything())


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


@dataclass(frozen=True, slots=True)
class Panels:
    """The panels of a comparison, one a run and one of memory below them, and the buttons that show one run alone.

    Args:
        runs: name, number of ranks and number of lanes of each run, from the top.
        owners: for each trace of the figure the name of its run, or None if it is always shown.
        overlays: places of the traces that are hidden until they are switched on in the legend.
    """

    runs: Sequence[tuple[str, int, int]]
    owners: Sequence[str | None]
    overlays: Sequence[int] = ()

    @property
    def margin(self) -> dict[str, int]:
        """Space around the panels, px."""
        return {"l": 64, "r": 150, "t": _TOP, "b": _BOTTOM}

    def everything(self) -> dict[str, Any]:
        """Return the changes of layout that show every run."""
        return self._arranged([_small_height(ranks, lanes) for _, ranks, lanes in self.runs])

    def alone(self, name: str) -> dict[str, Any]:
        """Return the changes of layout that show one run."""
        return self._arranged([gantt_height(ranks, lanes) if run == name else 0 for run, ranks, lanes in self.runs])

    def menu(self) -> list[dict[str, Any]]:
        """Return the row of buttons: all runs, then one each."""
        names = [name for name, _, _ in self.runs]
        buttons = [_button("all", self._visible(set(names)), self.everything())]
        buttons += [_button(name, self._visible({name}), self.alone(name)) for name in names]
        place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": _CAPTION - 2}}
        return [{"type": "buttons", "direction": "right", "showactive": True, "buttons": buttons, **place}]

    def _visible(self, names: set[str]) -> list[bool | str]:
        """Return which traces are visible when some runs are shown; every button switches overlays off."""
        shown: list[bool | str] = [owner is None or owner in names for owner in self.owners]
        for place in self.overlays:
            shown[place] = "legendonly" if shown[place] else False
        return shown

    def _arranged(self, heights: list[int]) -> dict[str, Any]:
        """Return domains and captions for panels of these heights, px; a height of 0 hides its panel."""
        shown = [height + _CAPTION for height in heights if height]
        inner = max(sum(shown) - _CAPTION, 0) + (_MEMORY_GAP if shown else 0) + MEMORY_HEIGHT
        changes: dict[str, Any] = {"height": inner + _TOP + _BOTTOM, "legend2.y": MEMORY_HEIGHT / inner}
        top = inner
        for place, height in enumerate(heights):
            axis = f"yaxis{place + 1}" if place else "yaxis"
            changes[f"{axis}.visible"] = bool(height)
            changes[f"annotations[{place}].visible"] = bool(height)
            changes[f"annotations[{place}].y"] = top / inner
            changes[f"{axis}.domain"] = (max(top - height, 0) / inner, top / inner) if height else _HIDDEN
            top -= height + _CAPTION if height else 0
        memory = f"yaxis{len(heights) + 1}" if heights else "yaxis"
        changes[f"{memory}.domain"] = (0, MEMORY_HEIGHT / inner)
        return changes


def _small_height(num_ranks: int, num_lanes: int) -> int:
    """Return the height of one panel among many, px."""
    row = min(_MAX_ROW, max(_MIN_ROW, 160 // max(num_ranks, 1))) * (1.4 if num_lanes > 1 else 1)
    return int(min(max(row * num_ranks, 40), 320))


def _button(label: str, visible: list[bool | str], layout: dict[str, Any]) -> dict[str, Any]:
    return {"label": label, "method": "update", "args": [{"visible": visible}, layout]}
