"""Which lane of its rank an operation is drawn on: the main one, or one beside it for what overlaps."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from minitrain.analysis.intervals import sweep
from minitrain.analysis.timeline import Bools, Ints, Timeline

_ROUNDING = 1e-12
MAX_LANES = 4


def lanes(timeline: Timeline) -> Ints:
    """Return the lane of every event: 0, or 1 to `MAX_LANES` - 1 for an operation that overlaps others.

    What was launched to overlap is moved off the main lane. Where the rest of a rank still overlaps (a program of
    several tasks), all its communication is.
    """
    beside = timeline.overlaps & ~timeline.computes
    crowded = _crowded_ranks(timeline, ~beside)
    beside |= crowded[timeline.rank] & ~timeline.computes
    lane = np.zeros(timeline.num_events, np.int64)
    chosen = np.flatnonzero(beside & (timeline.duration > 0))
    lane[chosen] = 1 + _packed(timeline, chosen)
    return lane


def _crowded_ranks(timeline: Timeline, chosen: Bools) -> Bools:
    """Tell on which ranks some of the chosen events overlap one another, (num_ranks,)."""
    swept = sweep(timeline.rank[chosen], timeline.time[chosen], timeline.end[chosen])
    overlaps = swept.busy_until - swept.start > _ROUNDING * timeline.step_time
    crowded = np.zeros(timeline.num_ranks, dtype=bool)
    crowded[swept.rank[overlaps & (swept.end > swept.start)]] = True
    return crowded


def _packed(timeline: Timeline, chosen: Ints) -> Ints:
    """Return the first free lane for each event, in the order of time; the last lane takes what finds none."""
    order = np.lexsort((timeline.time[chosen], timeline.rank[chosen]))
    rows = zip(
        timeline.rank[chosen][order].tolist(),
        timeline.time[chosen][order].tolist(),
        timeline.end[chosen][order].tolist(),
        strict=True,
    )
    tolerance = _ROUNDING * timeline.step_time
    packed, current = [], -1
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for rank, start, end in rows:
        if rank != current:
            current, busy, free = rank, [], list(range(MAX_LANES - 1))
        while busy and busy[0][0] <= start + tolerance:
            heappush(free, heappop(busy)[1])
        lane = heappop(free) if free else MAX_LANES - 2
        heappush(busy, (end, lane))
        packed.append(lane)
    found = np.empty(len(chosen), np.int64)
    found[order] = packed
    return found
