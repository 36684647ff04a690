"""A Gantt chart whose bars are too many to draw: a heat map of how much each rank computes over time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from minitrain.analysis.timeline import Bools, Floats, Ints
from minitrain.trace.bars import Bars

MAX_ROWS = 512
NUM_BINS = 1000
HEAT_SCALE = [[0, "#F2F2F2"], [0.25, "#B9DDF1"], [0.6, "#56B4E9"], [1, "#08519C"]]


class Heat(NamedTuple):
    """Shares of time of groups of ranks in equal spans of the step, 0 to 1.

    Args:
        ranks_per_row: how many neighbouring ranks share a row.
        computing: share with compute at work, (num_rows, num_bins).
        communicating: share with any communication under way, (num_rows, num_bins).
    """

    ranks_per_row: int
    computing: Floats
    communicating: Floats


def heat(bars: Bars, num_bins: int = NUM_BINS) -> Heat:
    """Return the shares of time over the whole step."""
    num_ranks = bars.timeline.num_ranks
    per_row = -(-num_ranks // MAX_ROWS)
    num_rows = -(-num_ranks // per_row) if per_row else 0
    ranks_in_row = np.bincount(np.arange(num_ranks) // max(per_row, 1), minlength=num_rows)[:, None]
    on_compute = np.append(bars.timeline.computes, False)[bars.event] & ~bars.waits
    computing = _covered(bars, on_compute, per_row, (num_rows, num_bins)) / ranks_in_row
    communicating = _covered(bars, ~on_compute & ~bars.waits, per_row, (num_rows, num_bins)) / ranks_in_row
    return Heat(per_row, np.clip(computing, 0, 1), np.clip(communicating, 0, 1))


def _covered(bars: Bars, chosen: Bools, ranks_per_row: int, shape: tuple[int, int]) -> Floats:
    """Return how much of each bin the chosen bars cover, in bins."""
    num_rows, num_bins = shape
    row = bars.rank[chosen] // max(ranks_per_row, 1)
    scale = num_bins / bars.step_time if bars.step_time > 0 else 0.0
    start = np.clip(bars.start[chosen] * scale, 0, num_bins)
    end = np.clip((bars.start + bars.duration)[chosen] * scale, 0, num_bins)
    # the integral of a bar from 0 to x is max(x - start, 0) - max(x - end, 0); differences of it are the coverage
    return np.diff(_ramp(row, start, num_rows, num_bins) - _ramp(row, end, num_rows, num_bins), axis=1)


def _ramp(row: Ints, corner: Floats, num_rows: int, num_bins: int) -> Floats:
    """Return the sum of max(x - corner, 0) at every edge x of the bins, (num_rows, num_bins + 1)."""
    width = num_bins + 2
    edge = np.ceil(corner).astype(np.int64)
    place = row * width + edge
    count = np.bincount(place, minlength=num_rows * width).reshape(num_rows, width)
    offset = np.bincount(place, weights=edge - corner, minlength=num_rows * width).reshape(num_rows, width)
    began = np.cumsum(count, axis=1)
    slope = np.zeros((num_rows, width))
    slope[:, 1:] = np.cumsum(began[:, :-1], axis=1)
    return (slope + np.cumsum(offset, axis=1))[:, : num_bins + 1]


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
