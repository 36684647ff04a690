"""How long ranks are at work on each machine, read from logs whose times are those of all machines.

These are the sums of `minitrain.analysis.busy_time` and `minitrain.analysis.breakdown`, for all machines at once. The
terms are added in the same order, so that the sums are the same floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minitrain.analysis.breakdown import PassTimes
from minitrain.analysis.busy_time import loads_of
from minitrain.events import COMPUTE, PASSES, PRICE, STREAM, STRIDE, TIME, TYP
from minitrain.hardware.per_machine import Floats, Ints, values_of

_MOST_NUMBERS = 1 << 22  # in one array: 32 MiB


class RankTimes(NamedTuple):
    """Where the time of the ranks goes, s, one row a log and one column a machine.

    Args:
        computing: time with the compute stream at work.
        exposed: time communicating with no compute beside it.
        waiting: time with no stream at work.
    """

    computing: Floats
    exposed: Floats
    waiting: Floats


def rank_times(logs: Sequence[Any], step_times: Floats) -> RankTimes:
    """Split the step time of every log on every machine.

    Args:
        logs: those of the ranks, or of classes of ranks that are alike.
        step_times: s, (num_machines,).
    """
    known: dict[tuple[int, ...], tuple[Floats, Floats]] = {}
    rows = []
    for log in logs:
        key = identity_of(log)
        if key not in known:
            known[key] = _work_of(log, len(step_times))
        rows.append(known[key])
    computing = np.array([work for work, _ in rows])
    busy = np.maximum(np.array([either for _, either in rows]), computing)
    waiting = step_times - busy
    return RankTimes(computing, busy - computing, np.where(waiting < 1e-12 * step_times, 0.0, waiting))


def identity_of(log: Any) -> tuple[int, ...]:
    """Return a key that is equal for logs with the same times: ranks that do the same share their clocks."""
    rows = log._rows
    return tuple(map(id, (*rows[TIME::STRIDE], *rows[PRICE::STRIDE], *(each.kind for each in rows[STREAM::STRIDE]))))


def _work_of(log: Any, num_machines: int) -> tuple[Floats, Floats]:
    """Return how long a rank computes, and is at work at all, s, (num_machines,) each; loading is no part of it."""
    rows = log._rows[loads_of(log._rows) :]
    return _work_of_sequence(rows, num_machines) or _work_of_overlap(rows, num_machines)


def _work_of_sequence(rows: Sequence[Any], num_machines: int) -> tuple[Floats, Floats] | None:
    """Return the same of events of which each begins after the one before; None where some do not."""
    computing, either = np.zeros(num_machines), np.zeros(num_machines)
    until: Any = 0.0
    for time, price, stream in zip(rows[TIME::STRIDE], rows[PRICE::STRIDE], rows[STREAM::STRIDE], strict=True):
        if time is not until and np.less(values_of(time), values_of(until)).any():
            return None
        until = time + price.seconds
        lasted = values_of(until) - values_of(time)
        either += lasted
        if stream.kind == COMPUTE:
            computing += lasted
    return computing, either


def _work_of_overlap(rows: Sequence[Any], num_machines: int) -> tuple[Floats, Floats]:
    """Return the same of events in any order, which may lie beside one another."""
    starts, ends = times_of(rows, num_machines)
    computes = np.array([stream.kind == COMPUTE for stream in rows[STREAM::STRIDE]])[:, None]
    starts, ends, computes = in_order(starts, ends, computes)
    return covered(starts, np.where(computes, ends, -np.inf)), covered(starts, ends)


def in_order(starts: Floats, ends: Floats, labels: Any) -> tuple[Floats, Floats, Any]:
    """Return events by start and then by end, on every machine, with their labels, (num_events, 1) before."""
    if _are_in_order(starts, ends):
        return starts, ends, labels
    order = np.lexsort((ends, starts), axis=0)
    labels = np.take_along_axis(np.broadcast_to(labels, starts.shape), order, 0)
    return np.take_along_axis(starts, order, 0), np.take_along_axis(ends, order, 0), labels


def times_of(rows: Sequence[Any], num_machines: int) -> tuple[Floats, Floats]:
    """Return when the events of a flat log start and end, s, (num_events, num_machines) each."""
    pairs = zip(rows[TIME::STRIDE], rows[PRICE::STRIDE], strict=True)
    starts = np.empty((len(rows) // STRIDE, num_machines))
    ends = np.empty_like(starts)
    for place, (time, price) in enumerate(pairs):
        starts[place] = values_of(time)
        ends[place] = values_of(time + price.seconds)
    return starts, ends


def _are_in_order(starts: Floats, ends: Floats) -> bool:
    """Return whether events are sorted by start and then by end, on every machine."""
    before, after = starts[:-1], starts[1:]
    return bool(((before < after) | ((before == after) & (ends[:-1] <= ends[1:]))).all())


def covered(starts: Floats, ends: Floats) -> Floats:
    """Return the length of the union of intervals in order, s; one that ends at -inf is none."""
    until = np.maximum.accumulate(ends, axis=0)
    more = ends.copy()
    np.maximum(until, 0.0, out=until)
    more[0] -= starts[0]
    more[1:] -= np.maximum(starts[1:], until[:-1])
    np.maximum(more, 0.0, out=more)
    return added_in_order(more)


def added_in_order(terms: Floats) -> Floats:
    """Return the sum of rows, each added to the sum of those before it."""
    total = np.zeros(terms.shape[1])
    for row in terms:
        total += row
    return total


def pass_times(logs: Sequence[Any], num_machines: int) -> PassTimes:
    """Return when ranks pass microbatches through their layers, (num_logs with passes, num_machines) each."""
    known: dict[tuple[int, ...], Any] = {}
    found = []
    for log in logs:
        key = identity_of(log)
        if key not in known:
            known[key] = _passes_of(log._rows, num_machines)
        if known[key] is not None:
            found.append(known[key])
    return PassTimes(*np.array(found).reshape(-1, 3, num_machines).transpose(1, 0, 2))


def _passes_of(rows: Sequence[Any], num_machines: int) -> tuple[Floats, Floats, Floats] | None:
    """Return first start, last end and time at work of a rank's passes."""
    first, last, busy = np.full(num_machines, np.inf), np.zeros(num_machines), np.zeros(num_machines)
    found = False
    for typ, time, price in zip(rows[TYP::STRIDE], rows[TIME::STRIDE], rows[PRICE::STRIDE], strict=True):
        if typ in PASSES:
            found = True
            np.minimum(first, values_of(time), out=first)
            np.maximum(last, values_of(time + price.seconds), out=last)
            busy += values_of(price.seconds)
    return (first, last, busy) if found else None


def _of_ranks(of_logs: Floats, log_of_rank: Ints | None, num_ranks: int) -> Floats:
    """Return the figure of every rank on some machines, (num_machines, num_ranks), each machine's in one piece."""
    if log_of_rank is None:
        return np.ascontiguousarray(of_logs.T)
    if len(of_logs) == 1:
        return np.repeat(of_logs[0], num_ranks).reshape(-1, num_ranks)
    return np.ascontiguousarray(of_logs.T[:, log_of_rank])


def sum_over_ranks(of_logs: Floats, log_of_rank: Ints | None) -> Floats:
    """Return sums over all ranks, (num_machines,), as numpy adds the column of one machine.

    Args:
        of_logs: (num_logs, num_machines).
        log_of_rank: the log that each rank has; None where each has its own.
    """
    num_ranks = len(of_logs) if log_of_rank is None else len(log_of_rank)
    step = max(1, _MOST_NUMBERS // max(1, num_ranks))
    sums = np.empty(of_logs.shape[1])
    for first in range(0, len(sums), step):
        columns = of_logs[:, first : first + step]
        sums[first : first + step] = _of_ranks(columns, log_of_rank, num_ranks).sum(axis=1)
    return sums
