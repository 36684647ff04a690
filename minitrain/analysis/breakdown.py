"""Where each rank's step time goes: computing, exposed communication and waiting, which add up to it.

A rank computes while its compute stream works, communicates *exposed* while another of its streams works and
the compute stream does not, and waits while none does, from when all weights are there to the step's end.
Communication beside compute is hidden: it is reported too, but is no part of the sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minitrain.analysis.busy_time import BusyTime, PassTime, are_flat, busy_of, load_end_of, passes_of
from minitrain.analysis.from_logs import as_timeline
from minitrain.analysis.intervals import sweep, sweep_timeline
from minitrain.analysis.timeline import Floats, Timeline, Trace
from minitrain.errors import UsageError


@dataclass(frozen=True, slots=True, eq=False)
class Breakdown:
    """The split of the step time, one row a rank.

    Args:
        step_time_s: the step time, s.
        computing: time with the compute stream at work, s, (num_ranks,).
        exposed: time communicating with no compute beside it, s, (num_ranks,).
        overlapped: time communicating beside compute, s, (num_ranks,).
        waiting: time with no stream at work, s, (num_ranks,).
    """

    step_time_s: float
    computing: Floats
    exposed: Floats
    overlapped: Floats
    waiting: Floats

    @property
    def communicating(self) -> Floats:
        """Time with any communication under way, exposed or not, s, (num_ranks,)."""
        return self.exposed + self.overlapped

    @property
    def bubble_fraction(self) -> float:
        """Share of all ranks' time spent waiting, 0 to 1."""
        return self._share(self.waiting)

    @property
    def exposed_comm_fraction(self) -> float:
        """Share of all ranks' time spent in exposed communication, 0 to 1."""
        return self._share(self.exposed)

    @property
    def computing_fraction(self) -> float:
        """Share of all ranks' time spent computing, 0 to 1."""
        return self._share(self.computing)

    @property
    def overlapped_comm_fraction(self) -> float:
        """Share of all ranks' time with communication hidden beside compute, 0 to 1."""
        return self._share(self.overlapped)

    def _share(self, part: Floats) -> float:
        total = self.step_time_s * len(part)
        return float(part.sum() / total) if total > 0 else 0.0


def breakdown(trace: Trace, end: float | None = None) -> Breakdown:
    """Split the time of every rank from the end of loading to the step's end.

    Args:
        trace: one log a rank, or columns.
        end: when the step ends, s; the latest end of all ranks if None.

    Returns:
        The split; computing + exposed + waiting is the step time to 1e-12 relative on every rank.

    Raises:
        UsageError: the step ends before the log does.
    """
    if are_flat(trace):
        begin = max((load_end_of(log._rows) for log in trace), default=0.0)
        return breakdown_of([busy_of(log, begin) for log in trace], begin, end)
    timeline = as_timeline(trace)
    return _split(_sums_of_columns(timeline), timeline.begin, end)


def breakdown_of(ranks: Sequence[BusyTime], begin: float, end: float | None = None) -> Breakdown:
    """Split the step time of ranks whose time at work is known: the same floats as from their logs."""
    return _split(_sums(ranks), begin, end)


def _split(found: tuple[Floats, Floats, Floats, float], begin: float, end: float | None) -> Breakdown:
    """Split the step time into the three parts, which add up to it."""
    computing, communicating, either, latest = found
    step = checked_end(latest, end) - begin
    busy = np.maximum(either, computing)
    exposed = busy - computing
    overlapped = communicating - exposed
    overlapped[overlapped < 1e-12 * step] = 0.0  # a rounding error where nothing overlaps
    waiting = step - busy
    waiting[waiting < 1e-12 * step] = 0.0  # likewise, where a rank never waits
    return Breakdown(step, computing, exposed, overlapped, waiting)


def _sums(ranks: Sequence[BusyTime]) -> tuple[Floats, Floats, Floats, float]:
    """Return how long each rank computed, communicated, and did either, s, and the latest end."""
    found = np.array(ranks, dtype=float).reshape(-1, len(BusyTime._fields))
    computing, communicating, either, last_end = found.T.copy()
    return computing, communicating, either, float(last_end.max(initial=0.0))


def _sums_of_columns(timeline: Timeline) -> tuple[Floats, Floats, Floats, float]:
    """Return the same floats as `_sums`, from columns."""
    either = sweep_timeline(timeline).covered(timeline.num_ranks)
    return _covered(timeline, True), _covered(timeline, False), either, timeline.last_end


def checked_end(latest: float, end: float | None) -> float:
    """Return the end of the step to use, which must not come before that of the log, at `latest`."""
    if end is None:
        return latest
    if end < latest * (1 - 1e-9):
        raise UsageError(
            f"a step must not end before its log: got an end at {end} s and events until {latest} s; "
            "leave it out to use the latest end",
            end=end,
            latest_end=latest,
        )
    return end


def _covered(timeline: Timeline, computes: bool) -> Floats:
    """Return how long each rank computed, or communicated, s, (num_ranks,)."""
    chosen = timeline.computes == computes
    part = sweep(timeline.rank[chosen], timeline.time[chosen], timeline.end[chosen], timeline.begin)
    return part.covered(timeline.num_ranks)


class PassTimes(NamedTuple):
    """When the ranks that pass anything through layers do so, one entry a rank, s.

    Args:
        first_start: start of the first pass.
        last_end: end of the last one.
        busy: time at work in passes.
    """

    first_start: Floats
    last_end: Floats
    busy: Floats


def pass_times(trace: Trace, typs: Collection[str]) -> PassTimes:
    """Return when each rank passes microbatches through its layers; ranks that never do are left out.

    Args:
        trace: one log a rank, or columns.
        typs: the event types that count as passes.
    """
    if are_flat(trace):
        return pass_times_of(passes_of(log, typs) for log in trace)
    timeline = as_timeline(trace)
    chosen = timeline.of_types(typs)
    ranks = timeline.rank[chosen]
    first = np.full(timeline.num_ranks, np.inf)
    last, busy = np.zeros(timeline.num_ranks), np.zeros(timeline.num_ranks)
    np.minimum.at(first, ranks, timeline.time[chosen])
    np.maximum.at(last, ranks, timeline.end[chosen])
    np.add.at(busy, ranks, timeline.duration[chosen])
    there = np.isfinite(first)
    return PassTimes(first[there], last[there], busy[there])


def pass_times_of(ranks: Iterable[PassTime | None]) -> PassTimes:
    """Return the same for ranks whose passes were summed already; None stands for a rank without passes."""
    found = [passes for passes in ranks if passes is not None]
    return PassTimes(*np.array(found, dtype=float).reshape(-1, len(PassTime._fields)).T.copy())
