"""One execution of a strategy for several machines, and one for each group of them where their choices differ.

`execute` is for callers that have predictors (sweeps, `noise`): it takes a prepared run, and what prices it on each
machine. All machines share one execution as long as no choice in it depends on a clock or a price. Where a choice
differs between machines, the execution ends, and each group of machines is executed by itself. A group of one machine
is simulated as always.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from minitrain.hardware.chosen_predictor import make_predictor
from minitrain.hardware.config import SystemConfig
from minitrain.hardware.free_loading import with_free_loading
from minitrain.hardware.kernel_fleet import with_kernel_fleets
from minitrain.hardware.layer_predictor import LayerPredictor
from minitrain.hardware.many_predictors import ManyPredictors, PricedMachines
from minitrain.hardware.measured_layers import MeasuredLayers
from minitrain.hardware.per_machine import WATCH, Floats, Ints, MachineWatch
from minitrain.hardware.price import Predictor
from minitrain.hardware.pricing import Pricing
from minitrain.hardware.roofline_fleet import fleets_of
from minitrain.run.prepared_run import PreparedRun
from minitrain.run.result import Run
from minitrain.run.simulation import simulate_prepared
from minitrain.run.variants import Variant
from minitrain.vector.joint_figures import JointFigures
from minitrain.vector.models import VectorFoldedModel, VectorModel
from minitrain.workloads.matmul import MATMUL_LAYER
from minitrain.workloads.workload import Workload

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
