"""The way from the times of one run to those of another of the same program, and what is on its longest paths.

`Way.walk` takes all durations and lags from those of A to those of B at the same pace, and adds up how much each
operation adds to the step time.
"""

from __future__ import annotations

import numpy as np

from minitrain.run.analysis.moments import NEAR, Case, LongestPath, Moments

MOST_PATHS = 400
"""Paths that are looked for on the way from A to B; what lies between more is divided between its ends."""


class Way:
    """The way from the durations and lags of A to those of B, at the same pace for all."""

    def __init__(self, program: Moments, a: Case, b: Case) -> None:
        self._program, self._a = program, a
        self.more = Case(b.durations - a.durations, b.lags - a.lags)
        self.of_events, self.of_moments = np.zeros(len(a.durations)), np.zeros(len(a.lags))
        self._left = MOST_PATHS

    def walk(self) -> None:
        """Add up, for each duration and lag, its difference times the share of the way for which it is on the path."""
        stretches = [(0.0, self._at(0.0), 1.0, self._at(1.0))]
        while stretches:
            low, first, high, last = stretches.pop()
            between = self._between(low, first, high, last)
            if between is not None:
                middle, path = between
                stretches += [(low, first, middle, path), (middle, path, high, last)]

    def _at(self, share: float) -> tuple[LongestPath, float]:
        """Return the longest path at a share of the way, and by how much it grows over the whole way, s."""
        a, more = self._a, self.more
        case = Case(a.durations + share * more.durations, a.lags + share * more.lags)
        path = self._program.longest_path(case)
        return path, float(more.durations[path.events].sum() + more.lags[path.moments].sum())

    def _between(
        self, low: float, first: tuple[LongestPath, float], high: float, last: tuple[LongestPath, float]
    ) -> tuple[float, tuple[LongestPath, float]] | None:
        """Divide a stretch between the paths of its ends, or return a longer one between, and where it was found.

        The step time is convex on the way. So where the tangents of both ends meet on it, there is no other path.
        """
        (path, slope), (other, steeper) = first, last
        width, rise = high - low, other.length - path.length
        if steeper <= slope:
            self._add(path, width)
            return None
        reach = min(max((steeper * width - rise) / (steeper - slope), 0.0), width)  # of the first path
        if self._left > 0 and 0.0 < reach < width:
            self._left -= 1
            found = self._at(low + reach)
            if found[0].length - (path.length + slope * reach) > NEAR * other.length:
                return low + reach, found
        self._add(path, reach)
        self._add(other, width - reach)
        return None

    def _add(self, path: LongestPath, share: float) -> None:
        self.of_events[path.events] += share * self.more.durations[path.events]
        self.of_moments[path.moments] += share * self.more.lags[path.moments]
