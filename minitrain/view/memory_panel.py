"""The memory below a Gantt chart: a curve a rank, or a band for many ranks; or areas by kind for one rank.

Of a run with journals, the memory by kind of the rank that holds most is shown first. A menu switches to another rank,
or to the totals of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minitrain.run.analysis.labels import GIB
from minitrain.run.analysis.memory_over_time import (
    STORE_NAMES,
    Curve,
    HighWater,
    Journals,
    curves_by_kind,
    high_water,
    highest_in_spans,
    memory_curve,
)
from minitrain.run.analysis.timeline import Floats
from minitrain.view.bars import Bars
from minitrain.view.drawing import Properties, scatter
from minitrain.view.explanation_panel import name_of_ranks
from minitrain.view.layout import View

MAX_CURVES = 16
_MOST_EVENTS = 20_000  # whose memory is drawn step by step; of more, the highest of equal spans of time
_NUM_SPANS = 1000
# viridis without its ends, and lighter at the beginning, so that all are seen on white and on black
_RANK_SCALE = ("#6A5ACD", "#3E78B2", "#2A8C98", "#1FA187", "#4AC16D", "#A0DA39")
_MAX_RANKS = 16  # in the menu
_MAX_POINTS = 2000  # of one kind
# Paul Tol's light scheme: areas that colour-blind readers tell apart, on white and on black
_KIND_COLORS = dict(
    zip(
        STORE_NAMES.values(), ("#77AADD", "#99DDFF", "#EE8866", "#44BB99", "#BBCC33", "#EEDD88", "#FFAABB"), strict=True
    )
)


def memory_traces(bars: Bars, view: View, unit: float) -> list[Properties]:
    """Return the traces of the memory panel, in GiB over time in `unit` s."""
    gib = view.bytes_per_element / GIB
    if bars.timeline.num_ranks > MAX_CURVES:
        return _band(bars, gib, unit)
    exact = bars.timeline.num_events <= _MOST_EVENTS
    spans = None if exact else highest_in_spans(bars.timeline, bars.step_end, _NUM_SPANS) * gib
    curves: list[tuple[Floats, Floats]] = []
    for rank in range(bars.timeline.num_ranks):
        if spans is None:
            time, memory = memory_curve(bars.timeline, rank, bars.step_end)
            curves.append((time / unit, memory * gib))
        else:
            curves.append((np.linspace(0, bars.step_end / unit, _NUM_SPANS, endpoint=False), spans[rank]))
    return [_line(bars, ranks, *curves[ranks[0]]) for ranks in _alike(curves)]


def _alike(curves: Sequence[tuple[Floats, Floats]]) -> list[list[int]]:
    """Return the ranks by curve: of curves that cover one another, only the last would be seen."""
    found: dict[tuple[bytes, bytes], list[int]] = {}
    for rank, (time, memory) in enumerate(curves):
        found.setdefault((time.tobytes(), memory.tobytes()), []).append(rank)
    return list(found.values())


def peak_gib(bars: Bars, view: View, journals: Journals = ()) -> float:
    """Return the most memory that any rank held, GiB; journals show it between events too."""
    marks = [mark.elements for mark in high_water(bars.timeline, journals)]
    return max(marks, default=0.0) * view.bytes_per_element / GIB


def rank_color(rank: int, num_ranks: int) -> str:
    """Return the colour of a rank's curve, on a scale from the first rank to the last."""
    place = rank / max(num_ranks - 1, 1) * (len(_RANK_SCALE) - 1)
    low = min(int(place), len(_RANK_SCALE) - 2)
    pairs = zip(_channels(_RANK_SCALE[low]), _channels(_RANK_SCALE[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in pairs)


def _channels(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


def _line(bars: Bars, ranks: Sequence[int], time: Floats, memory: Floats) -> Properties:
    """Return the curve of a rank, or of several with the same memory."""
    name = name_of_ranks(ranks, bars.timeline.rank_names)
    return scatter(
        x=time,
        y=memory,
        name=name,
        mode="lines",
        line={"shape": "hv", "width": 1.6, "color": rank_color(ranks[0], bars.timeline.num_ranks)},
        hovertemplate=f"{name}<br>%{{y:.4g}} GiB at %{{x:.6g}}<extra></extra>",
        legend="legend2",
        yaxis="y2",
    )


def _band(bars: Bars, gib: float, unit: float) -> list[Properties]:
    """Return the highest and lowest rank at every moment, and the curve of the rank with the highest peak."""
    spans = highest_in_spans(bars.timeline, bars.step_end, _NUM_SPANS) * gib
    time = np.linspace(0, bars.step_end / unit, _NUM_SPANS, endpoint=False)
    top = int(np.argmax(spans.max(axis=1)))
    common = {"x": time, "mode": "lines", "legend": "legend2", "yaxis": "y2"}
    edge = {"shape": "hv", "width": 1, "color": "#4C86C6"}
    hover = "%{y:.4g} GiB at %{x:.6g}<extra></extra>"
    low = scatter(y=spans.min(axis=0), name="lowest rank", line=edge, hovertemplate="lowest " + hover, **common)
    high = scatter(
        y=spans.max(axis=0),
        name="highest rank",
        line=edge,
        fill="tonexty",
        fillcolor="rgba(76,134,198,0.25)",
        hovertemplate="highest " + hover,
        **common,
    )
    peak = _line(bars, [top], time, spans[top])
    peak |= {"name": f"{peak['name']} (peak)", "line": {**peak["line"], "color": "#D55E00"}}
    return [low, high, peak]


def kind_traces(bars: Bars, view: View, unit: float, journals: Journals) -> tuple[list[Properties], list[int]]:
    """Return areas by kind and the high-water mark of each rank in the menu, and the rank of each of these traces.

    Only those of the rank that holds most are visible.
    """
    marks = high_water(bars.timeline, journals)
    highest = max(marks, key=lambda mark: (mark.elements, -mark.rank), default=None)
    traces: list[Properties] = []
    owners: list[int] = []
    for rank in _offered(len(marks), highest):
        drawn = _rank_traces(bars, view, unit, journals, marks[rank])
        for trace in drawn:
            trace["visible"] = highest is not None and rank == highest.rank
        traces += drawn
        owners += [rank] * len(drawn)
    return traces, owners


def rank_menu(num_totals: int, owners: list[int], y: float) -> list[dict[str, Any]]:
    """Return the menu that shows one rank's memory by kind, or the totals of all ranks.

    Args:
        num_totals: how many traces of totals come first in the figure.
        owners: the rank of each trace by kind, which follow.
        y: lower edge of the menu, share of the figure's inner height.
    """
    ranks = list(dict.fromkeys(owners))
    every = list(range(num_totals + len(owners)))
    buttons = [_button(f"memory of rank {rank} by kind", num_totals, owners, rank, every) for rank in ranks]
    buttons.append(_button("memory of all ranks", num_totals, owners, None, every))
    place = {"x": 0, "xanchor": "left", "y": y, "yanchor": "bottom", "pad": {"b": 2, "t": 0}}
    style = {"font": {"size": 11}, "showactive": True, "active": 0, "type": "dropdown", "direction": "down"}
    return [{"buttons": buttons, **place, **style}] if ranks else []


def _button(label: str, num_totals: int, owners: list[int], rank: int | None, traces: list[int]) -> dict[str, Any]:
    """Return the entry that shows one rank, or the totals for None."""
    visible = [rank is None] * num_totals + [owner == rank for owner in owners]
    return {"label": label, "method": "restyle", "args": [{"visible": visible}, traces]}


def _offered(num_ranks: int, highest: HighWater | None) -> list[int]:
    """Return the ranks of the menu: the one that holds most, then all others or, of many, the first and the last."""
    if highest is None:
        return []
    others = range(num_ranks) if num_ranks <= _MAX_RANKS else (0, num_ranks - 1)
    return list(dict.fromkeys([highest.rank, *others]))


def _rank_traces(bars: Bars, view: View, unit: float, journals: Journals, mark: HighWater) -> list[Properties]:
    """Return one area a kind, and the high-water mark."""
    gib = view.bytes_per_element / GIB
    curves = curves_by_kind(bars.timeline, journals, mark.rank, bars.step_end)
    traces = []
    for name, curve in curves.items():
        time, memory = _thinned(curve, bars.step_end)
        traces.append(
            scatter(
                x=time / unit,
                y=memory * gib,
                name=name,
                mode="lines",
                stackgroup=f"memory {mark.rank}",
                line={"shape": "hv", "width": 0.5, "color": _KIND_COLORS[name]},
                fillcolor=_KIND_COLORS[name],
                hovertemplate=f"rank {mark.rank}, {name}<br>%{{y:.4g}} GiB at %{{x:.6g}}<extra></extra>",
                legend="legend2",
                yaxis="y2",
            )
        )
    return [*traces, _mark(bars, view, unit, mark)]


def _thinned(curve: Curve, step_end: float) -> Curve:
    """Return a curve, or the highest value of each of equal spans where it has many steps."""
    if len(curve.time) <= _MAX_POINTS or step_end <= 0:
        return curve
    edges = np.linspace(0, step_end, _NUM_SPANS, endpoint=False)
    first = np.searchsorted(curve.time, edges, side="right") - 1
    begins = np.maximum(first, 0)
    highest: Floats = np.maximum.reduceat(curve.memory, np.append(begins, len(curve.memory) - 1))[:-1]
    return Curve(edges, np.where(first < 0, 0.0, highest))


def _mark(bars: Bars, view: View, unit: float, mark: HighWater) -> Properties:
    """Return the point where a rank held most, with its time and what it held then as text."""
    text = mark.text(bars.timeline, view.bytes_per_element).replace(" (", "<br>(")
    return scatter(
        x=[mark.time / unit],
        y=[mark.elements * view.bytes_per_element / GIB],
        name="high-water mark",
        mode="markers",
        marker={"symbol": "triangle-down", "size": 11, "color": "#D55E00"},
        hovertext=[text],
        hoverinfo="text",
        cliponaxis=False,
        legend="legend2",
        yaxis="y2",
    )
