"""The machines of one call, in as few fleets as there are kinds: one config a fleet, whose numbers are columns.

Machines of one kind differ in numbers alone: rates, bandwidths, latencies, capacities. The predictor of their config
answers for all of them at once, with an array of seconds (see `minitrain.machine.columns`). A predictor that was given
as hardware is a fleet of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from minitrain.machine.columns import UnlikeError, columns_of
from minitrain.machine.config import SystemConfig
from minitrain.machine.config_variation import is_number_path, with_value
from minitrain.machine.measured_topology import places_of
from minitrain.machine.predictor import make_predictor, network_of
from minitrain.machine.price import ROOFLINE, Predictor, Pricing
from minitrain.run.analysis.timeline import Floats, Ints
from minitrain.workloads.workload import Workload


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
        run_as: dict[int, Hashable] = {}
        alike: dict[Hashable, list[int]] = {}
        fixed = [values for path, values in self.varied.items() if not is_number_path(path)]
        columns: list[Hashable] = list(zip(*fixed, strict=True)) or [()] * len(self.sources)
        for place, source in enumerate(self.sources):
            if source is None:
                continue
            if id(source) not in run_as:
                run_as[id(source)] = _run_as(source, known)
            alike.setdefault((run_as[id(source)], columns[place]), []).append(place)
        pending, found = list(alike.values()), []
        while pending:
            places = pending.pop(0)
            try:
                found.append(self._fleet(np.array(places), world_size, workload))
            except UnlikeError as unlike:
                parts: dict[Hashable, list[int]] = {}
                for place, label in zip(places, unlike.labels, strict=True):
                    parts.setdefault(label, []).append(place)
                pending = [*parts.values(), *pending]
        return found

    def _fleet(self, places: Ints, world_size: int, workload: Workload) -> Fleet:
        """Return machines that are run alike as one fleet.

        Raises:
            UnlikeError: they differ in more than numbers.
        """
        sources: list[Any] = [self.sources[place] for place in places.tolist()]
        hardware: Any = sources[0].hardware
        if isinstance(hardware, SystemConfig):
            hardware = _together([source.hardware for source in sources], hasattr(workload, "pass_kernels"))
            for path, values in self.varied.items():
                hardware = with_value(hardware, path, columns_of([values[place] for place in places.tolist()]))
        own = sources[0]
        predictor: Any = make_predictor(hardware, world_size, own.network, own.placement, workload, own.pricing)
        factors = {rank: self._factors(rank, places) for rank in self.stragglers}
        return Fleet(places, predictor, [source.hardware for source in sources], factors)

    def _factors(self, rank: int, places: Ints) -> Any:
        """Return by what factor a rank computes more slowly on some machines: a column, or one that all have."""
        found = [float((self.slowdowns[place] or {}).get(rank, 1.0)) for place in places.tolist()]  # type: ignore[index]
        return columns_of(found)

    def one(self, place: int) -> Machines:
        """Return one of the machines."""
        slowdowns = None if self.slowdowns is None else [self.slowdowns[place]]
        return Machines([self.sources[place]], slowdowns, {path: [each[place]] for path, each in self.varied.items()})


def _run_as(machine: Machine, known: dict[int, Hashable]) -> Hashable:
    """Return what is equal for machines that are run alike, if they differ in numbers alone.

    Args:
        machine: one of them.
        known: how machines of a pricing are run, by its identity; it is added.
    """
    hardware, network, placement, pricing = machine
    if not isinstance(hardware, SystemConfig):
        return id(machine)
    if id(pricing) not in known:
        platform = pricing.platform if isinstance(pricing.platform, str | None) else id(pricing.platform)
        known[id(pricing)] = pricing.fidelity, platform, pricing.without, id(pricing.prices), pricing.stands_for
    named = hardware.name if pricing.platform is not None or pricing.stands_for is not None else None
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
    """

    places: Ints
    predictor: Any
    hardware: Sequence[Any]
    factors: Mapping[int, Any]

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

    def of_each(self, name: str) -> list[Any]:
        """Return a figure of each machine: system, kind of its network, or what its predictor says; None for none."""
        if name == "system":
            own = getattr(self.predictor, "system", None)
            return [one if isinstance(one, SystemConfig) else own for one in self.hardware]
        found = network_of(self.predictor) if name == "network" else getattr(self.predictor, name, None)
        if isinstance(found, np.ndarray):
            listed: list[Any] = found.tolist()
            return listed
        return [found] * len(self)
