"""`Histogram`: how a measured duration is spread around its median.

It is a file of its own, since measurements are made and kept apart from the noise that they describe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from minitrain.analysis.timeline import Floats
from minitrain.errors import UsageError


@dataclass(frozen=True, slots=True)
class Histogram:
    """Measured durations of one operation that was repeated, in bins; a draw is uniform within its bin.

    What is drawn is the factor by which a duration differs from the median, so that the unit does not matter, and a
    measurement of one size is applied to all sizes.

    Args:
        edges: the bins' edges, ascending, in any unit of time, (num_bins + 1,).
        counts: how many durations each bin has, (num_bins,).

    Raises:
        UsageError: there is no bin, edges do not ascend from 0 or more, or no bin counts anything.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]

    def __post_init__(self) -> None:
        edges, counts = tuple(self.edges), tuple(self.counts)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "counts", counts)
        if not _is_histogram(edges, counts):
            raise UsageError(
                "a histogram needs n + 1 finite edges that ascend from 0 or more and n counts of 0 or more, not all "
                f"0; got edges {list(edges)!r:.80} and counts {list(counts)!r:.80}; `Histogram.of(durations)` makes "
                "one of measured durations"
            )

    @staticmethod
    def of(durations: Sequence[float], num_bins: int = 64) -> Histogram:
        """Return the histogram of measured durations, in bins of equal width.

        Args:
            durations: at least two that differ, in any unit of time.
            num_bins: how many bins.
        """
        measured = np.asarray(durations, dtype=float)
        is_usable = measured.ndim == 1 and len(np.unique(measured)) > 1 and bool(np.isfinite(measured).all())
        if not is_usable:
            raise UsageError(
                f"a histogram is made of at least two measured durations that differ, got {durations!r:.80}"
            )
        counts, edges = np.histogram(measured, bins=num_bins)
        return Histogram(tuple(edges.tolist()), tuple(counts.tolist()))

    def factors(self, uniform: Floats) -> Floats:
        """Return factors on a duration, with median 1, for numbers drawn uniformly from 0 to 1, of any shape."""
        shares = np.append(0.0, np.cumsum(self.counts)) / math.fsum(self.counts)
        median = float(np.interp(0.5, shares, self.edges))
        factors: Floats = np.interp(uniform, shares, self.edges) / median
        return factors


def _is_histogram(edges: tuple[float, ...], counts: tuple[float, ...]) -> bool:
    """Return whether these are the edges and counts of a histogram."""
    if len(counts) < 1 or len(edges) != len(counts) + 1 or not all(map(math.isfinite, (*edges, *counts))):
        return False
    ascend = edges[0] >= 0 and all(low < high for low, high in pairwise(edges))
    return ascend and min(counts) >= 0 and max(counts) > 0
