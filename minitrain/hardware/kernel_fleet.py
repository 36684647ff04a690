"""Machines that are priced by their kernels and differ in numbers alone, priced together: a `KernelPredictor` for many.

The formulas are those of `hardware.kernel_device`, with an array of one number a machine in the place of a number, so
that the prices are those of each machine's own predictor, to the last float, which tests/vector/test_kernel_fleets.py
checks. A pass of a layer is listed once for all machines. Transfers are few, and each machine's own network prices
them.

The machines of a fleet have kernels, rates and tiers of the same kinds, equal rows of efficiency, and are run in the
same way. Rates, bandwidths, capacities, numbers of units and latencies may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Any, final

import numpy as np

from minitrain.hardware.config import SystemConfig
from minitrain.hardware.kernel_device import Arithmetic, KernelDevice
from minitrain.hardware.kernel_predictor import KernelPredictor
from minitrain.hardware.layer_predictor import LayerPredictor
from minitrain.hardware.many_predictors import PricedMachines
from minitrain.hardware.measured_layers import MeasuredLayers
from minitrain.hardware.measured_topology import places_of
from minitrain.hardware.per_machine import per_machine
from minitrain.hardware.predictor import DevicePredictor
from minitrain.hardware.topology import Topology, Transfer
from minitrain.workloads.kernels import KernelList
from minitrain.workloads.workload import Cost, Workload

_ON_ARRAYS = Arithmetic(np.maximum, lambda numbers: reduce(np.minimum, numbers), np.ceil)


def with_kernel_fleets(parts: Sequence[PricedMachines]) -> list[PricedMachines]:
    """Return the same machines, with those that are priced by their kernels in as few fleets as there are kinds.

    Args:
        parts: machines and what prices them.
    """
    found: list[PricedMachines] = []
    alike: dict[Hashable, list[PricedMachines]] = {}
    known: dict[int, Hashable] = {}
    for part in parts:
        base, layers = _parts_of(part.predictor)
        if type(base) is KernelPredictor and part.predictor.reference is None:
            alike.setdefault((id(layers), _kind_of(base, known)), []).append(part)
        else:
            found.append(part)
    return [*found, *(_together(group) for group in alike.values())]


def _parts_of(predictor: Any) -> tuple[Any, MeasuredLayers | None]:
    """Return what prices all but layers that were measured, and these if there are any."""
    return (predictor.base, predictor.layers) if type(predictor) is LayerPredictor else (predictor, None)


def _together(parts: Sequence[PricedMachines]) -> PricedMachines:
    """Return machines of one kind as one part."""
    if len(parts) == 1:
        return parts[0]
    fleet = KernelFleet([_parts_of(part.predictor)[0] for part in parts for _ in part.machines])
    layers = _parts_of(parts[0].predictor)[1]
    predictor = fleet if layers is None else LayerPredictor(layers, fleet)
    return PricedMachines(np.concatenate([part.machines for part in parts]), predictor)


@final
class KernelFleet(KernelPredictor):
    """Price operations on machines that differ in numbers alone.

    Args:
        machines: the predictor of each.
    """

    prices_ranks_alike = True
    """Whether ranks that do the same pay the same, as on the networks that folding knows."""

    def __init__(self, machines: Sequence[KernelPredictor]) -> None:
        vars(self).update(vars(machines[0]))  # how they are run is the same on all
        self.machines = machines
        topology = _EachTopology([machine.topology for machine in machines])
        DevicePredictor.__init__(self, machines[0].workload, _Device(machines), topology)

    def of_each(self, name: str) -> list[Any]:
        """Return a figure of each machine, None where it has none."""
        return [getattr(machine, name, None) for machine in self.machines]

    def training(self, workload: Workload) -> KernelFleet:
        """Return the same machines for another workload."""
        other = KernelFleet([machine.training(workload) for machine in self.machines])
        return other if self.reference is None else other.slowed(self.slowdown)


@final
class _Device:
    """The devices of the machines; see `KernelDevice`.

    Args:
        machines: the predictor of each.
    """

    def __init__(self, machines: Sequence[KernelPredictor]) -> None:
        devices: list[Any] = [machine.device for machine in machines]
        self._each = devices
        system: SystemConfig = replace(
            devices[0].system, processor=columns_of([device.system.processor for device in devices])
        )
        rates, launch_s = (columns_of([getattr(device, name) for device in devices]) for name in ("rates", "launch_s"))
        self._columns = KernelDevice(system, rates, launch_s=launch_s, arithmetic=_ON_ARRAYS)

    @property
    def capacity_bytes(self) -> Any:
        """The devices' own memory."""
        return self._of_each(lambda device: device.capacity_bytes)

    @property
    def usable_bytes(self) -> Any:
        """What the drivers leave of it to a process."""
        return self._of_each(lambda device: device.usable_bytes)

    @property
    def host_capacity_bytes(self) -> Any:
        """The hosts' memory."""
        return self._of_each(lambda device: device.host_capacity_bytes)

    def peak_flop_per_s(self, datatype: str) -> Any:
        """Return the peak rates, FLOP/s; see `KernelDevice.peak_flop_per_s`."""
        return self._of_each(lambda device: device.peak_flop_per_s(datatype))

    def load_seconds(self, size_bytes: float) -> Any:
        """Return the time of reading the hosts' memory, s."""
        return self._of_each(lambda device: device.load_seconds(size_bytes))

    def seconds(self, cost: Cost, datatype: str) -> Any:
        """Return the time of an operation of which only FLOPs and bytes are known, s."""
        return self._of_each(lambda device: device.seconds(cost, datatype))

    def pass_seconds(self, work: KernelList) -> Any:
        """Return how long a pass takes, s."""
        seconds = self._columns.pass_seconds(work)
        return per_machine(np.broadcast_to(np.asarray(seconds, dtype=float), len(self._each)))

    def _of_each(self, ask: Callable[[KernelDevice], float]) -> Any:
        """Return a number of every device."""
        return _numbers(map(ask, self._each))


@final
class _EachTopology:
    """The networks of the machines, each of which is asked.

    Args:
        topologies: the network of each.

    Attributes:
        places: which ranks sit where, the same on all; None where all pairs of ranks are alike.
    """

    def __init__(self, topologies: Sequence[Topology]) -> None:
        self._topologies = topologies
        self.kind = topologies[0].kind  # type: ignore[attr-defined]  # those of a `KernelPredictor` have one
        self.places: Any = places_of(topologies[0])

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Transfer:
        """Price a collective."""
        return _of_all([topology.collective(op, size_bytes, ranks, algorithm) for topology in self._topologies])

    def p2p(self, size_bytes: float, source: int, dest: int) -> Transfer:
        """Price a message."""
        return _of_all([topology.p2p(size_bytes, source, dest) for topology in self._topologies])


def _of_all(transfers: Sequence[Transfer]) -> Transfer:
    """Return a transfer that takes another time on each machine; its tier is that of the first."""
    return Transfer(_numbers(transfer.seconds for transfer in transfers), None, transfers[0].tier)


def _numbers(numbers: Iterable[float]) -> Any:
    """Return a number for each machine, or the one that all have."""
    return per_machine(np.array(list(numbers), dtype=float))


def _kind_of(predictor: KernelPredictor, known: dict[int, Hashable]) -> Hashable:
    """Return what is equal for machines that can be priced together.

    Args:
        predictor: that of a machine.
        known: the kinds of what was looked at before, by identity: configs that vary share most of their parts.
    """
    platform, device, topology = predictor.pricing.known_platform, predictor.device, predictor.topology
    run_as = (
        predictor.style,
        frozenset(predictor.pricing.without),
        platform.parts_exposed,
        platform.parts_overlap,
        id(predictor.workload),
        predictor.world_size,
    )
    tiers = tuple(
        (tier.size, tier.must_be_filled, tuple(tier.ops.items()), tier.processor_usage)
        for tier in predictor.system.networks
    )
    places = places_of(topology)
    where = type(topology), None if places is None else places.placement, tiers
    system: SystemConfig = device.system  # type: ignore[attr-defined]  # a `KernelDevice` has one
    rates = system.kernels or device.rates  # type: ignore[attr-defined]  # those of the config share more
    return run_as, where, kind_of_value(system.processor, known), kind_of_value(rates, known)


def kind_of_value(value: Any, known: dict[int, Hashable]) -> Hashable:
    """Return what is equal for values that differ in single numbers alone.

    Args:
        value: a number, a text, rows, or a dataclass or mapping of them.
        known: the kinds of dataclasses that were asked for, by their identity; they are added.

    >>> kind_of_value({"a": 1, "b": (1, 2)}, {}) == kind_of_value({"a": 3, "b": (1, 2)}, {})
    True
    """
    names = getattr(value, "__dataclass_fields__", None)
    if names is not None:
        if id(value) not in known:
            known[id(value)] = type(value), tuple([kind_of_value(getattr(value, name), known) for name in names])
        return known[id(value)]
    if isinstance(value, Mapping):
        return tuple([(key, kind_of_value(each, known)) for key, each in value.items()])
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return tuple([kind_of_value(each, known) for each in value])
    return "a number" if _is_number(value) else value  # else a text, None, or rows


def columns_of(values: Sequence[Any]) -> Any:
    """Return values of one kind as one, with an array where numbers differ.

    >>> columns_of([{"a": 1.0, "b": 3}, {"a": 2.0, "b": 3}])["a"]
    array([1., 2.])
    """
    first = values[0]
    if all(value is first for value in values):
        return first
    if _is_number(first):
        return first if all(value == first for value in values) else np.array(values, dtype=float)
    if is_dataclass(first):
        names = [each.name for each in fields(first)]
        changes = {name: columns_of([getattr(value, name) for value in values]) for name in names}
        return replace(first, **changes)  # type: ignore[type-var]  # an object, not its class
    if isinstance(first, Mapping):
        return MappingProxyType({key: columns_of([value[key] for value in values]) for key in first})
    if isinstance(first, tuple) and first and is_dataclass(first[0]):
        return tuple(columns_of(each) for each in zip(*values, strict=True))
    return first


def _is_number(value: Any) -> bool:
    """Return whether a value is a single number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
