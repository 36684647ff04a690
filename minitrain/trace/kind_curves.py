"""Memory by kind in a figure: stacked areas of one rank, its high-water mark, and the menu that chooses the rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from minitrain.analysis.memory_by_kind import GIB, STORE_NAMES, HighWater, Journals, curves_by_kind, high_water
from minitrain.analysis.memory_curves import Curve
from minitrain.analysis.timeline import Floats
from minitrain.trace.bars import Bars
from minitrain.trace.view import View

_MAX_RANKS = 16
_MAX_POINTS, _NUM_SPANS = 2000, 1000
# Paul Tol's light scheme: areas that colour-blind readers tell apart, on white and on black
_COLORS = dict(
    zip(STORE_NAMES.values(), ("#77AADD", "#99DDFF", "#EE8866", "#44BB99", "#EEDD88", "#FFAABB"), strict=True)
)


def kind_traces(bars: Bars, view: View, unit: float, journals: Journals) -> tuple[list[Any], list[int]]:
    """Return areas by kind and the mark of each rank that can be chosen, and which rank each trace belongs to.

    Those of the rank that holds most are visible.
    """
    marks = high_water(bars.timeline, journals)
    highest = max(marks, key=lambda mark: (mark.elements, -mark.rank), default=None)
    traces: list[Any] = []
    owners: list[int] = []
    for rank in _offered(len(marks), highest):
        drawn = _rank_traces(bars, view, unit, journals, marks[rank])
        for trace in drawn:
            trace.visible = highest is not None and rank == highest.rank
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
    """Return the ranks to choose from, the one that holds most first: all, or the ends too where they are many."""
    if highest is None:
        return []
    others = range(num_ranks) if num_ranks <= _MAX_RANKS else (0, num_ranks - 1)
    return list(dict.fromkeys([highest.rank, *others]))


def _rank_traces(bars: Bars, view: View, unit: float, journals: Journals, mark: HighWater) -> list[Any]:
    """Return one area a kind, and the high-water mark."""
    gib = view.bytes_per_element / GIB
    curves = curves_by_kind(bars.timeline, journals, mark.rank, bars.step_time)
    traces = []
    for name, curve in curves.items():
        time, memory = _thinned(curve, bars.step_time)
        traces.append(
            go.Scatter(
                x=time / unit,
                y=memory * gib,
                name=name,
                mode="lines",
                stackgroup=f"memory {mark.rank}",
                line={"shape": "hv", "width": 0.5, "color": _COLORS[name]},
                fillcolor=_COLORS[name],
                hovertemplate=f"rank {mark.rank}, {name}<br>%{{y:.4g}} GiB at %{{x:.6g}}<extra></extra>",
                legend="legend2",
                yaxis="y2",
            )
        )
    return [*traces, _mark(bars, view, unit, mark)]


def _thinned(curve: Curve, step_time: float) -> Curve:
    """Return a curve, or the highest value of each of equal spans where it has many steps."""
    if len(curve.time) <= _MAX_POINTS or step_time <= 0:
        return curve
    edges = np.linspace(0, step_time, _NUM_SPANS, endpoint=False)
    first = np.searchsorted(curve.time, edges, side="right") - 1
    begins = np.maximum(first, 0)
    highest: Floats = np.maximum.reduceat(curve.memory, np.append(begins, len(curve.memory) - 1))[:-1]
    return Curve(edges, np.where(first < 0, 0.0, highest))


def _mark(bars: Bars, view: View, unit: float, mark: HighWater) -> Any:
    """Return the point where a rank held most, which says what made it."""
    text = mark.text(bars.timeline, view.bytes_per_element).replace(" (", "<br>(")
    return go.Scatter(
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
