"""A run that was executed on one machine, with its times on several.

When events begin and end on each machine comes from the graph of the run. Where a rank holds more than the memory of
some machines, that is noted beside it: what it holds is the same on all machines, and how much they can hold is not. So
the account reports when it first exceeds the smallest memory, then the next larger one, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, final

import numpy as np

from minitrain.engine.model import Model
from minitrain.machine.price import Price
from minitrain.operations import COMPUTE, LAUNCHED, NOTE, PASSES, PRICE, STREAM, STRIDE, TIME, TYP, EventLog
from minitrain.run.analysis.breakdown import loads_of
from minitrain.run.analysis.retiming import Program, RankMoments, retime
from minitrain.run.analysis.timeline import Bools, Floats, Ints
from minitrain.run.device_memory import row_of_excess, units_of
from minitrain.run.result import Run


@final
class Recorded:
    """A run that was executed on one machine, with the times of several.

    Args:
        run: the run.
        program: its moments.
        prices: what their durations are the prices of.
        durations: on each machine, s, (num_prices, num_machines).
        excesses: when ranks exceeded memories.
    """

    def __init__(
        self, run: Run, program: Program, prices: Sequence[Price], durations: Floats, excesses: Sequence[Excess]
    ) -> None:
        self.run = run
        self.program = program
        self.prices = prices
        self.excesses = excesses
        self.durations = durations
        self.num_machines: int = durations.shape[1]
        self.num_loads = [loads_of(log._rows) // STRIDE for log in run.class_logs]  # type: ignore[attr-defined]  # flat logs

    def at(self, values: Sequence[int]) -> Floats:
        """Return when some moments come, s, (num_values, num_machines)."""
        wanted = np.array(values, dtype=np.int64)
        known = self.__dict__.get("_times")  # if all values were asked for
        if known is None or wanted.max(initial=0) >= len(known):  # the latest of some may be a new value
            return retime(self.program, self.durations, wanted)
        return known[wanted]  # type: ignore[no-any-return]  # floats

    @cached_property
    def load_ends(self) -> Floats:
        """When the weights of each log's rank are there, s, (num_logs, num_machines); logs without events left out."""
        counts = zip(self.program.ranks, self.num_loads, strict=True)
        return self.at([int(rank.end[count - 1]) if count else 0 for rank, count in counts if len(rank.end)] or [0])

    @cached_property
    def loads_alike(self) -> Bools:
        """Whether all weights are there at the same time, (num_machines,)."""
        alike: Bools = (self.load_ends == self.load_ends[0]).all(axis=0)
        return alike

    @cached_property
    def timed(self) -> Recorded:
        """What figures of the step are made from: loads take no time on machines where they end at unequal times."""
        if self.loads_alike.all():
            return self
        ranks = zip(self.program.ranks, self.run.class_logs, self.num_loads, strict=True)
        prices = {id(price): place for place, price in enumerate(self.prices)}
        loading = {prices[id(price)] for _, log, count in ranks for price in log._rows[PRICE : count * STRIDE : STRIDE]}  # type: ignore[attr-defined]
        durations = self.durations.copy()
        for place in loading:
            durations[place, ~self.loads_alike] = 0.0
        return Recorded(self.run, self.program, self.prices, durations, self.excesses)

    @cached_property
    def _times(self) -> Floats:
        """When each value of the graph comes, s, (num_values, num_machines)."""
        return retime(self.program, self.durations)

    @cached_property
    def logs(self) -> list[TimedLog]:
        """The logs with their times; ranks that do the same at the same time share one."""
        known: dict[Any, TimedLog] = {}
        found = []
        for rank, log in zip(self.program.ranks, self.run.class_logs, strict=True):
            rows: Any = log._rows  # type: ignore[attr-defined]  # a flat log
            computes = np.array([stream.kind == COMPUTE for stream in rows[STREAM::STRIDE]], dtype=bool)
            key = rank.begin.tobytes(), rank.end.tobytes(), computes.tobytes()
            if key not in known:
                lasts = partial(self._lasts, rank.end)
                known[key] = TimedLog(rows, self._times, rank.begin, rank.end, lasts, computes)
            found.append(known[key])
        return found

    def _lasts(self, end: Ints, places: Ints) -> Floats:
        """Return how long some events of a rank last, s: an end is a beginning plus a duration."""
        code = self.program.code
        return self.durations[[code[value][1] for value in end[places].tolist()]]

    def log_on(self, machine: int, log: Any, place: int) -> EventLog:
        """Return a log with the times of one machine.

        Args:
            machine: which.
            log: the flat log of a rank.
            place: of the log that was recorded for it.
        """
        rank, times = self.program.ranks[place], self._times[:, machine]
        seconds = dict(zip(map(id, self.prices), self.durations[:, machine].tolist(), strict=True))
        rows = list(log._rows)
        rows[TIME::STRIDE], rows[LAUNCHED::STRIDE] = times[rank.begin].tolist(), times[rank.submitted].tolist()
        rows[PRICE::STRIDE] = [Price(seconds[id(price)], price.size_bytes) for price in rows[PRICE::STRIDE]]
        return EventLog(log.rank, rows)


class TimedLog:
    """A log whose events have a time for each machine.

    Args:
        rows: the flat log of the machine on which it was recorded.
        times: of all values, s, (num_values, num_machines).
        begin: the value of each event's beginning, (num_events,).
        end: that of its end.
        lasts: how long some events last, s, (num_events, num_machines).
        computes: whether it is on the compute stream.
    """

    def __init__(
        self,
        rows: Sequence[Any],
        times: Floats,
        begin: Ints,
        end: Ints,
        lasts: Callable[[Ints], Floats],
        computes: Bools,
    ) -> None:
        self.rows = rows
        self.computes = computes
        self._times, self._begin, self._end, self._lasts = times, begin, end, lasts

    def intervals(self, first: int = 0) -> tuple[Floats, Floats]:
        """Return when events begin and end from some event on, s, (num_events, num_machines) each."""
        return self._times[self._begin[first:]], self._times[self._end[first:]]

    @cached_property
    def work(self) -> tuple[Floats, Floats]:
        """How long the rank computes, and is at work at all, s, (num_machines,) each; loading is no part of it."""
        first = loads_of(self.rows) // STRIDE
        starts, ends = self.intervals(first)
        computes = self.computes[first:]
        if (starts[1:] >= ends[:-1]).all():
            lasted = np.subtract(ends, starts, out=ends)
            return added_in_order(lasted[computes]), added_in_order(lasted)
        starts, ends, chosen = in_order(starts, ends, computes[:, None])
        return covered(starts, np.where(chosen, ends, -np.inf)), covered(starts, ends)

    @cached_property
    def passes(self) -> tuple[Floats, Floats, Floats] | None:
        """First start, last end and time at work of the rank's passes; None where it has none."""
        places = np.flatnonzero([typ in PASSES for typ in self.rows[TYP::STRIDE]])
        if not len(places):
            return None
        starts, ends = self._times[self._begin[places]], self._times[self._end[places]]
        return starts.min(axis=0), np.maximum(ends.max(axis=0), 0.0), added_in_order(self._lasts(places))


def in_order(starts: Floats, ends: Floats, labels: Any) -> tuple[Floats, Floats, Any]:
    """Return events by start and then by end, on every machine, with their labels, (num_events, 1) before."""
    if _are_in_order(starts, ends):
        return starts, ends, labels
    order = np.lexsort((ends, starts), axis=0)
    labels = np.take_along_axis(np.broadcast_to(labels, starts.shape), order, 0)
    return np.take_along_axis(starts, order, 0), np.take_along_axis(ends, order, 0), labels


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


@dataclass(frozen=True, slots=True)
class ExceededMemory:
    """A size of memory that a rank exceeded.

    Args:
        size_bytes: the size.
        place: the first event of the rank that noted too much; None where none had, and it was between events.
        num_events: how many events the rank had then.
        awaited: the launched operations that it had awaited since the last of them.
        clock: its clock then, on the machine on which it ran, s.
        held_bytes: what it held, by store.
    """

    size_bytes: float
    place: int | None
    num_events: int
    awaited: tuple[int, ...]
    clock: float
    held_bytes: Mapping[str, float]

    def moment(self, program: Program, rank: RankMoments, own_times: Floats) -> int | None:
        """Return the value of the moment; None where the rank's clock was at no moment that is known.

        Args:
            program: that of the run.
            rank: the rank's moments.
            own_times: of all values, on the machine on which it ran, s.
        """
        if self.place is not None:
            return int(rank.submitted[self.place])
        last = self.num_events - 1
        if last < 0:
            return 0
        begun, ended = int(rank.submitted[last]), int(rank.end[last])  # the operation may be waited for, or not
        for clock in (begun, ended):
            values = [clock, *rank.end[list(self.awaited)].tolist()]
            if own_times[values].max() == self.clock:
                return program.latest(values)
        return None


class CapacityWatch:
    """Notes which memories one rank exceeds.

    Args:
        model: the rank, before it begins.
        sizes: the different sizes of the machines' memories, ascending, bytes.

    Attributes:
        excesses: what was exceeded so far, smaller memories first.
    """

    def __init__(self, model: Model, sizes: Sequence[float]) -> None:
        self.excesses: list[ExceededMemory] = []
        self.model = model
        self._sizes = sizes
        self._expect_next()

    def _expect_next(self) -> None:
        """Wait until the smallest memory is exceeded that was not so far."""
        if len(self.excesses) < len(self._sizes):
            self.model._meter.limit_units = units_of(self._sizes[len(self.excesses)], _element_bytes(self.model))
            self.model._meter.on_overflow = self._report

    def _report(self) -> None:
        """Note all memories that are exceeded now."""
        model, element_bytes = self.model, _element_bytes(self.model)
        most = model._meter.high_water()
        held = {name: elements * element_bytes for name, elements in model.memory_by_store().items()}
        for size_bytes in self._sizes[len(self.excesses) :]:
            limit = units_of(size_bytes, element_bytes)
            if most <= limit:
                break
            place, count = row_of_excess(model, limit), len(model._rows) // STRIDE
            notes = enumerate(model._rows[NOTE::STRIDE])
            awaited = tuple(row for row, note in notes if note is not None and note.awaited == count)
            self.excesses.append(ExceededMemory(size_bytes, place, count, awaited, model._time, held))
        self._expect_next()


def _element_bytes(model: Model) -> int:
    """Return the size of an element."""
    return model._runtime_predictor.workload.bytes_per_element


class Excess(NamedTuple):
    """When a rank exceeded a size of memory.

    Args:
        rank: the rank.
        memory: the size, and what it held.
        moment: the value of the moment.
    """

    rank: int
    memory: ExceededMemory
    moment: int
