"""A Gantt chart whose bars are too many to draw: a heat map whose cells show what their rank mostly does in them.

The colour of a cell says what takes most of its time (computing, exposed communication or waiting), and its strength
how much of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minitrain.analysis.timeline import Bools, Floats, Ints
from minitrain.trace.bars import Bars
from minitrain.trace.colors import COMPUTING, EXPOSED, IDLE
from minitrain.trace.drawing import Properties, scatter

MAX_ROWS = 512
NUM_BINS = 1000
BANDS = (IDLE, COMPUTING, EXPOSED)
STEPS = 67  # colours of a use, from a third of a cell's time to all of it
_ROUNDING = 1e-9
_TOP = STEPS * len(BANDS) - 1


class Heat(NamedTuple):
    """Shares of time of groups of ranks in equal spans of the step, 0 to 1, which add up to 1.

    Args:
        ranks_per_row: how many neighbouring ranks share a row.
        computing: share with compute at work, (num_rows, num_bins).
        exposed: share communicating with no compute beside it, (num_rows, num_bins).
        waiting: share with nothing at work, (num_rows, num_bins).
    """

    ranks_per_row: int
    computing: Floats
    exposed: Floats
    waiting: Floats

    def codes(self) -> Ints:
        """Return what is done most and how much, as a place on the scale of colours, (num_rows, num_bins)."""
        shares = np.rint(100 * np.stack([self.waiting, self.computing, self.exposed])).astype(np.int64)
        most = shares.argmax(axis=0)
        codes: Ints = STEPS * most + np.clip(shares.max(axis=0) - (100 - STEPS + 1), 0, STEPS - 1)
        return codes


def heat(bars: Bars, num_bins: int = NUM_BINS) -> Heat:
    """Return the shares of time over the whole step."""
    num_ranks = bars.timeline.num_ranks
    per_row = -(-num_ranks // MAX_ROWS)
    num_rows = -(-num_ranks // per_row) if per_row else 0
    ranks_in_row = np.bincount(np.arange(num_ranks) // max(per_row, 1), minlength=num_rows)[:, None]
    on_compute = np.append(bars.timeline.computes, False)[bars.event] & ~bars.waits
    computing, waiting = (
        np.clip(_covered(bars, chosen, per_row, (num_rows, num_bins)) / ranks_in_row, 0, 1)
        for chosen in (on_compute, bars.waits)
    )
    # a rank computes, waits, or does neither: then it communicates with no compute beside it
    exposed = 1 - computing - waiting
    return Heat(per_row, computing, np.where(exposed > _ROUNDING, exposed, 0.0), waiting)


def _covered(bars: Bars, chosen: Bools, ranks_per_row: int, shape: tuple[int, int]) -> Floats:
    """Return how much of each bin the chosen bars cover, in bins."""
    num_rows, num_bins = shape
    row = bars.rank[chosen] // max(ranks_per_row, 1)
    step_end = bars.step_end if bars.step_end > 0 else np.inf
    start = np.clip(bars.start[chosen] / step_end * num_bins, 0, num_bins)
    end = np.clip((bars.start + bars.duration)[chosen] / step_end * num_bins, 0, num_bins)
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


def scale(dark: bool = False) -> list[tuple[float, str]]:
    """Return the scale of colours: a band for each use of time, from pale to strong."""
    stops = []
    for place, use in enumerate(BANDS):
        pale, strong = (use.dark_pale, use.dark) if dark else (use.pale, use.color)
        stops += [(place * STEPS / _TOP, pale), ((place * STEPS + STEPS - 1) / _TOP, strong)]
    return stops


def heat_trace(bars: Bars, unit: float) -> Properties:
    """Return the heat map of what ranks mostly do."""
    shares = heat(bars)
    step = bars.step_end / unit / shares.computing.shape[1]
    whose = "" if bars.timeline.rank_names else "rank %{y:.0f} "  # the axis has names, which a hover text cannot show
    return {
        "type": "heatmap",
        "z": shares.codes().astype(np.uint8),
        "customdata": np.rint(shares.computing * 100).astype(np.uint8),
        "text": np.rint(shares.exposed * 100).astype(np.uint8),
        "x0": step / 2,
        "dx": step,
        "y0": (shares.ranks_per_row - 1) / 2,
        "dy": shares.ranks_per_row,
        "zmin": 0,
        "zmax": _TOP,
        "colorscale": scale(),
        "showscale": False,
        "hovertemplate": f"{whose}at %{{x:.6g}}<br>{COMPUTING.name} %{{customdata}} %"
        f"<br>{EXPOSED.name} %{{text}} %<br>{IDLE.name} the rest<extra></extra>",
        "name": "what ranks mostly do",
    }


def heat_legend() -> list[Properties]:
    """Return a square for each use of time, for the legend alone."""
    words = {COMPUTING: "mostly computing", EXPOSED: "mostly communicating", IDLE: "mostly waiting"}
    return [
        scatter(
            x=[None],
            y=[None],
            name=name,
            mode="markers",
            marker={"color": use.color, "symbol": "square", "size": 12},
            hoverinfo="skip",
        )
        for use, name in words.items()
    ]
