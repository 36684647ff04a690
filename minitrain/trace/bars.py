"""What a Gantt chart draws: a bar for every operation and for every wait, each on a lane of its rank.

A rank has one main lane. Communication that overlaps with other work is drawn on lanes beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from minitrain.analysis.breakdown import checked_end
from minitrain.analysis.explanation import Gaps, find_gaps
from minitrain.analysis.timeline import NONE, Bools, Floats, Ints, Timeline, sweep
from minitrain.trace.colors import RECOMPUTED, WAITING, Kind, kind_of, legend_place

_ROUNDING = 1e-12  # of the time shown; a shorter gap is a rounding error
MAX_LANES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """Bars by rank and start.

    Args:
        timeline: the run.
        step_end: when the step ends, s.
        rank: row of each bar, (num_bars,), like all that follow.
        start: its left end, s.
        duration: its length, s; never 0.
        kind: index into `kinds`.
        lane: 0 for the rank's main lane, 1 and up for what overlaps it.
        event: the operation, or the one that ended a wait; `NONE` for a wait until the step's end.
        last: the last operation of a bar that stands for several consecutive ones; otherwise `event`.
        gap: index into `gaps` of a wait, `NONE` for an operation.
        kinds: the look of each kind, in the order of the legend; "waiting" is the last.
        gaps: every idle time, with its reason.
    """

    timeline: Timeline
    step_end: float
    rank: Ints
    start: Floats
    duration: Floats
    kind: Ints
    lane: Ints
    event: Ints
    last: Ints
    gap: Ints
    kinds: tuple[Kind, ...]
    gaps: Gaps

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def num_lanes(self) -> int:
        """Number of lanes of the rank that has the most."""
        return int(self.lane.max(initial=0)) + 1

    @property
    def waits(self) -> Bools:
        """Whether each bar is a wait, (num_bars,)."""
        waits: Bools = self.kind == len(self.kinds) - 1
        return waits

    def take(self, chosen: Ints | Bools) -> Bars:
        """Return some of the bars."""
        return Bars(
            self.timeline,
            self.step_end,
            self.rank[chosen],
            self.start[chosen],
            self.duration[chosen],
            self.kind[chosen],
            self.lane[chosen],
            self.event[chosen],
            self.last[chosen],
            self.gap[chosen],
            self.kinds,
            self.gaps,
        )


def make_bars(timeline: Timeline, step_end: float | None = None, gaps: Gaps | None = None) -> Bars:
    """Return a bar for every operation that takes time, and for every gap in which a rank waits.

    Args:
        timeline: the run.
        step_end: when the step ends, s; the latest end of all ranks if None.
        gaps: the idle times, if they are known already.
    """
    end = checked_end(timeline.last_end, step_end)
    codes, kinds = _kinds(timeline)
    gaps = find_gaps(timeline, end) if gaps is None else gaps
    num_waits, drawn = len(gaps), np.flatnonzero(timeline.duration > 0)
    rank = np.concatenate([timeline.rank[drawn], gaps.rank])
    start = np.concatenate([timeline.time[drawn], gaps.start])
    order = np.lexsort((start, rank))
    event = np.concatenate([drawn, gaps.event])[order]
    return Bars(
        timeline=timeline,
        step_end=end,
        rank=rank[order],
        start=start[order],
        duration=np.concatenate([timeline.duration[drawn], gaps.duration])[order],
        kind=np.concatenate([codes[drawn], np.full(num_waits, len(kinds) - 1)])[order],
        lane=np.concatenate([lanes(timeline)[drawn], np.zeros(num_waits, np.int64)])[order],
        event=event,
        last=event,
        gap=np.concatenate([np.full(len(drawn), NONE), np.arange(num_waits)])[order],
        kinds=kinds,
        gaps=gaps,
    )


def _kinds(timeline: Timeline) -> tuple[Ints, tuple[Kind, ...]]:
    """Return the kind of every event that is drawn, and the kinds that occur, with "waiting" last."""
    typs = [*timeline.typs, RECOMPUTED]
    codes = np.where(timeline.recomputed, len(typs) - 1, timeline.typ)
    drawn = np.flatnonzero(timeline.duration > 0)
    found, first = np.unique(codes[drawn], return_index=True)
    streams = [timeline.streams[stream].kind for stream in timeline.stream[drawn[first]].tolist()]
    stream_of = dict(zip(found.tolist(), streams, strict=True))
    order = sorted(stream_of, key=lambda code: legend_place(typs[code]))
    place = np.zeros(len(typs), np.int64)
    place[order] = np.arange(len(order))
    return place[codes], (*(kind_of(typs[code], stream_of[code]) for code in order), kind_of(WAITING))


def lanes(timeline: Timeline) -> Ints:
    """Return the lane of every event: 0, or 1 to `MAX_LANES` - 1 for an operation that overlaps others.

    Communication that was launched to overlap is moved off the main lane. On a rank where other operations still
    overlap (its program has several tasks), all communication is.
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
    overlaps = swept.busy_until - swept.start > _ROUNDING * timeline.last_end
    crowded = np.zeros(timeline.num_ranks, dtype=bool)
    crowded[swept.rank[overlaps & (swept.end > swept.start)]] = True
    return crowded


def _packed(timeline: Timeline, chosen: Ints) -> Ints:
    """Return the first free lane for each event, in the order of time, or the last lane where none is free."""
    order = np.lexsort((timeline.time[chosen], timeline.rank[chosen]))
    rows = zip(
        timeline.rank[chosen][order].tolist(),
        timeline.time[chosen][order].tolist(),
        timeline.end[chosen][order].tolist(),
        strict=True,
    )
    tolerance = _ROUNDING * timeline.last_end
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


def merged(bars: Bars) -> Bars:
    """Return bars with consecutive ones that differ only in their layer joined to one."""
    first, last = rows_of_layers(bars)
    whole = bars.take(first)
    end = bars.start[last] + bars.duration[last]
    joined = replace(whole, duration=end - whole.start, last=bars.last[last])
    return joined.take(np.lexsort((joined.start, joined.rank)))


def rows_of_layers(bars: Bars) -> tuple[Ints, Ints]:
    """Return the first and the last of each sequence of bars on a lane that differ only in their layer."""
    if not len(bars):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.lexsort((bars.start, bars.lane, bars.rank))
    part = bars.take(order)
    samples = np.append(bars.timeline.samples, NONE)[part.event]
    end = part.start + part.duration
    is_new = np.ones(len(bars), dtype=bool)
    is_new[1:] = part.waits[1:] | (part.start[1:] - end[:-1] > _ROUNDING * bars.step_end)
    for column in (part.rank, part.lane, part.kind, samples):
        is_new[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(is_new)
    return order[first], order[np.append(first[1:], len(bars)) - 1]
