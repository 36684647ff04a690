"""One execution of a strategy for several machines, and one for each group of them where their choices differ.

`execute` is for callers that have predictors (sweeps, `noise`): it takes a prepared run, and what prices it on each
machine. All machines share one execution as long as no choice in it depends on a clock or a price. Where a choice
differs between machines, the execution ends, and each group of machines is executed by itself. A group of one machine
is simulated as always.

Communications whose clocks are arrays of one number a machine.

The engine asks which of two clocks is later, and machines may differ in the answer. Each such place is overridden here:
before the engine's own code compares, the clocks are replaced by the later ones, machine by machine, so that all
machines agree. Which rank was waited for differs between machines, and is not kept.

The models of a run on several machines: those of all ranks, or of classes of folded ranks.

They are the engine's own models, but for their communications. Clocks become arrays because prices are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from minitrain.events import LAUNCHED, STRIDE
from minitrain.folding.class_operation import ClassOperation
from minitrain.folding.model import FoldedModel
from minitrain.hardware.config import SystemConfig
from minitrain.hardware.fixed_durations import with_free_loading
from minitrain.hardware.fleets import ManyPredictors, PricedMachines, fleets_of, with_kernel_fleets
from minitrain.hardware.measured_layers import MeasuredLayers
from minitrain.hardware.per_machine import WATCH, Floats, Ints, MachineWatch, later, latest
from minitrain.hardware.predictor import LayerPredictor, make_predictor
from minitrain.hardware.price import Predictor, Price, Pricing
from minitrain.rank.model import Model
from minitrain.rank.operations import Operation
from minitrain.run.rank_tasks import PreparedRun
from minitrain.run.result import Run
from minitrain.run.simulation import simulate_prepared
from minitrain.run.variants import Variant
from minitrain.vector.joint_figures import CapacityWatch, JointFigures
from minitrain.workloads.matmul import MATMUL_LAYER
from minitrain.workloads.workload import Workload


def _on_each_machine(settle: Callable[..., None]) -> Callable[..., None]:
    """Return a `settle_all` that begins a collective when all are there and the group's stream is free."""

    def settle_all(
        calls: Sequence[Any], results: Sequence[Any], clocks: Sequence[Any], start: Any, last: int, largest_bytes: int
    ) -> None:
        begin = later(start, calls[0].owner.communicator.busy_until)
        settle(calls, results, [begin] * len(clocks), begin, last, largest_bytes)

    return settle_all


class VectorOperation(Operation):
    """One communication that a rank has submitted, on all machines."""

    __slots__ = ()
    settle_all = staticmethod(_on_each_machine(Operation.settle_all))

    @staticmethod
    def latest(clocks: Sequence[Any], ranks: Sequence[int]) -> tuple[Any, int]:
        """Return when the last member of a group was ready on each machine; which one it was is not needed."""
        return latest(clocks), ranks[0]

    def depart(self, price: Price) -> None:
        """Run a send as soon as its stream is free."""
        owner: Any = self.owner
        self.clock = later(self.clock, owner.busy_until)
        super().depart(price)

    def _receive(self, sent: Any) -> None:
        """Run a receive from when its message is here."""
        self.clock = later(self.clock, sent)
        super()._receive(self.clock)

    def _run(self, start: Any, waited_for: int | None, price: Price, samples: frozenset[int]) -> None:
        """Run on the peer's stream from `start` on, or from when the stream is free."""
        owner: Any = self.owner
        super()._run(later(start, owner.busy_until), waited_for, price, samples)

    def __await__(self) -> Generator[Any, None, Any]:
        # As `Operation.__await__`, but for the clock: a call for it there would cost every run.
        model = self.model
        if model.launching:
            yield self  # `Communication.launch` takes it from here
        if not self.settled:
            try:
                yield model._transport.suspend(self)
            except BaseException:
                self._give_up()
                raise
        if self.error is not None:
            raise self.error.with_traceback(None)
        if model.time is model._rows[self.row + LAUNCHED]:  # nothing ends before it was launched
            model.time = self.end
        else:
            model.time = later(model.time, self.end)
        if self.chain is not None:
            self.chain.finish()
        if self.launched_memory is not None or len(model._rows) != self.row + STRIDE:
            self._arrive()
        return self.outcome


class VectorClassOperation(VectorOperation):
    """The part of a class of folded ranks in a collective with members of several classes, on all machines."""

    __slots__ = ("own_value",)
    own_value: Any
    given = ClassOperation.given
    settle_all = staticmethod(_on_each_machine(ClassOperation.settle_all))


class VectorModel(Model):
    """One rank, on all machines.

    Adds:
        _operation_kind: communications whose clocks are those of all machines.
        capacities: notes on which machines the rank holds too much.
    """

    _operation_kind = VectorOperation

    def __init__(self, *args: Any, **parameters: Any) -> None:
        super().__init__(*args, **parameters)
        self.capacities = CapacityWatch(self)


class VectorFoldedModel(FoldedModel):
    """One class of folded ranks, on all machines; see `VectorModel`."""

    _operation_kind = VectorOperation
    _class_operation_kind: type[Operation] = VectorClassOperation

    def __init__(self, *args: Any, **parameters: Any) -> None:
        super().__init__(*args, **parameters)
        self.capacities = CapacityWatch(self)


MOST_AT_ONCE = 4096
"""Machines of one execution: more do not make it quicker."""


class Config(NamedTuple):
    """A machine whose operations are priced by the roofline, or whose layers were measured.

    Args:
        system: its config.
        network: "auto", "flat" or "hierarchical".
        placement: node of each rank.
        prices: measured times of layers.
    """

    system: SystemConfig
    network: str = "auto"
    placement: Sequence[int] | None = None
    prices: MeasuredLayers | None = None

    def predictor(self, world_size: int, workload: Workload | None) -> Predictor:
        """Return the predictor of a run on this machine alone."""
        pricing = Pricing("roofline", prices=self.prices)
        return make_predictor(self.system, world_size, self.network, self.placement, workload, pricing)


MOST_BYTES = 2**29
"""What the clocks of one execution may take."""

Source = Config | Predictor
"""What prices a run on one machine."""

_VARIANT = Variant(VectorModel, Run, lambda _: contextlib.nullcontext(), lambda _: {})


@dataclass(frozen=True, slots=True)
class VectorRun(PreparedRun):
    """A run that is ready to be executed for several machines at once.

    Args:
        slowdowns: how many times as long computing takes, by rank, one a machine.
    """

    slowdowns: Mapping[int, Floats] | None = None

    @property
    def has_stragglers(self) -> bool:
        """Whether computing takes longer on some ranks of some machines."""
        return bool(self.slowdowns)

    def predictor_of(self, rank: int) -> Predictor:
        """Return the predictor of one rank, which may be a straggler on some machines."""
        predictor: Any = self.predictor
        factors = (self.slowdowns or {}).get(rank)
        return predictor if factors is None else predictor.slowed_by(factors)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Machines:
    """The sources of prices of each machine.

    Args:
        sources: one a machine; None for one that is to be simulated by itself.
        slowdowns: factor by which computing takes longer, by rank, one mapping (or None) a machine; None for none.
    """

    sources: Sequence[Source | None]
    slowdowns: Sequence[Mapping[int, float] | None] | None = None

    def predictor(self, places: Ints, prepared: PreparedRun) -> ManyPredictors:
        """Return one predictor for some of the machines."""
        world_size, workload = prepared.parameters.world_size, prepared.parameters.workload or MATMUL_LAYER
        configs: dict[Any, list[int]] = {}
        parts = []
        for place, machine in enumerate(places.tolist()):
            source = self.sources[machine]
            if isinstance(source, Config):
                key = source.network, source.placement and tuple(source.placement), id(source.prices)
                configs.setdefault(key, []).append(place)
            else:
                parts.append(PricedMachines(np.array([place]), source))
        for (network, placement, _), found in configs.items():
            alike: list[Any] = [self.sources[machine] for machine in places[found].tolist()]
            prices, systems = alike[0].prices, [source.system for source in alike]
            for part in fleets_of(systems, world_size, network, placement, workload):
                priced = part.predictor if prices is None else LayerPredictor(prices, part.predictor)
                parts.append(PricedMachines(np.array(found)[part.machines], priced))
        return ManyPredictors(with_kernel_fleets(parts))

    def predictor_of_one(self, place: int, prepared: PreparedRun) -> Predictor:
        """Return the predictor of one of the machines."""
        source: Any = self.sources[place]
        if not isinstance(source, Config):
            return source  # type: ignore[no-any-return]  # a Predictor
        return source.predictor(prepared.parameters.world_size, prepared.parameters.workload)

    def slowdowns_of(self, places: Ints) -> dict[int, Floats]:
        """Return the factors of ranks that are stragglers on some of the machines, (len(places),) each."""
        if self.slowdowns is None:
            return {}
        chosen = [self.slowdowns[place] or {} for place in places.tolist()]
        ranks = dict.fromkeys(rank for each in chosen for rank in each)
        return {rank: np.array([each.get(rank, 1.0) for each in chosen], dtype=float) for rank in ranks}


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
    known = np.flatnonzero([source is not None for source in machines.sources])
    alone = np.flatnonzero([source is None for source in machines.sources])
    groups = [MachineGroup(alone, None, "each is simulated by itself")] if alone.size else []
    pending: list[tuple[Ints, str | None]] = [
        (known[first : first + MOST_AT_ONCE], None) for first in range(0, len(known), MOST_AT_ONCE)
    ]
    while pending:
        places, reason = pending.pop(0)
        if len(places) == 1:
            groups.append(MachineGroup(places, None, reason))
            continue
        watch = MachineWatch(len(places), MOST_BYTES)
        try:
            groups.append(MachineGroup(places, await _execute_once(prepared, machines, places, watch), reason))
        except Exception as error:  # the simulation of one machine reports it properly
            if watch.parts is None:
                groups.append(MachineGroup(places, None, f"{type(error).__name__}: {error}"))
                continue
        if watch.parts is not None:
            groups = [group for group in groups if group.places is not places]
            parts = [places[watch.parts == label] for label in range(watch.parts.max() + 1)]
            pending = [(part, watch.place) for part in parts] + pending
    return groups


async def step_times(prepared: PreparedRun, machines: Machines) -> Floats:
    """Return the step time of a run on each machine, s, (num_machines,); raises what a simulation of one does."""
    found = np.empty(len(machines.sources))
    for group in await execute(prepared, machines):
        if group.figures is not None:
            found[group.places] = group.figures.step_time
            continue
        for place in group.places.tolist():
            one: Any = replace(prepared, predictor=machines.predictor_of_one(place, prepared))
            found[place] = (await simulate_prepared(one)).step_time
    return found


async def _execute_once(prepared: PreparedRun, machines: Machines, places: Ints, watch: MachineWatch) -> JointFigures:
    """Execute a strategy for machines that do the same, as far as is known."""
    token = WATCH.set(watch)
    try:
        predictor = machines.predictor(places, prepared)
        known = {field.name: getattr(prepared, field.name) for field in fields(PreparedRun)}
        own = {"predictor": predictor, "variant": _VARIANT, "folded_kind": VectorFoldedModel}
        joint = VectorRun(**{**known, **own}, slowdowns=machines.slowdowns_of(places))
        run = await simulate_prepared(joint)
        free = None if run.loads_alike else replace(joint, predictor=with_free_loading(predictor))
        without_loading = None if free is None else await simulate_prepared(free)
    finally:
        WATCH.reset(token)
    return JointFigures(run, predictor, without_loading)
