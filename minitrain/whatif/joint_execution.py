"""One execution of a strategy for several machines, and one for each group of them where their choices differ.

Strategies do not look at clocks. So a strategy is executed on one machine, where every question for a price is noted.
The questions are then asked of all machines, and the graph of the run is timed with the answers.

What a run chooses by prices (the stages of a pipeline, which ranks fold) is noted likewise. The other machines make the
same choices from their own prices; those that choose otherwise are executed in a group of their own. A strategy that
reads a clock, a price or its log is found, and simulated machine by machine.

What shipped strategies did is kept between calls, a run for each way to choose: the next call asks these runs anew, and
executes the strategy only for machines that make other choices.

Where contention slows computing down, the logs are timed again with the prices of each machine, which says how long
operations last there.

`execute` is for callers that have a prepared run: `price`, sweeps, `noise`.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from minitrain.engine.model import Model
from minitrain.errors import MinitrainError
from minitrain.machine.price import Predictor, Price
from minitrain.operations import LAUNCHED, PRICE, STRIDE, TIME
from minitrain.run.analysis.retiming import Program, program_of_logs, retime, seconds_of
from minitrain.run.analysis.timeline import Floats, Ints
from minitrain.run.contention import Retiming
from minitrain.run.folding.model import FoldedModel
from minitrain.run.parameters import PRICE_ONLY, RunParameters
from minitrain.run.rank_tasks import PreparedRun, contention_in_words
from minitrain.run.result import Run
from minitrain.run.simulation import Variant, simulate_prepared
from minitrain.run.strategy_loading import is_shipped, unwrapped
from minitrain.source_lines import present_place
from minitrain.whatif.joint_figures import JointFigures
from minitrain.whatif.recorded import CapacityWatch, Excess, Fleet, Machines, Recorded
from minitrain.workloads.matmul import MATMUL_LAYER
from minitrain.workloads.workload import fills_devices

T = TypeVar("T")

MOST_AT_ONCE = 4096
"""Machines whose clocks are computed at once: more do not make it quicker."""

MOST_BYTES = 2**29
"""What these clocks may take."""

_MOST_KEPT = 16  # runs of one call
_MOST_EVENTS_KEPT = 20_000  # of one run


class NotRecordedError(MinitrainError):
    """A run cannot stand for the same run on other machines."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that a run has chosen by prices.

    Args:
        rank: the straggler whose prices they are; None for those of all other ranks.
        prices_on: asks a predictor for the prices.
        choose: makes of them what is chosen.
        choose_each: does so for many machines, where it can.
        key: equal where it chooses the same on the same machines.
        choice: what was chosen.
    """

    rank: int | None
    prices_on: Callable[[Any], list[Any]]
    choose: Callable[[Sequence[Any]], Any]
    choose_each: Callable[[Any], Sequence[Any]] | None
    key: Hashable
    choice: Any

    def agrees(self, fleet: Fleet, chosen: Ints) -> np.typing.NDArray[np.bool_]:
        """Return on which of some machines of a fleet the same is chosen."""
        asked = fleet.of_rank(self.rank)
        if self.choose_each is None:
            rows = zip(*(_each(price, chosen) for price in self.prices_on(asked)), strict=True)
            is_same = cache(lambda row: self.choose(list(row)) == self.choice)
            return np.fromiter(map(is_same, rows), dtype=bool)
        if (self.rank, self.key) not in fleet.choices:
            columns = np.array([fleet.column(seconds) for seconds in self.prices_on(asked)])
            fleet.choices[self.rank, self.key] = self.choose_each(columns)
        choices = fleet.choices[self.rank, self.key]
        return np.array([choices[place] == self.choice for place in chosen.tolist()], dtype=bool)


def _each(price: Any, chosen: Ints) -> list[Any]:
    """Return a price, or seconds, on each of some machines of a fleet."""
    if isinstance(price, Price):
        return [replace(price, seconds=seconds) for seconds in _each(price.seconds, chosen)]
    return price[chosen].tolist() if isinstance(price, np.ndarray) else [price] * len(chosen)


@dataclass(frozen=True, slots=True)
class Question:
    """A question for a price.

    Args:
        rank: the straggler that asked; None for any other rank.
        kind: "compute", "update", "load", "collective", "p2p" or "host_transfer".
        asked: the arguments.
        named: those that were named.
    """

    rank: int | None
    kind: str
    asked: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...]

    def ask(self, predictor: Any) -> Price:
        """Return the answer of a predictor."""
        found: Price = getattr(predictor, self.kind)(*self.asked, **dict(self.named))
        return found


class Recorder:
    """A predictor that notes what it is asked. Equal questions have one answer, and different ones different objects.

    Args:
        recorded: what answers.
        rank: the straggler that asks; None for all others.
        shared: what is noted together with other ranks; nothing so far if None.

    Attributes:
        questions: by the identity of the price that answered them.
        decisions: what was chosen by prices.
        looked: at what the strategy has looked that one machine alone can show, and where; None if at nothing.
    """

    capacity_bytes = None  # which memories are exceeded is found out beside it
    peak_flop_per_s = None
    system = None

    def __init__(self, recorded: Any, rank: int | None = None, shared: Recorder | None = None) -> None:
        self.recorded = recorded
        self.reference = shared
        self.questions: dict[int, tuple[Question, Price]] = {} if shared is None else shared.questions
        self.decisions: list[Decision] = [] if shared is None else shared.decisions
        self.looked: str | None = None
        self.host_capacity_bytes: Any = getattr(recorded, "host_capacity_bytes", None)
        self._rank = rank
        self._answers: dict[Hashable, Price] = {}
        for kind in ("compute", "update", "load", "collective", "p2p"):
            setattr(self, kind, partial(self._answer, kind))
        ask_host = getattr(recorded, "host_transfer", None)
        self.host_transfer = ask_host and partial(self._answer, "host_transfer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["recorded"], name)

    def _answer(self, kind: str, *asked: Any, **named: Any) -> Price:
        """Return the price that answers a question."""
        key = kind, asked, *named.items()
        found = self._answers.get(key)
        if found is None:
            question = Question(self._rank, kind, asked, tuple(named.items()))
            found = self._answers[key] = replace(question.ask(self.recorded))
            self.questions[id(found)] = question, found
        return found

    def decide(
        self,
        prices_on: Callable[[Any], list[Any]],
        choose: Callable[[Sequence[Any]], T],
        choose_each: Callable[[Any], Sequence[T]] | None = None,
        key: Hashable = None,
    ) -> T:
        """Note what is chosen by prices, and return it; see `minitrain.machine.price.decide`."""
        choice = choose(prices_on(self.recorded))
        self.decisions.append(Decision(self._rank, prices_on, choose, choose_each, key, choice))
        return choice

    def look(self, name: str) -> None:
        """Note that the strategy reads a model's attribute that tells how long operations take."""
        self.looked = self.looked or f"the strategy reads model.{name} ({present_place()})"


@dataclass(frozen=True, slots=True)
class RecordedRun(PreparedRun):
    """A run that is ready to be recorded.

    Args:
        stragglers: what prices the ranks on which computing takes longer on some machines.
    """

    stragglers: Mapping[int, Recorder] | None = None

    @property
    def contention(self) -> bool:
        """Contention is found out machine by machine, afterwards."""
        return False

    @property
    def has_stragglers(self) -> bool:
        """Whether computing takes longer on some ranks of some machines."""
        return bool(self.stragglers)

    def predictor_of(self, rank: int) -> Predictor:
        """Return what prices the operations of one rank."""
        predictor: Any = (self.stragglers or {}).get(rank, self.predictor)
        return predictor  # type: ignore[no-any-return]  # a predictor


@dataclass(frozen=True, slots=True)
class Recording:
    """A run that was executed on one machine, for all that do the same.

    Args:
        run: the run.
        program: its moments.
        prices: what their durations are the prices of.
        recorder: what was asked and chosen.
        excesses: when ranks exceeded memories.
        prepared: the run on its machine.
    """

    run: Run
    program: Program
    prices: Sequence[Price]
    recorder: Recorder
    excesses: Sequence[Excess]
    prepared: PreparedRun

    @property
    def num_events(self) -> int:
        """How many events were recorded."""
        return len(self.program.begin)

    def durations(self, fleet: Fleet, chosen: Ints) -> Floats:
        """Return how long operations take on some machines of a fleet, s, (num_prices, num_chosen).

        Raises:
            NotRecordedError: they move other bytes there.
        """
        found = np.empty((len(self.prices), len(chosen)))
        for row, own in zip(found, self.prices, strict=True):
            question = self.recorder.questions.get(id(own), (None,))[0]
            price = own if question is None else question.ask(fleet.of_rank(question.rank))
            if price.size_bytes != own.size_bytes:
                raise NotRecordedError("operations move different bytes on different machines")
            row[:] = fleet.column(price.seconds)[chosen]
        if self.prepared.contention:
            self._slow_down(found, fleet, chosen)
        return found

    def _slow_down(self, durations: Floats, fleet: Fleet, chosen: Ints) -> None:
        """Let operations last as long as they do beside others on some machines of a fleet."""
        logs: Any = self.run.class_logs
        asked = self.recorder.questions
        known = {place: asked[id(own)][0] for place, own in enumerate(self.prices) if id(own) in asked}
        answers = {id(one): _on_each(one.ask(fleet.of_rank(one.rank)), chosen) for one in known.values()}
        number_of = {id(own): place for place, own in enumerate(self.prices)}
        numbers = [[number_of[id(price)] for price in log._rows[PRICE::STRIDE]] for log in logs]
        again = Retiming(logs, getattr(getattr(self.run, "expansion", None), "lowest", int))
        for machine in range(len(chosen)):
            prices = [
                answers[id(known[place])][machine] if place in known else own for place, own in enumerate(self.prices)
            ]
            again.set_out([[prices[place] for place in places] for places in numbers])
            for log, places in zip(again.run(), numbers, strict=True):
                durations[places, machine] = [price.seconds for price in log._rows[PRICE::STRIDE]]

    def agrees(self, fleet: Fleet, chosen: Ints) -> np.typing.NDArray[np.bool_]:
        """Return which of some machines of a fleet make the choices of the run."""
        found = np.ones(len(chosen), dtype=bool)
        for decision in self.recorder.decisions:
            found &= decision.agrees(fleet, chosen)
        hosts = getattr(fleet.predictor, "host_capacity_bytes", None)
        if hosts is not None and self.run.peak_host_memory_bytes:
            found &= fleet.column(hosts)[chosen] >= self.run.peak_host_memory_bytes
        return found


def _on_each(price: Price, chosen: Ints) -> list[Price]:
    """Return a price on each of some machines of a fleet."""
    values = [getattr(price, field.name) for field in fields(Price)]
    is_column = [isinstance(value, np.ndarray) and value.ndim > 0 for value in values]
    columns = [
        value[chosen].tolist() if each else [value] * len(chosen) for value, each in zip(values, is_column, strict=True)
    ]
    return list(map(Price, *columns))


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """Machines that were executed at once, or that must be simulated one by one.

    Args:
        places: which machines.
        figures: theirs; None where they must be simulated.
        reason: why they were not executed with all others; None where they were.
    """

    places: Ints
    figures: JointFigures | None
    reason: str | None = None


async def execute(prepared: PreparedRun, machines: Machines) -> list[MachineGroup]:
    """Execute a strategy for several machines, as many at once as do the same.

    Args:
        prepared: the strategy and its parameters, all but what prices it: its own predictor and slowdown are not used.
        machines: what prices it on each machine.
    """
    alone = np.flatnonzero([source is None for source in machines.sources])
    groups = [MachineGroup(alone, None, "each is simulated by itself")] if alone.size else []
    alike: dict[Hashable, list[tuple[Fleet, Ints]]] = defaultdict(list)
    for fleet in machines.fleets(prepared.parameters.world_size, prepared.parameters.workload or MATMUL_LAYER):
        alike[fleet.shares_recording, _said(prepared, fleet)].append((fleet, np.arange(len(fleet))))
    for parts in alike.values():
        groups += await _execute_alike(prepared, machines, parts)
    return groups


async def _execute_alike(
    prepared: PreparedRun, machines: Machines, parts: Sequence[tuple[Fleet, Ints]]
) -> list[MachineGroup]:
    """Execute a strategy for machines on which ranks sit alike."""
    groups: list[MachineGroup] = []
    reason, kept = None, _kept(prepared, machines, parts)
    while parts:
        try:
            fleet, chosen = parts[0]
            recording = next((one for one in kept if one.agrees(fleet, chosen[:1]).all()), None)
            if recording is None:
                recording = await record(prepared, machines, parts)
                if len(kept) < _MOST_KEPT and recording.num_events <= _MOST_EVENTS_KEPT:
                    kept.append(recording)
            same = _that_agree(recording, parts)
            groups += _timed(recording, [part for part in same if len(part[1])], reason)
        except Exception as error:  # the simulation of one machine reports it properly
            why = str(error) if isinstance(error, NotRecordedError) else f"{type(error).__name__}: {error}"
            places = np.concatenate([fleet.places[chosen] for fleet, chosen in parts])
            return [*groups, MachineGroup(places, None, why)]
        parts = [
            (fleet, left)
            for (fleet, chosen), (_, timed) in zip(parts, same, strict=True)
            if len(left := np.setdiff1d(chosen, timed, assume_unique=True))
        ]
        reason = "machines part ways by their prices"
    return groups


def _kept(prepared: PreparedRun, machines: Machines, parts: Sequence[tuple[Fleet, Ints]]) -> list[Recording]:
    """Return the list of what was recorded for machines on which ranks sit alike, to be added to.

    A strategy of one's own may do something else the next time.
    """
    fleet = parts[0][0]
    of_run = [
        getattr(prepared.parameters, field.name) for field in fields(RunParameters) if field.name not in PRICE_ONLY
    ]
    others = prepared.watch, prepared.simulate, prepared.variant, prepared.folded_kind, prepared.entry_clocks
    told = *of_run, *others, *prepared.options.values()
    try:
        key = (
            *(prepared.function, *prepared.options, *map(type, told), *told, prepared.is_later),
            *(fleet.shares_recording, _said(prepared, fleet), machines.stragglers, *_sizes(parts)),
        )
        return _recordings(key) if is_shipped(unwrapped(prepared.function)) else []
    except TypeError:  # something cannot be compared
        return []


@lru_cache(maxsize=8)
def _recordings(key: Hashable) -> list[Recording]:  # noqa: ARG001
    return []


def _said(prepared: PreparedRun, fleet: Fleet) -> str:
    """Return whether contention has a price on some machines."""
    return contention_in_words(replace(prepared, predictor=fleet.predictor))


def _sizes(parts: Sequence[tuple[Fleet, Ints]]) -> list[float]:
    """Return the memories whose excess is noted while a run is recorded, ascending, bytes."""
    if fills_devices(parts[0][0].predictor.workload):
        return []  # what devices hold is compared at the end
    return sorted({size for fleet, _ in parts for size in fleet.of_each("capacity_bytes") if size is not None})


def _that_agree(recording: Recording, parts: Sequence[tuple[Fleet, Ints]]) -> list[tuple[Fleet, Ints]]:
    """Return which machines make the choices of a run.

    Raises:
        NotRecordedError: none does, which is a fault of prices that differ from one question to the next.
    """
    found = [(fleet, chosen[recording.agrees(fleet, chosen)]) for fleet, chosen in parts]
    if not any(len(chosen) for _, chosen in found):
        raise NotRecordedError("what the run chooses by prices is not what it would choose")
    return found


def _timed(recording: Recording, parts: Sequence[tuple[Fleet, Ints]], reason: str | None) -> list[MachineGroup]:
    """Return the figures of machines that do what a run did, as many at once as there is room for."""
    most = min(MOST_AT_ONCE, max(1, MOST_BYTES // (8 * len(recording.program.code))))
    groups = []
    batch: list[tuple[Fleet, Ints]] = []
    room = most
    for fleet, chosen in parts:
        left = chosen
        while len(left):
            batch.append((fleet, left[:room]))
            room, left = room - len(left[:room]), left[room:]
            if not room:
                groups.append(_group(recording, batch, reason))
                batch, room = [], most
    return [*groups, *([_group(recording, batch, reason)] if batch else [])]


def _group(recording: Recording, parts: Sequence[tuple[Fleet, Ints]], reason: str | None) -> MachineGroup:
    """Return the figures of some machines."""
    durations = np.concatenate([recording.durations(fleet, chosen) for fleet, chosen in parts], axis=1)
    places = np.concatenate([fleet.places[chosen] for fleet, chosen in parts])
    recorded = Recorded(recording.run, recording.program, recording.prices, durations, recording.excesses)
    said = contention_in_words(recording.prepared)
    return MachineGroup(places, JointFigures(recorded, list(parts), said), reason)


async def record(prepared: PreparedRun, machines: Machines, parts: Sequence[tuple[Fleet, Ints]]) -> Recording:
    """Execute a strategy on the first of some machines, and note what it asks.

    Args:
        prepared: the strategy and its parameters.
        machines: all machines.
        parts: the machines.

    Raises:
        NotRecordedError: the strategy looks at a clock or at a price.
    """
    fleet, chosen = parts[0]
    (first,) = machines.one(int(fleet.places[chosen[0]])).fleets(
        prepared.parameters.world_size, prepared.parameters.workload or MATMUL_LAYER
    )
    recorder = Recorder(first.predictor)
    stragglers = {rank: Recorder(first.of_rank(rank), rank, recorder) for rank in machines.stragglers}
    hosts = [(getattr(fleet.predictor, "host_capacity_bytes", None), fleet, chosen) for fleet, chosen in parts]
    if all(size is not None for size, *_ in hosts):  # those that hold less are executed apart
        recorder.host_capacity_bytes = max(float(fleet.column(size)[chosen].max()) for size, fleet, chosen in hosts)
    sizes = _sizes(parts)
    watches: list[CapacityWatch] = []

    def made(kind: Callable[..., Model], *args: Any, **named: Any) -> Model:
        model = kind(*args, **named)
        model._looked_at = recorder.look
        watches.append(CapacityWatch(model, sizes))
        return model

    own: dict[str, Any] = {
        "predictor": recorder,
        "variant": Variant(partial(made, Model), Run, lambda _: contextlib.nullcontext(), lambda _: {}),
        "folded_kind": partial(made, FoldedModel),
    }
    known = {field.name: getattr(prepared, field.name) for field in fields(PreparedRun)}
    run = await simulate_prepared(RecordedRun(**{**known, **own}, stragglers=stragglers))
    for model in run.class_models:
        model._looked_at = None
    if recorder.looked:
        raise NotRecordedError(recorder.looked)
    here = replace(prepared, predictor=first.predictor)
    if here.contention:
        _tell_apart(run, recorder)
    program, prices = program_of_logs(run.class_logs, run.ranks_of_class_logs)
    times = _own_times(run, program, prices)
    moments = {id(model): rank for model, rank in zip(run.class_models, program.ranks, strict=True)}
    found = [
        (watch.model._rank, excess, excess.moment(program, moments[id(watch.model)], times))
        for watch in watches
        if id(watch.model) in moments
        for excess in watch.excesses
    ]
    excesses = [Excess(rank, excess, moment) for rank, excess, moment in found if moment is not None]
    if len(excesses) < len(found):
        raise NotRecordedError("a memory is exceeded at no clock that operations have")
    return Recording(run, program, prices, recorder, excesses, here)


def _tell_apart(run: Run, recorder: Recorder) -> None:
    """Give each operation of a run a price of its own, since equal ones last unequally beside others."""
    for log in run.class_logs:
        rows: Any = log._rows  # type: ignore[attr-defined]  # a flat log
        own = [replace(price) for price in rows[PRICE::STRIDE]]
        for price, found in zip(rows[PRICE::STRIDE], own, strict=True):
            if id(price) in recorder.questions:
                recorder.questions[id(found)] = recorder.questions[id(price)][0], found
        rows[PRICE::STRIDE] = own


def _own_times(run: Run, program: Program, prices: Sequence[Price]) -> Floats:
    """Return when all values come on the machine on which a run was executed, s, (num_values,).

    Raises:
        NotRecordedError: they are not the clocks of the run, since the strategy has set one.
    """
    times = retime(program, seconds_of(prices))[:, 0]
    for moments, log, model in zip(program.ranks, run.class_logs, run.class_models, strict=True):
        rows: Any = log._rows  # type: ignore[attr-defined]  # a flat log
        same = times[moments.begin].tolist() == rows[TIME::STRIDE] and times[moments.clock] == model.time
        if not same or times[moments.submitted].tolist() != rows[LAUNCHED::STRIDE]:
            raise NotRecordedError("clocks are not those of the operations")
    return times


async def step_times(prepared: PreparedRun, machines: Machines) -> Floats:
    """Return the step time of a run on each machine, s, (num_machines,); raises what a simulation of one does."""
    found = np.empty(len(machines.sources))
    workload = prepared.parameters.workload or MATMUL_LAYER
    for group in await execute(prepared, machines):
        if group.figures is not None:
            found[group.places] = group.figures.step_time
            continue
        for place in group.places.tolist():
            (one,) = machines.one(place).fleets(prepared.parameters.world_size, workload)
            alone: Any = replace(prepared, predictor=one.predictor)
            found[place] = (await simulate_prepared(alone)).step_time
    return found
