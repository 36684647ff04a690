"""The memory panel of a figure: one curve a rank, or a band where the ranks are many."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from minitrain.analysis.memory_by_kind import Journals, high_water
from minitrain.analysis.memory_curves import curve, highest_in_spans
from minitrain.analysis.timeline import Floats
from minitrain.trace.bars import Bars
from minitrain.trace.texts import GIB
from minitrain.trace.view import View

MAX_CURVES = 16
_MAX_POINTS = 20_000
_NUM_SPANS = 1000
# viridis without its ends, which vanish on white or on black
_SCALE = ("#46327E", "#365C8D", "#277F8E", "#1FA187", "#4AC16D", "#A0DA39")


def memory_traces(bars: Bars, view: View, unit: float) -> list[Any]:
    """Return the traces of the memory panel, in GiB over time in `unit` s."""
    gib = view.bytes_per_element / GIB
    if bars.timeline.num_ranks > MAX_CURVES:
        return _band(bars, gib, unit)
    exact = bars.timeline.num_events <= _MAX_POINTS
    spans = None if exact else highest_in_spans(bars.timeline, bars.step_time, _NUM_SPANS) * gib
    traces = []
    for rank in range(bars.timeline.num_ranks):
        if spans is None:
            time, memory = curve(bars.timeline, rank, bars.step_time)
            traces.append(_line(rank, bars.timeline.num_ranks, time / unit, memory * gib))
        else:
            time = np.linspace(0, bars.step_time / unit, _NUM_SPANS, endpoint=False)
            traces.append(_line(rank, bars.timeline.num_ranks, time, spans[rank]))
    return traces


def peak_gib(bars: Bars, view: View, journals: Journals = ()) -> float:
    """Return the most memory any rank held, GiB: in a journal also between events."""
    marks = [mark.elements for mark in high_water(bars.timeline, journals)]
    return max(marks, default=0.0) * view.bytes_per_element / GIB


def rank_color(rank: int, num_ranks: int) -> str:
    """Return the colour of a rank's curve, on a scale from the first rank to the last."""
    place = rank / max(num_ranks - 1, 1) * (len(_SCALE) - 1)
    low = min(int(place), len(_SCALE) - 2)
    pairs = zip(_channels(_SCALE[low]), _channels(_SCALE[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in pairs)


def _channels(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


def _line(rank: int, num_ranks: int, time: Floats, memory: Floats) -> Any:
    """Return one rank's curve."""
    return go.Scatter(
        x=time,
        y=memory,
        name=f"rank {rank}",
        mode="lines",
        line={"shape": "hv", "width": 1.6, "color": rank_color(rank, num_ranks)},
        hovertemplate=f"rank {rank}<br>%{{y:.4g}} GiB at %{{x:.6g}}<extra></extra>",
        legend="legend2",
        yaxis="y2",
    )


def _band(bars: Bars, gib: float, unit: float) -> list[Any]:
    """Return the highest and lowest rank at every moment, and the curve of the rank with the highest peak."""
    spans = highest_in_spans(bars.timeline, bars.step_time, _NUM_SPANS) * gib
    time = np.linspace(0, bars.step_time / unit, _NUM_SPANS, endpoint=False)
    num_ranks, top = bars.timeline.num_ranks, int(np.argmax(spans.max(axis=1)))
    common = {"x": time, "mode": "lines", "legend": "legend2", "yaxis": "y2"}
    edge = {"shape": "hv", "width": 1, "color": "#365C8D"}
    hover = "%{y:.4g} GiB at %{x:.6g}<extra></extra>"
    low = go.Scatter(y=spans.min(axis=0), name="lowest rank", line=edge, hovertemplate="lowest " + hover, **common)
    high = go.Scatter(
        y=spans.max(axis=0),
        name="highest rank",
        line=edge,
        fill="tonexty",
        fillcolor="rgba(54,92,141,0.25)",
        hovertemplate="highest " + hover,
        **common,
    )
    peak = _line(top, num_ranks, time, spans[top]).update(name=f"rank {top} (peak)", line={"color": "#D55E00"})
    return [low, high, peak]
