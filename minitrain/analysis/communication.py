"""What ranks communicate along each axis of their mesh: how often, how many bytes, how long, and how much is exposed.

An operation belongs to the axes along which its ranks differ: "tp" where they are the ranks of one tensor-parallel
group, "dp x tp" where they differ along both. Without a mesh, collectives of all ranks belong to "world" and messages
to "peers". Communication with the host belongs to "host", and groups of one rank to nothing.

Exposed is the time of an axis's communication with no compute beside it. Where two axes communicate at once and nothing
computes, both are exposed, so that the sum over axes may be more than `Breakdown.exposed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

from minitrain.events import COMPUTE, HOST_MOVES, PRICE, RECV, STREAM, STRIDE, TIME, TYP, Event, EventLog, Stream

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
        axis: AxisTotal(*map(_mean, zip(*(totals.get(axis, nothing) for totals in ranks), strict=True)))
        for axis in axes
    }


def _mean(values: Sequence[float]) -> float:
    return float(sum(map(Fraction, values)) / len(values))
