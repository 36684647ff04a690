"""How long each rank is at work, read from the engine's flat logs in one pass: all that a row of a sweep needs of them.

Columns are worth making where much is asked of a log. These few sums are the same floats without them, since intervals
are taken in the same order: by start, then by end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeGuard

from minitrain.events import COMPUTE, PRICE, STREAM, STRIDE, TIME, TYP, EventLog


class Busy(NamedTuple):
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


class Passes(NamedTuple):
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
    """Return whether logs are those of the engine."""
    return isinstance(logs, Sequence) and all(isinstance(log, EventLog) for log in logs)


def busy_of(log: EventLog) -> Busy:
    """Return how long a rank is at work: the lengths of the unions of its streams' intervals."""
    rows = log.rows
    events = zip(rows[TIME::STRIDE], rows[PRICE::STRIDE], rows[STREAM::STRIDE], strict=True)
    intervals = [(time, time + price.seconds, stream.kind == COMPUTE) for time, price, stream in events]
    intervals.sort()
    computing = communicating = either = 0.0
    computes_until = communicates_until = busy_until = 0.0
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
    return Busy(computing, communicating, either, busy_until)


def passes_of(log: EventLog, typs: Collection[str]) -> Passes | None:
    """Return when a rank passes microbatches through its layers; None if it never does.

    Args:
        log: the rank's events.
        typs: the event types that count as passes.
    """
    rows = log.rows
    events = zip(rows[TYP::STRIDE], rows[TIME::STRIDE], rows[PRICE::STRIDE], strict=True)
    first_start, last_end, busy = math.inf, 0.0, 0.0
    for typ, time, price in events:
        if typ in typs:
            seconds = price.seconds
            first_start, last_end = min(first_start, time), max(last_end, time + seconds)
            busy += seconds
    return Passes(first_start, last_end, busy) if first_start < math.inf else None
