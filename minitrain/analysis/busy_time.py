"""How long each rank is at work, read from the engine's flat logs in one pass.

A row of a sweep needs only these sums, and making columns for them would take longer. They are the same floats
as those of columns (`minitrain.analysis.breakdown`), since intervals are added in the same order: by start, then by
end. tests/analysis/test_breakdown.py checks that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeGuard

from minitrain.events import COMPUTE, LOAD_WEIGHTS, PRICE, STREAM, STRIDE, TIME, TYP, EventLog

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


def load_end_of(rows: Sequence[Any]) -> Any:
    """Return when the weights of a rank are there, s; on each machine where times are those of several."""
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
