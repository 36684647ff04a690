"""Where each rank's step time goes: computing, exposed communication and waiting, which add up to it.

A rank computes while its compute stream works, communicates *exposed* while another of its streams works and
the compute stream does not, and waits while none does, from when all weights are there to the step's end.
Communication beside compute is hidden: it is reported too, but is no part of the sum.

How long each rank is at work, read from the engine's flat logs in one pass.

A row of a sweep needs only these sums, and making columns for them would take longer. They are the same floats
as those of columns, since intervals are added in the same order: by start, then by
end. tests/run/analysis/test_breakdown.py checks that. Nothing here needs numpy, unless it is given columns or asked for
arrays.

What ranks communicate along each axis of their mesh: how often, how many bytes, how long, and how much is exposed.

An operation belongs to the axes along which its ranks differ: "tp" where they are the ranks of one tensor-parallel
group, "dp x tp" where they differ along both. Without a mesh, collectives of all ranks belong to "world" and messages
to "peers". Communication with the host belongs to "host", and groups of one rank to nothing.

Exposed is the time of an axis's communication with no compute beside it. Where two axes communicate at once and nothing
computes, both are exposed, so that the sum over axes may be more than `Breakdown.exposed`.

How many events of each type there are, and how long they worked, summed exactly.

A sum of floats depends on its order, and events come in different orders: rank after rank, or in chunks of all ranks.
So equal durations are counted, and their multiples are added as fractions. The sum is rounded once, at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import starmap
from math import prod
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from minitrain.errors import UsageError
from minitrain.operations import (
    COMPUTE,
    HOST_MOVES,
    LOAD_WEIGHTS,
    PRICE,
    RECV,
    STREAM,
    STRIDE,
    TIME,
    TYP,
    Event,
    EventLog,
    Stream,
)

if TYPE_CHECKING:
    from minitrain.run.analysis.timeline import Floats, Trace

Interval = tuple[float, float, bool]
"""Start and end of an event, s, and whether it is on the compute stream."""


class BusyTime(NamedTuple):
    """How long one rank is at work, s.

    Args:
        computing: time with the compute stream at work.
        communicating: time with any other stream at work.
        any: time with any stream at work.
        last_end: end of its last event.
    """

    computing: float
    communicating: float
    any: float
    last_end: float


class PassTime(NamedTuple):
    """When one rank passes microbatches through its layers, s.

    Args:
        first_start: start of the first pass.
        last_end: end of the last one.
        busy: time at work in passes.
    """

    first_start: float
    last_end: float
    busy: float


def are_flat(logs: object) -> TypeGuard[Sequence[EventLog]]:
    """Return whether all logs are flat logs of the engine."""
    return isinstance(logs, Sequence) and all(isinstance(log, EventLog) for log in logs)


class BusyTimeSum:
    """How long one rank is at work, by intervals that may come in several chunks.

    Args:
        begin: when the step begins, s; what is done before it does not count.

    Attributes:
        busy: how long the rank was at work in all intervals so far.
    """

    __slots__ = ("_communicates_until", "_computes_until", "busy")

    def __init__(self, begin: float = 0.0) -> None:
        self.busy = BusyTime(0.0, 0.0, 0.0, begin)
        self._computes_until = self._communicates_until = begin

    def add(self, intervals: Iterable[Interval]) -> None:
        """Add intervals, sorted by start and then by end; none may start before one that was added earlier."""
        computing, communicating, either, busy_until = self.busy
        computes_until, communicates_until = self._computes_until, self._communicates_until
        for start, end, computes in intervals:
            if end > busy_until:
                either += end - (start if start > busy_until else busy_until)
                busy_until = end
            if computes:
                if end > computes_until:
                    computing += end - (start if start > computes_until else computes_until)
                    computes_until = end
            elif end > communicates_until:
                communicating += end - (start if start > communicates_until else communicates_until)
                communicates_until = end
        self.busy = BusyTime(computing, communicating, either, busy_until)
        self._computes_until, self._communicates_until = computes_until, communicates_until


class PassTimeSum:
    """When one rank passes microbatches through its layers, by events that may come in several chunks.

    Args:
        typs: the event types that count as passes.
    """

    __slots__ = ("_passes", "_typs")

    def __init__(self, typs: Collection[str]) -> None:
        self._typs = typs
        self._passes = PassTime(math.inf, 0.0, 0.0)

    @property
    def passes(self) -> PassTime | None:
        """The times of all passes so far; None if there are none."""
        return self._passes if self._passes.first_start < math.inf else None

    def add(self, rows: Sequence[Any]) -> None:
        """Add rows of a flat log, which follow those that were added earlier."""
        typs = self._typs
        first_start, last_end, busy = self._passes
        for typ, time, price in zip(rows[TYP::STRIDE], rows[TIME::STRIDE], rows[PRICE::STRIDE], strict=True):
            if typ in typs:
                seconds = price.seconds
                first_start, last_end = min(first_start, time), max(last_end, time + seconds)
                busy += seconds
        self._passes = PassTime(first_start, last_end, busy)


def intervals_of(rows: Sequence[Any]) -> list[Interval]:
    """Return the intervals of rows of a flat log, in the order of the rows."""
    events = zip(rows[TIME::STRIDE], rows[PRICE::STRIDE], rows[STREAM::STRIDE], strict=True)
    return [(time, time + price.seconds, stream.kind == COMPUTE) for time, price, stream in events]


def loads_of(rows: Sequence[Any]) -> int:
    """Return how many places of a rank's flat log its loading takes: its loads before its first other operation."""
    places = range(0, len(rows), STRIDE)
    return next((place for place in places if rows[place + TYP] != LOAD_WEIGHTS), len(rows))


def load_end_of(rows: Sequence[Any]) -> float:
    """Return when the weights of a rank are there, s."""
    last = loads_of(rows) - STRIDE
    return rows[last + TIME] + rows[last + PRICE].seconds if last >= 0 else 0.0


def busy_of(log: EventLog, begin: float = 0.0) -> BusyTime:
    """Return how long a rank is at work from some time on: the lengths of the unions of its streams' intervals."""
    sums = BusyTimeSum(begin)
    sums.add(sorted(intervals_of(log._rows)))
    return sums.busy


def passes_of(log: EventLog, typs: Collection[str]) -> PassTime | None:
    """Return when a rank passes microbatches through its layers; None if it never does.

    Args:
        log: the rank's events.
        typs: the event types that count as passes.
    """
    sums = PassTimeSum(typs)
    sums.add(log._rows)
    return sums.passes


class Split(NamedTuple):
    """Where the step time of one rank goes, s: see `Breakdown`."""

    computing: float
    exposed: float
    overlapped: float
    waiting: float


@dataclass(frozen=True, slots=True, eq=False)
class Breakdown:
    """The split of the step time, one row a rank.

    Args:
        step_time_s: the step time, s.
        ranks: the split of each rank.
    """

    step_time_s: float
    ranks: Sequence[Split]

    @property
    def computing(self) -> Floats:
        """Time with the compute stream at work, s, (num_ranks,)."""
        return self._array("computing")

    @property
    def exposed(self) -> Floats:
        """Time communicating with no compute beside it, s, (num_ranks,)."""
        return self._array("exposed")

    @property
    def overlapped(self) -> Floats:
        """Time communicating beside compute, s, (num_ranks,)."""
        return self._array("overlapped")

    @property
    def waiting(self) -> Floats:
        """Time with no stream at work, s, (num_ranks,)."""
        return self._array("waiting")

    @property
    def communicating(self) -> Floats:
        """Time with any communication under way, exposed or not, s, (num_ranks,)."""
        return self.exposed + self.overlapped

    @property
    def bubble_fraction(self) -> float:
        """Share of all ranks' time spent waiting, 0 to 1."""
        return self._share("waiting")

    @property
    def exposed_comm_fraction(self) -> float:
        """Share of all ranks' time spent in exposed communication, 0 to 1."""
        return self._share("exposed")

    @property
    def computing_fraction(self) -> float:
        """Share of all ranks' time spent computing, 0 to 1."""
        return self._share("computing")

    def _of_ranks(self, part: str) -> list[float]:
        return list(map(attrgetter(part), self.ranks))

    def _array(self, part: str) -> Floats:
        import numpy as np  # noqa: PLC0415  (only when somebody looks)

        return np.array(self._of_ranks(part), dtype=float)

    def _share(self, part: str) -> float:
        total = self.step_time_s * len(self.ranks)
        return pairwise_sum(self._of_ranks(part)) / total if total > 0 else 0.0


def pairwise_sum(values: Sequence[float]) -> float:
    """Add floats in NumPy's order: eight sums side by side, halves of what is long (`pairwise_sum` in its sources)."""
    size = len(values)
    if size < 8:
        return add_in_order(values)
    if size <= 128:
        eights = size - size % 8
        parts = [add_in_order(values[first:eights:8]) for first in range(8)]
        total = ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]))
        return reduce(add, values[eights:], total)
    half = size // 2 - size // 2 % 8
    return pairwise_sum(values[:half]) + pairwise_sum(values[half:])


def add_in_order(values: Sequence[float]) -> float:
    """Add floats one after the other."""
    return reduce(add, values, -0.0) if len(values) else 0.0  # -0 keeps the sign of zeros


def breakdown(trace: Trace, end: float | None = None, step_time: float | None = None) -> Breakdown:
    """Split the time of every rank from the end of loading to the step's end.

    Args:
        trace: one log a rank, or columns.
        end: when the step ends, s; the latest end of all ranks if None.
        step_time: how long it takes, s, where ranks begin the next one at other times; from loading to its end if None.

    Returns:
        The split; computing + exposed + waiting is the step time to 1e-12 relative on every rank.

    Raises:
        UsageError: the step ends before the log does.
    """
    if are_flat(trace):
        begin = max((load_end_of(log._rows) for log in trace), default=0.0)
        return breakdown_of([busy_of(log, begin) for log in trace], begin, end, step_time)
    from minitrain.run.analysis.timeline import as_timeline  # noqa: PLC0415  (numpy only for columns)

    timeline = as_timeline(trace)
    busy = zip(*timeline.busy_times().T.tolist(), [timeline.last_end] * timeline.num_ranks, strict=True)
    return breakdown_of(list(starmap(BusyTime, busy)), timeline.begin, end, step_time)


def breakdown_of(
    ranks: Sequence[BusyTime], begin: float, end: float | None = None, step_time: float | None = None
) -> Breakdown:
    """Split the step time of ranks whose time at work is known: the same floats as from their logs."""
    latest = max((rank.last_end for rank in ranks), default=0.0)
    step = checked_end(latest, end) - begin if step_time is None else step_time
    return Breakdown(step, [_split(rank, step) for rank in ranks])


def _split(rank: BusyTime, step: float) -> Split:
    """Split the step time into the three parts, which add up to it."""
    busy = max(rank.any, rank.computing)
    exposed = busy - rank.computing
    overlapped, waiting = rank.communicating - exposed, step - busy
    least = 1e-12 * step  # what is less is a rounding error: where nothing overlaps, or a rank never waits
    return Split(
        rank.computing, exposed, 0.0 if overlapped < least else overlapped, 0.0 if waiting < least else waiting
    )


def checked_end(latest: float, end: float | None) -> float:
    """Return the end of the step to use, which must not come before that of the log, at `latest`."""
    if end is None:
        return latest
    if end < latest * (1 - 1e-9):
        message = (
            f"a step must not end before its log: got an end at {end} s and events until {latest} s; "
            "leave it out to use the latest end"
        )
        raise UsageError(message, end=end, latest_end=latest)
    return end


def pass_times(trace: Trace, typs: Collection[str]) -> list[PassTime]:
    """Return when each rank passes microbatches through its layers; ranks that never do are left out.

    Args:
        trace: one log a rank, or columns.
        typs: the event types that count as passes.
    """
    if are_flat(trace):
        return [passes for log in trace if (passes := passes_of(log, typs)) is not None]
    from minitrain.run.analysis.timeline import as_timeline  # noqa: PLC0415  (numpy only for columns)

    return [PassTime(*seconds) for seconds in as_timeline(trace).pass_times(typs).tolist()]


WORLD, PEERS, OTHER, HOST = "world", "peers", "other", "host"

Meshes = Sequence[Mapping[str, int]]
AxisOf = Callable[[Stream], str | None]
_Work = tuple[float, float, str, float]
"""Start and end of an operation, s, its axis ("" for compute), and its bytes."""


class AxisTotal(NamedTuple):
    """What a rank communicates along an axis, or a mean over ranks.

    Args:
        num_operations: collectives, sends and receives.
        size_bytes: those of the whole tensor for a collective, and of what is sent for messages.
        seconds: time with any of it under way, s.
        exposed_s: time of that with no compute beside it, s.
    """

    num_operations: float
    size_bytes: float
    seconds: float
    exposed_s: float


def axis_finder(rank: int, world_size: int, meshes: Meshes) -> AxisOf:
    """Return a function from a rank's stream to its axis; each stream is looked up once.

    Args:
        rank: whose streams.
        world_size: number of ranks.
        meshes: size by axis of each mesh that the rank has made, last axis fastest; read when a stream is looked up.
    """
    known: dict[Stream, str | None] = {}

    def axis_of(stream: Stream) -> str | None:
        if stream not in known:
            known[stream] = _axis_of(stream, rank, world_size, meshes)
        return known[stream]

    return axis_of


def _axis_of(stream: Stream, rank: int, world_size: int, meshes: Meshes) -> str | None:
    """Return the axis of a stream; None for a group of one rank."""
    if stream.kind in HOST_MOVES:
        return HOST
    if stream.peer is not None:
        return _along({rank, stream.peer}, meshes, whole=False) or PEERS
    members = range(world_size) if stream.group is None else stream.group
    if len(members) == 1:
        return None
    return _along(members, meshes, whole=True) or (WORLD if stream.group is None else OTHER)


def _along(ranks: Iterable[int], meshes: Meshes, *, whole: bool) -> str | None:
    """Return the axes of the first mesh along which some ranks differ; a `whole` group must hold all ranks along them.

    Args:
        ranks: the ranks.
        meshes: size by axis of each mesh.
        whole: whether the ranks are a group.
    """
    members = list(ranks)
    for mesh in meshes:
        found, stride = [], 1
        for axis, size in reversed(list(mesh.items())):
            if len({member // stride % size for member in members}) > 1:
                found.append(axis)
            stride *= size
        if not whole or prod(mesh[axis] for axis in found) == len(members):
            return " x ".join(reversed(found))
    return None


class AxisSums:
    """What one rank communicates along each axis, by events that may come in several chunks.

    Args:
        axis_of: returns the axis of a stream.
    """

    __slots__ = ("_axis_of", "_communicates_until", "_computes", "_either", "_late", "_sums")

    def __init__(self, axis_of: AxisOf) -> None:
        self._axis_of = axis_of
        self._late: list[_Work] = []  # work before which other work may still come
        self._computes = 0.0, 0.0  # time at work so far, and until when
        self._either: dict[str, tuple[float, float]] = {}  # the same of compute and one axis together
        self._communicates_until: dict[str, float] = {}
        self._sums: dict[str, tuple[int, float, float]] = {}  # operations, bytes, seconds

    def take(self, work: Iterable[_Work], complete_until: float) -> None:
        """Take the next operations.

        Args:
            work: they follow those taken before.
            complete_until: no operation that is still to come starts earlier, s.
        """
        known = sorted([*self._late, *work])
        self._late = [each for each in known if each[0] >= complete_until]
        for start, end, axis, size_bytes in known[: len(known) - len(self._late)]:
            if axis:
                self._communicate(start, end, axis, size_bytes)
            else:
                self._computes = _extended(self._computes, start, end)
                self._either = {name: _extended(both, start, end) for name, both in self._either.items()}

    def take_rows(self, rows: Sequence[Any], complete_until: float) -> None:
        """Take the next rows of a flat log."""
        self.take(_work_of_rows(rows, self._axis_of), complete_until)

    def _communicate(self, start: float, end: float, axis: str, size_bytes: float) -> None:
        """Add one operation of an axis."""
        if axis not in self._sums:
            self._sums[axis], self._communicates_until[axis], self._either[axis] = (0, 0.0, 0.0), 0.0, self._computes
        number, total_bytes, seconds = self._sums[axis]
        seconds, until = _extended((seconds, self._communicates_until[axis]), start, end)
        self._sums[axis], self._communicates_until[axis] = (number + 1, total_bytes + size_bytes, seconds), until
        self._either[axis] = _extended(self._either[axis], start, end)

    def totals(self) -> dict[str, AxisTotal]:
        """Return what was communicated so far, by axis."""
        computing = self._computes[0]
        return {axis: AxisTotal(*sums, self._either[axis][0] - computing) for axis, sums in self._sums.items()}


def _extended(busy: tuple[float, float], start: float, end: float) -> tuple[float, float]:
    """Return the time at work and its end, after more work that starts no earlier than any before."""
    seconds, until = busy
    return (seconds + (end - (start if start > until else until)), end) if end > until else busy


def _work_of_rows(rows: Sequence[Any], axis_of: AxisOf) -> Iterator[_Work]:
    """Yield the operations of rows of a flat log that belong to an axis, and those that compute."""
    columns = (rows[column::STRIDE] for column in (TIME, PRICE, STREAM, TYP))
    for time, price, stream, typ in zip(*columns, strict=True):
        axis = "" if stream.kind == COMPUTE else axis_of(stream)
        if axis is not None:
            yield time, time + price.seconds, axis, 0.0 if typ == RECV else price.size_bytes


def _work_of_events(events: Sequence[Event], axis_of: AxisOf) -> Iterator[_Work]:
    """Yield the same of events."""
    for event in events:
        axis = "" if event.stream == COMPUTE else axis_of(Stream(event.stream, event.group, event.peer))
        if axis is not None:
            yield event.time, event.end, axis, 0.0 if event.typ == RECV else event.size_bytes


def totals_of_log(log: Sequence[Event], rank: int, world_size: int, meshes: Meshes) -> dict[str, AxisTotal]:
    """Return what one rank communicates along each axis."""
    axis_of = axis_finder(rank, world_size, meshes)
    sums = AxisSums(axis_of)
    work = _work_of_rows(log._rows, axis_of) if isinstance(log, EventLog) else _work_of_events(log, axis_of)
    sums.take(work, float("inf"))
    return sums.totals()


def mean_by_axis(ranks: Sequence[Mapping[str, AxisTotal]]) -> dict[str, AxisTotal]:
    """Return what a rank communicates along each axis on average, axes in alphabetical order.

    Means are rounded once, so that they do not depend on how often equal ranks are counted.
    """
    axes = sorted({axis for totals in ranks for axis in totals})
    nothing = AxisTotal(0, 0.0, 0.0, 0.0)
    return {
        axis: AxisTotal(*map(mean, zip(*(totals.get(axis, nothing) for totals in ranks), strict=True))) for axis in axes
    }


def mean(values: Sequence[float]) -> float:
    """Return a mean that is rounded once: a sum of floats is, and halving it is exact."""
    count = len(values)
    return math.fsum(values) / count if count & (count - 1) == 0 else float(sum(map(Fraction, values)) / count)


_MOST_DURATIONS = 4096  # counted at a time, since there can be as many distinct durations as events


class TypeTotal(NamedTuple):
    """The events of one type.

    Args:
        num_events: how many there are on all ranks.
        seconds: how long they worked, s, all of them together.
    """

    num_events: int
    seconds: float


class TypeSums:
    """The totals by type of events that come in several chunks, in any order."""

    __slots__ = ("_counts", "_durations", "_seconds")

    def __init__(self) -> None:
        self._durations: Counter[tuple[str, float]] = Counter()
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, Fraction] = {}

    def add(self, rows: Sequence[Any]) -> None:
        """Add rows of a flat log."""
        seconds = [price.seconds for price in rows[PRICE::STRIDE]]
        self._durations.update(zip(rows[TYP::STRIDE], seconds, strict=True))
        if len(self._durations) > _MOST_DURATIONS:
            self._add_counted()

    def add_events(self, events: Sequence[Event]) -> None:
        """Add events."""
        self._durations.update((event.typ, event.duration) for event in events)

    def totals(self, times: int = 1) -> dict[str, TypeTotal]:
        """Return the totals so far, so many times, by type in alphabetical order."""
        self._add_counted()
        return {
            typ: TypeTotal(times * count, float(times * self._seconds[typ]))
            for typ, count in sorted(self._counts.items())
        }

    def _add_counted(self) -> None:
        """Add the counted durations to the sums."""
        for (typ, duration), count in self._durations.items():
            self._counts[typ] += count
            self._seconds[typ] = self._seconds.get(typ, Fraction()) + count * Fraction(duration)
        self._durations.clear()


def totals_by_type(logs: Sequence[Sequence[Event]], times: int = 1) -> dict[str, TypeTotal]:
    """Return the totals by type.

    Args:
        logs: the events of each rank, or of one rank of each class.
        times: how many ranks each log stands for.
    """
    sums = TypeSums()
    if are_flat(logs):
        for log in logs:
            sums.add(log._rows)
    else:
        for events in logs:
            sums.add_events(events)
    return sums.totals(times)


def are_alike(load_ends: Iterable[float]) -> bool:
    """Return whether the weights of all ranks are there at the same time."""
    return len(set(load_ends)) < 2
