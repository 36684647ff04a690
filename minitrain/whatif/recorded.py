"""A run that was executed on one machine, with its times on several.

When events begin and end on each machine comes from the graph of the run. Where a rank holds more than the memory of
some machines, that is noted beside it: what it holds is the same on all machines, and how much they can hold is not. So
the account reports when it first exceeds the smallest memory, then the next larger one, and so on.

The machines of one call, in as few fleets as there are kinds: one config a fleet, whose numbers are columns.

Machines of one kind differ in numbers alone: rates, bandwidths, latencies, capacities. The predictor of their config
answers for all of them at once, with an array of seconds (see `minitrain.machine.columns`). A predictor that was given
as hardware is a fleet of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minitrain.engine.model import Model
from minitrain.machine.columns import UnlikeError, columns_of
from minitrain.machine.config import SystemConfig, is_number_path, with_value
from minitrain.machine.measured_topology import places_of
from minitrain.machine.predictor import make_predictor, network_of
from minitrain.machine.price import ROOFLINE, Predictor, Price, Pricing
from minitrain.operations import COMPUTE, LAUNCHED, NOTE, PASSES, PRICE, STREAM, STRIDE, TIME, TYP, EventLog
from minitrain.run.analysis.breakdown import loads_of
from minitrain.run.analysis.retiming import Program, RankMoments, retime
from minitrain.run.analysis.timeline import Bools, Floats, Ints
from minitrain.run.device_memory import row_of_excess, units_of
from minitrain.run.result import Run
from minitrain.tensors.index_sets import grouped
from minitrain.workloads.workload import Workload

T = TypeVar("T")


class Machine(NamedTuple):
    """One machine.

    Args:
        hardware: its config, before anything is varied, or a predictor.
        network: "auto", "flat" or "hierarchical".
        placement: node of each rank.
        pricing: how operations are priced on a config.
    """

    hardware: SystemConfig | Predictor
    network: str = "auto"
    placement: Sequence[int] | None = None
    pricing: Pricing = ROOFLINE


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines of one call.

    Args:
        sources: one a machine; None for one that is to be simulated by itself.
        slowdowns: factor by which computing takes longer, by rank, one mapping (or None) a machine; None for none.
        varied: values of figures of their configs by key path, one a machine.
    """

    sources: Sequence[Machine | None]
    slowdowns: Sequence[Mapping[int, float] | None] | None = None
    varied: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def stragglers(self) -> frozenset[int]:
        """The ranks that are stragglers on some machines."""
        return frozenset(rank for slowdown in self.slowdowns or () for rank in slowdown or ())

    def fleets(self, world_size: int, workload: Workload) -> list[Fleet]:
        """Return the machines that can be priced together, by their kinds.

        Raises:
            UsageError: a network does not connect so many ranks, or another rule is broken.
            HardwareConfigError: a config lacks what prices need.
        """
        known: dict[int, Hashable] = {}
        numbers: dict[Hashable, int] = {}
        distinct = {id(source): source for source in self.sources if source is not None}
        kinds = {key: numbers.setdefault(_run_as(one, known), len(numbers)) for key, one in distinct.items()}
        fixed = [values for path, values in self.varied.items() if not is_number_path(path)]
        alike: defaultdict[Any, list[int]] = defaultdict(list)
        for place, kind in enumerate(zip(map(kinds.get, map(id, self.sources)), *fixed, strict=True)):
            alike[kind].append(place)
        pending, found = [places for kind, places in alike.items() if kind[0] is not None], []
        while pending:
            places = pending.pop(0)
            try:
                found.append(self._fleet(np.array(places), world_size, workload))
            except UnlikeError as unlike:
                pending = [*grouped(zip(unlike.labels, places, strict=True)).values(), *pending]
        return found

    def _fleet(self, places: Ints, world_size: int, workload: Workload) -> Fleet:
        """Return machines that are run alike as one fleet.

        Raises:
            UnlikeError: they differ in more than numbers.
        """
        own: Any = self.sources[places[0]]
        of_each: list[Any] = [source.hardware for source in _at(self.sources, places)]  # type: ignore[union-attr]
        hardware: Any = own.hardware
        if isinstance(hardware, SystemConfig):
            hardware = _together(of_each, hasattr(workload, "pass_kernels"))
            for path, values in self.varied.items():
                hardware = with_value(hardware, path, columns_of(_at(values, places)))
        predictor: Any = make_predictor(hardware, world_size, own.network, own.placement, workload, own.pricing)
        factors = {rank: self._factors(rank, places) for rank in self.stragglers}
        return Fleet(places, predictor, of_each, factors)

    def _factors(self, rank: int, places: Ints) -> Any:
        """Return by what factor a rank computes more slowly on some machines: a column, or one that all have."""
        found = [float((self.slowdowns[place] or {}).get(rank, 1.0)) for place in places.tolist()]  # type: ignore[index]
        return columns_of(found)

    def one(self, place: int) -> Machines:
        """Return one of the machines."""
        slowdowns = None if self.slowdowns is None else [self.slowdowns[place]]
        return Machines([self.sources[place]], slowdowns, {path: [each[place]] for path, each in self.varied.items()})


def _at(values: Sequence[T], places: Ints) -> Sequence[T]:
    """Return what stands at some places, which ascend: all of it where all places are given."""
    return values if len(places) == len(values) else [values[place] for place in places.tolist()]


def _run_as(machine: Machine, known: dict[int, Hashable]) -> Hashable:
    """Return what is equal for machines that are run alike, if they differ in numbers alone.

    Args:
        machine: one of them.
        known: how machines of a pricing are run, by its identity; it is added.
    """
    hardware, network, placement, pricing = machine
    if not isinstance(hardware, SystemConfig) or pricing.collectives:  # laws of one's own may ask for one number
        return id(machine)
    if id(pricing) not in known:
        platform = pricing.platform if isinstance(pricing.platform, str | None) else id(pricing.platform)
        known[id(pricing)] = pricing.fidelity, platform, pricing.without, id(pricing.prices), pricing.stands_for
    is_named = pricing.platform is not None or (pricing.stands_for and pricing.stands_for.framework)
    named = hardware.name if is_named else None
    where = None if placement is None else tuple(placement)
    return known[id(pricing)], named, network, where, hardware.sheet.device_class, hardware.sheet.num_units is None


def _together(systems: Sequence[SystemConfig], has_kernels: bool) -> SystemConfig:
    """Return configs of one kind as one, with columns; of rates of kernels only where the workload has kernels."""
    first = systems[0]
    if all(system is first for system in systems):
        return first
    names = ("processor", "mem1", "mem2", "networks", *(("kernels",) if has_kernels else ()))
    sheet = replace(first.sheet, num_units=columns_of([system.sheet.num_units for system in systems]))
    changes = {name: columns_of([getattr(system, name) for system in systems]) for name in names}
    return replace(first, sheet=sheet, **changes)


@dataclass(frozen=True)
class Fleet:
    """Machines whose prices come from one predictor.

    Args:
        places: which machines.
        predictor: what prices operations on all of them, with a column or one number for all.
        hardware: the config or predictor of each.
        factors: how many times as long computing takes on ranks that are stragglers on some of them.
        choices: what was chosen on each machine, by rank and by key of what chooses; filled as it is asked for.
    """

    places: Ints
    predictor: Any
    hardware: Sequence[Any]
    factors: Mapping[int, Any]
    choices: dict[tuple[int | None, Hashable], Sequence[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def of_rank(self) -> Any:
        """What prices the operations of a rank, None for one that is no straggler anywhere."""
        return cache(self._of_rank)

    def _of_rank(self, rank: int | None) -> Any:
        factor = 1.0 if rank is None else self.factors.get(rank, 1.0)
        return self.predictor if isinstance(factor, float) and factor == 1.0 else self.predictor.slowed(factor)

    @cached_property
    def shares_recording(self) -> Hashable:
        """What is equal for fleets on which ranks can do the same: where ranks sit, and which questions are asked."""
        predictor = self.predictor
        topology = getattr(predictor, "topology", None)
        places = places_of(topology)
        tiers = () if places is None else tuple((tier.size, tier.must_be_filled) for tier in places.tiers)
        where = type(topology), tiers, None if places is None else (places.placement, places._in_order)
        kind = type(predictor), id(getattr(predictor, "layers", None)), id(predictor.workload)
        asked = (getattr(predictor, name, None) is not None for name in ("host_transfer", "host_capacity_bytes"))
        return where, kind, getattr(predictor, "prices_layers_alike", False), *asked

    def column(self, number: Any) -> Floats:
        """Return a number as a column of these machines."""
        return np.broadcast_to(np.asarray(number, dtype=float), len(self))

    @cached_property
    def systems(self) -> list[Any]:
        """The config of each machine; None where it has none."""
        own = getattr(self.predictor, "system", None)
        return [one if isinstance(one, SystemConfig) else own for one in self.hardware]

    def of_each(self, name: str) -> list[Any]:
        """Return a figure of each machine: system, kind of its network, or what its predictor says; None for none."""
        if name == "system":
            return self.systems
        found = network_of(self.predictor) if name == "network" else getattr(self.predictor, name, None)
        if isinstance(found, np.ndarray):
            listed: list[Any] = found.tolist()
            return listed
        return [found] * len(self)


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


@dataclass(eq=False)
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

    rows: Sequence[Any]
    times: Floats
    begin: Ints
    end: Ints
    lasts: Callable[[Ints], Floats]
    computes: Bools

    def intervals(self, first: int = 0) -> tuple[Floats, Floats]:
        """Return when events begin and end from some event on, s, (num_events, num_machines) each."""
        return self.times[self.begin[first:]], self.times[self.end[first:]]

    @cached_property
    def work(self) -> tuple[Floats, Floats]:
        """How long the rank computes, and is at work at all, s, (num_machines,) each; loading is no part of it."""
        first = loads_of(self.rows) // STRIDE
        starts, ends = self.intervals(first)
        computes = self.computes[first:]
        if (starts[1:] >= ends[:-1]).all():
            lasted = np.subtract(ends, starts, out=ends)
            return added_in_order(lasted[computes]), added_in_order(lasted)
        computing = in_order(starts[computes], ends[computes])
        return covered(*computing), covered(*in_order(starts, ends))

    @cached_property
    def passes(self) -> tuple[Floats, Floats, Floats] | None:
        """First start, last end and time at work of the rank's passes; None where it has none."""
        places = np.flatnonzero([typ in PASSES for typ in self.rows[TYP::STRIDE]])
        if not len(places):
            return None
        starts, ends = self.times[self.begin[places]], self.times[self.end[places]]
        return starts.min(axis=0), np.maximum(ends.max(axis=0), 0.0), added_in_order(self.lasts(places))


def in_order(starts: Floats, ends: Floats, *labels: Any) -> tuple[Any, ...]:
    """Return events by start and then by end, on every machine, with labels of theirs, (num_events, 1) before."""
    if _are_in_order(starts, ends):
        return starts, ends, *labels
    order = np.lexsort((ends, starts), axis=0)
    columns = starts, ends, *(np.broadcast_to(each, starts.shape) for each in labels)
    return tuple([np.take_along_axis(column, order, 0) for column in columns])


def _are_in_order(starts: Floats, ends: Floats) -> bool:
    """Return whether events are sorted by start and then by end, on every machine."""
    before, after = starts[:-1], starts[1:]
    return bool(((before < after) | ((before == after) & (ends[:-1] <= ends[1:]))).all())


def covered(starts: Floats, ends: Floats) -> Floats:
    """Return the length of the union of intervals in order, s; one that ends at -inf is none."""
    until, total = np.zeros((2, starts.shape[1]))
    for start, end in zip(starts, ends, strict=True):  # row by row, so that all stays in the cache
        more = end - np.maximum(start, until)
        total += np.maximum(more, 0.0, out=more)
        np.maximum(until, end, out=until)
    return total


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
