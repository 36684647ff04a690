"""Unions and gaps of the intervals of many ranks at once, in numpy and without rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minitrain.analysis.timeline import Floats, Ints, Timeline


@dataclass(frozen=True, slots=True, eq=False)
class SweptIntervals:
    """Intervals in the order of (rank, start, end), each with the latest end of those before it on its rank.

    Args:
        order: index of each interval in the arrays that were swept, (n,).
        rank: rank of each interval, (n,).
        start: its start, s, (n,).
        end: its end, s, (n,).
        busy_until: the latest end of the rank's earlier intervals, `begin` for the first one, s, (n,).
        begin: when the step begins, s; what lies before it covers nothing.
    """

    order: Ints
    rank: Ints
    start: Floats
    end: Floats
    busy_until: Floats
    begin: float = 0.0

    def covered(self, num_ranks: int) -> Floats:
        """Return the length of each rank's union of intervals, s, (num_ranks,)."""
        new = np.maximum(self.end - np.maximum(self.start, self.busy_until), 0.0)
        lengths: Floats = np.bincount(self.rank, weights=new, minlength=num_ranks).astype(float)
        return lengths

    def last_end(self, num_ranks: int) -> Floats:
        """Return the end of each rank's last interval, `begin` where it has none, s, (num_ranks,)."""
        last = np.full(num_ranks, self.begin)
        np.maximum.at(last, self.rank, self.end)
        return last


def sweep(rank: Ints, start: Floats, end: Floats, begin: float = 0.0) -> SweptIntervals:
    """Sort intervals and find how long each rank was busy before each of them.

    The running maximum is not taken of the ends themselves, but of their places among all sorted ends, with the rank
    as the leading digit. So one pass serves all ranks, and the results are the same floats that were given.
    """
    order = np.lexsort((end, start, rank))
    rank, start, end = rank[order], start[order], end[order]
    num = len(order)
    sorted_ends = np.sort(end)
    keys = np.maximum.accumulate(rank * num + np.searchsorted(sorted_ends, end)) if num else rank
    busy_until = np.full(num, begin)
    follows = rank[1:] == rank[:-1]
    busy_until[1:] = np.where(follows, np.maximum(sorted_ends[keys[:-1] % max(num, 1)], begin), begin)
    return SweptIntervals(order, rank, start, end, busy_until, begin)


def sweep_timeline(timeline: Timeline) -> SweptIntervals:
    """Sweep the events of all streams of each rank, from the beginning of the step on."""
    return sweep(timeline.rank, timeline.time, timeline.end, timeline.begin)
