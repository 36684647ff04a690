"""One predictor for several machines: each of its prices has a time for each machine, as a `PerMachine` number.

It is put together from parts, each with the machines that it answers for: a machine's own predictor, or a fleet,
which answers for hundreds at once. The
figures are those that each machine's own predictor gives, to the last float. What a price says beside its time and its
bytes (the algorithm, the tier) is left out, as it may differ.

Machines whose configs differ in numbers alone, priced together: the roofline and tiers of `RuntimePredictor`.

The formulas are those of `hardware.device`, `hardware.network` and `hardware.topology`, with the numbers of all
machines in the place of one, and the same operations in the same order. So the prices are those that each machine's own
predictor gives, to the last float, which tests/vector/test_price.py checks. The machines of a fleet have tiers of the
same sizes with the same rows; peaks, bandwidths, efficiencies, capacities and latencies may differ.

Machines that are priced by their kernels and differ in numbers alone, priced together: a `KernelPredictor` for many.

The formulas are those of `hardware.kernel_device`, with an array of one number a machine in the place of a number, so
that the prices are those of each machine's own predictor, to the last float, which tests/vector/test_kernel_fleets.py
checks. A pass of a layer is listed once for all machines. Transfers are few, and each machine's own network prices
them.

The machines of a fleet have kernels, rates and tiers of the same kinds, equal rows of efficiency, and are run in the
same way. Rates, bandwidths, capacities, numbers of units and latencies may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property, partial, reduce
from types import MappingProxyType
from typing import Any, final

import numpy as np

from minitrain.hardware.config import SystemConfig
from minitrain.hardware.device import Memory, Rate, Rows, efficiency_at
from minitrain.hardware.kernel_device import Arithmetic, KernelDevice
from minitrain.hardware.measured_layers import MeasuredLayers
from minitrain.hardware.measured_topology import places_of
from minitrain.hardware.network import Network, two_level_seconds
from minitrain.hardware.per_machine import Floats, Ints, PerMachine, least, part_ways, per_machine, values_of
from minitrain.hardware.predictor import DevicePredictor, KernelPredictor, LayerPredictor, make_topology
from minitrain.hardware.price import Price
from minitrain.hardware.topology import (
    TWO_LEVEL_OPS,
    FlatTopology,
    GroupShape,
    Step,
    Topology,
    Transfer,
    require_row_of,
    seconds_by,
)
from minitrain.workloads.kernels import KernelList
from minitrain.workloads.workload import Cost, Workload, fills_devices

Answer = Callable[..., Price]


@final
@dataclass(frozen=True, slots=True)
class PricedMachines:
    """Machines whose prices come from one predictor.

    Args:
        machines: their places among all.
        predictor: one machine's, or a fleet.
    """

    machines: Ints
    predictor: Any


class ManyPredictors:
    """The prices of several machines for one rank, or for all ranks.

    Args:
        parts: the machines, each in one of them.
        reference: the predictor of ranks that are no stragglers; None for such a one.

    Attributes:
        workload: what all machines train.
        num_machines: how many there are.
        topology: where ranks sit on each machine, for folding.
        host_transfer: prices a move to or from the host; None where no machine has one.
    """

    peak_flop_per_s = None  # columns of results take the machines' own
    capacity_bytes = None
    system = None

    def __init__(self, parts: Sequence[PricedMachines], reference: ManyPredictors | None = None) -> None:
        self.parts = parts
        self.reference = reference
        self.workload = parts[0].predictor.workload
        self.num_machines = sum(len(part.machines) for part in parts)
        self.prices_layers_alike = all(getattr(part.predictor, "prices_layers_alike", False) for part in parts)
        self.topology = ManyTopologies([getattr(part.predictor, "topology", None) for part in parts], self._collect)
        ask = cache(self._price)
        self.compute: Answer = partial(ask, "compute")
        self.update: Answer = partial(ask, "update")
        self.load: Answer = partial(ask, "load")
        self.p2p: Answer = partial(ask, "p2p")
        self.collective: Answer = partial(ask, "collective")

    @property
    def host_transfer(self) -> Answer | None:
        """What prices moves to and from the host; None where there is no host."""
        known = [getattr(part.predictor, "host_transfer", None) is not None for part in self.parts]
        return partial(self._price, "host_transfer") if self._collect(known) else None

    @property
    def host_capacity_bytes(self) -> Any:
        """The memory of a rank's host on each machine; None where there is no host."""
        found = [getattr(part.predictor, "host_capacity_bytes", None) for part in self.parts]
        if self._collect([size is None for size in found]):
            return None
        return self._collect(found)

    @cached_property
    def capacities(self) -> tuple[list[float], Ints]:
        """The different sizes of the machines' memories, ascending, bytes, and which of them each has; -1 for none."""
        sizes = self.of_each("capacity_bytes")
        known = np.array([np.nan if size is None else size for size in sizes], dtype=float)
        _, firsts, labels = np.unique(known, return_index=True, return_inverse=True)
        labels = np.where(np.isnan(known), -1, labels.reshape(-1))
        return [size for first in firsts.tolist() if (size := sizes[first]) is not None], labels

    def kinds(self) -> list[str | None]:
        """Return how each machine prices transfers: "flat", "hierarchical", "measured", or None."""
        found: list[str | None] = [None] * self.num_machines
        for part in self.parts:
            kind = getattr(getattr(part.predictor, "topology", None), "kind", None)
            for machine in part.machines.tolist():
                found[machine] = kind
        return found

    def of_each(self, name: str) -> list[Any]:
        """Return a figure of each machine's own predictor, None where it has none."""
        found: list[Any] = [None] * self.num_machines
        for part in self.parts:
            for machine, figure in zip(part.machines.tolist(), _figures(part, name), strict=True):
                found[machine] = figure
        return found

    def slowed(self, factor: float) -> ManyPredictors:
        """Return the same machines for a rank whose computing takes `factor` times as long."""
        return self.slowed_by(np.full(self.num_machines, float(factor)))

    def slowed_by(self, factors: Floats) -> ManyPredictors:
        """Return the same machines for a rank that is a straggler on some of them.

        Args:
            factors: how many times as long computing takes, (num_machines,); 1 for those where it is none.
        """
        parts = [PricedMachines(part.machines, _slowed(part.predictor, factors[part.machines])) for part in self.parts]
        return ManyPredictors(parts, self.reference or self)

    def training(self, workload: Any) -> ManyPredictors:
        """Return the same machines for another workload."""
        reference = self.reference and self.reference.training(workload)
        return ManyPredictors(
            [PricedMachines(part.machines, part.predictor.training(workload)) for part in self.parts], reference
        )

    def _price(self, kind: str, *question: Any, **named: Any) -> Price:
        """Ask every part."""
        answers = [getattr(part.predictor, kind)(*question, **named) for part in self.parts]
        seconds = self._collect([answer.seconds for answer in answers])
        return Price(seconds, self._collect([answer.size_bytes for answer in answers]))

    def _collect(self, numbers: Sequence[Any]) -> Any:
        """Return the numbers of all machines, from those of the parts; one number where all have the same."""
        first = numbers[0]
        if len(numbers) == 1 or (type(first) is not PerMachine and numbers.count(first) == len(numbers)):
            return first
        found = np.empty(self.num_machines)
        for part, number in zip(self.parts, numbers, strict=True):
            found[part.machines] = values_of(number)
        return per_machine(found)


def _figures(part: PricedMachines, name: str) -> list[Any]:
    """Return a figure of each machine of a part."""
    of_each = getattr(part.predictor, "of_each", None)
    return [getattr(part.predictor, name, None)] * len(part.machines) if of_each is None else of_each(name)


def _slowed(predictor: Any, factors: Floats) -> Any:
    """Return the predictor of a part for a rank that is a straggler."""
    factor = per_machine(factors)
    return predictor if type(factor) is float and factor == 1.0 else predictor.slowed(factor)


class ManyTopologies:
    """Where the ranks of a run sit on several machines.

    Args:
        parts: what prices transfers on each part of the machines.
        collect: makes a number for each machine of one for each part.
    """

    kind = None

    def __init__(self, parts: Sequence[Any], collect: Callable[[Sequence[Any]], Any]) -> None:
        self._parts = parts
        self._collect = collect

    @property
    def places(self) -> Any:
        """Which ranks sit where, for folding; None where all pairs of ranks are alike on all machines.

        Raises:
            MachinesDifferError: they are alike on some machines only.
        """
        found = [None if part is None else places_of(part) for part in self._parts]
        are_flat = [place is None for place in found]
        if len(set(are_flat)) > 1:
            part_ways(values_of(self._collect(are_flat)), "folding the ranks of flat networks beside those of others")
        return None if are_flat[0] else _ManyPlaces(found, self._collect)


class _ManyPlaces:
    """Which ranks sit where on several machines, as folding asks `RankNodes`."""

    def __init__(self, parts: Sequence[Any], collect: Callable[[Sequence[Any]], Any]) -> None:
        self._parts = parts
        self._collect = collect

    def one_of_each_shape(self, ranks: Sequence[int], steps: Iterable[Step]) -> list[Sequence[int]]:
        """Return groups that stand for a group and all its copies, on every machine."""
        listed = list(steps)
        return list(dict.fromkeys(group for part in self._parts for group in part.one_of_each_shape(ranks, listed)))

    def distance(self, source: int, dest: int) -> Any:
        """Return the size of the tier that carries a message between two ranks, on each machine."""
        return self._collect([part.distance(source, dest) for part in self._parts])


def fleets_of(
    systems: Sequence[SystemConfig], world_size: int, network: str, placement: Sequence[int] | None, workload: Workload
) -> list[PricedMachines]:
    """Return machines in as few fleets as there are kinds of network.

    Args:
        systems: a config a machine.
        world_size: number of ranks.
        network: "auto", "flat" or "hierarchical".
        placement: node of each rank.
        workload: what is trained.

    Raises:
        UsageError: the network of a machine does not connect so many ranks.
    """
    fleets: dict[Hashable, list[int]] = {}
    for machine, system in enumerate(systems):
        fleets.setdefault(_kind_of_network(system.networks), []).append(machine)
    return [
        PricedMachines(
            np.array(machines),
            RooflineFleet([systems[machine] for machine in machines], world_size, network, placement, workload),
        )
        for machines in fleets.values()
    ]


def _kind_of_network(tiers: Sequence[Network]) -> Hashable:
    """Return what networks have in common that differ in latency, bandwidth and efficiency alone."""
    return tuple((tier.size, tier.must_be_filled, frozenset(tier.ops.items())) for tier in tiers)


@final
class RooflineFleet(DevicePredictor):
    """Price operations on machines whose networks are alike but for numbers.

    Args:
        systems: a config a machine.
        world_size: number of ranks.
        network: "auto", "flat" or "hierarchical".
        placement: node of each rank.
        workload: what is trained.
    """

    prices_ranks_alike = True
    """Whether ranks that do the same pay the same, as on the networks that folding knows."""

    def __init__(
        self,
        systems: Sequence[SystemConfig],
        world_size: int,
        network: str,
        placement: Sequence[int] | None,
        workload: Workload,
    ) -> None:
        self.systems = systems
        self.world_size = world_size
        places = make_topology(systems[0].networks, world_size, network, placement)
        super().__init__(workload, _Device(systems), _Topology(places, systems))

    def of_each(self, name: str) -> list[Any]:
        """Return a figure of each machine: system, capacity_bytes, peak_flop_per_s, or one that all share."""
        if name == "system":
            return list(self.systems)
        if name == "capacity_bytes":
            memories = [system.mem1 for system in self.systems]
            whole = not fills_devices(self.workload)
            return [memory.capacity_bytes if whole else memory.usable_bytes for memory in memories]
        found = getattr(self, name, None)
        if name != "peak_flop_per_s":
            return [found] * len(self.systems)
        peaks: list[Any] = np.broadcast_to(values_of(found), len(self.systems)).tolist()
        return peaks

    @property
    def num_nodes(self) -> int:
        """How many units of the smallest tier the ranks sit in."""
        places: Any = self.topology.places  # type: ignore[attr-defined]  # its own kind of topology
        if places is not None:
            return int(places.num_nodes)
        return -(-self.world_size // min(tier.size for tier in self.systems[0].networks))


@final
class _Topology:
    """The networks of the machines.

    Args:
        model: that of the first machine, whose ranks sit as on the others.
        systems: a config a machine.

    Attributes:
        places: which ranks sit where; None where all pairs of ranks are alike.
    """

    def __init__(self, model: Topology, systems: Sequence[SystemConfig]) -> None:
        self.kind = model.kind  # type: ignore[attr-defined]  # those of `make_topology` have one
        self.places: Any = None if isinstance(model, FlatTopology) else model
        self._tier = model.tier if isinstance(model, FlatTopology) else None
        self._numbers = {
            id(tier): _tier_of([system.networks[place] for system in systems])
            for place, tier in enumerate(systems[0].networks)
        }
        self._messages: dict[tuple[int, float], Any] = {}

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Transfer:
        """Price a collective; see `HierarchicalTopology.collective`."""
        if self._tier is not None:
            require_row_of(op, algorithm, self._tier)
            return Transfer(self._numbers[id(self._tier)].time(op, size_bytes, len(ranks)), None, self._tier)
        shape: GroupShape = self.places.shape(ranks)
        tier = self._numbers[id(shape.tier)]
        if algorithm is not None and shape.split.num_ranks > 1:
            inner = self._numbers[id(self.places.tiers[0])]
            return Transfer(seconds_by(algorithm, op, size_bytes, inner, tier, shape.split), None, shape.tier)
        seconds = tier.time(op, size_bytes, shape.split.num_ranks)
        if op in TWO_LEVEL_OPS and shape.split.has_two_levels and not (op == "all_to_all" and op in tier.ops):
            inner = self._numbers[id(self.places.tiers[0])]
            nested = two_level_seconds(op, size_bytes, inner, tier, shape.split)
            seconds = least(nested, seconds)
        return Transfer(seconds, None, shape.tier)

    def p2p(self, size_bytes: float, source: int, dest: int) -> Transfer:
        """Price a message."""
        tier = self._tier or self.places.p2p(size_bytes, source, dest).tier
        key = id(tier), size_bytes
        if key not in self._messages:
            self._messages[key] = self._numbers[id(tier)].time("p2p", size_bytes, 2)
        return Transfer(self._messages[key], None, tier)


def _tier_of(tiers: Sequence[Network]) -> Network:
    """Return a tier whose numbers are those of the same tier on all machines."""
    return replace(
        tiers[0],
        bandwidth=_column(tier.bandwidth for tier in tiers),
        efficiency=_column(tier.efficiency for tier in tiers),
        latency=_column(tier.latency for tier in tiers),
    )


@final
class _Device:
    """The devices of the machines; see `RooflineDevice`.

    Args:
        systems: a config a machine.
    """

    def __init__(self, systems: Sequence[SystemConfig]) -> None:
        self._systems = systems
        self._memory = _Speeds.of_memory([system.mem1 for system in systems])
        self._host_memory = _Speeds.of_memory([system.mem_pcie for system in systems])
        self._processors: dict[str, _Speeds] = {}

    @property
    def capacity_bytes(self) -> Any:
        """The devices' own memory."""
        return _column(system.mem1.capacity_bytes for system in self._systems)

    @property
    def usable_bytes(self) -> Any:
        """What the drivers leave of it to a process."""
        return _column(system.mem1.usable_bytes for system in self._systems)

    @property
    def host_capacity_bytes(self) -> Any:
        """The hosts' memory."""
        return _column(system.mem_pcie.capacity_bytes for system in self._systems)

    def peak_flop_per_s(self, datatype: str) -> Any:
        """Return the matrix units' peak rates, FLOP/s."""
        return per_machine(self._speeds(datatype).peaks)

    def seconds(self, cost: Cost, datatype: str) -> Any:
        """Return the slower of arithmetic and memory traffic, s."""
        arithmetic = cost.work_flop / self._speeds(datatype).at(cost.work_flop) if cost.work_flop else 0.0
        traffic = cost.traffic_bytes / self._memory.at(cost.traffic_bytes) if cost.traffic_bytes else 0.0
        return per_machine(np.broadcast_to(np.maximum(arithmetic, traffic), len(self._systems)))

    def load_seconds(self, size_bytes: float) -> Any:
        """Return the time of reading the hosts' memory, s."""
        return per_machine(size_bytes / self._host_memory.at(size_bytes)) if size_bytes else 0.0

    def _speeds(self, datatype: str) -> _Speeds:
        """Return the rates of a datatype."""
        if datatype not in self._processors:
            rates = [system.processor.rate(datatype) for system in self._systems]
            self._processors[datatype] = _Speeds.of_rates(rates)
        return self._processors[datatype]


@final
class _Speeds:
    """What units of all machines reach, by the size of an operation.

    Args:
        peaks: their peaks, in 1 / s, (num_machines,).
        rows: the efficiency rows of each.
        unit: what the bounds of rows count.
    """

    def __init__(self, peaks: Floats, rows: Sequence[Rows], unit: float) -> None:
        self.peaks = peaks
        self._unit = unit
        distinct: dict[Rows, int] = {}
        by_identity = {id(each): each for each in rows}
        labels = {key: distinct.setdefault(each, len(distinct)) for key, each in by_identity.items()}
        self._distinct = list(distinct)
        self._label = np.array([labels[id(each)] for each in rows]) if len(distinct) > 1 else None

    @staticmethod
    def of_rates(rates: Sequence[Rate]) -> _Speeds:
        """Return those of processors, FLOP/s."""
        return _Speeds(
            np.array([rate.tflops for rate in rates]) * 1e12, [rate.gflops_efficiency for rate in rates], 1e9
        )

    @staticmethod
    def of_memory(memories: Sequence[Memory]) -> _Speeds:
        """Return those of memories, bytes/s."""
        peaks = np.array([memory.GBps for memory in memories]) * 1e9
        return _Speeds(peaks, [memory.MB_efficiency for memory in memories], 1e6)

    def at(self, amount: float) -> Floats:
        """Return the speed that an operation of some size reaches on each machine."""
        found = [efficiency_at(rows, amount, self._unit) for rows in self._distinct]
        return self.peaks * (found[0] if self._label is None else np.array(found)[self._label])


def _column(numbers: Iterable[float]) -> Any:
    """Return a number for each machine, or the one that all have."""
    return per_machine(np.array(list(numbers), dtype=float))


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
        DevicePredictor.__init__(self, machines[0].workload, _KernelDevices(machines), topology)

    def of_each(self, name: str) -> list[Any]:
        """Return a figure of each machine, None where it has none."""
        return [getattr(machine, name, None) for machine in self.machines]

    def training(self, workload: Workload) -> KernelFleet:
        """Return the same machines for another workload."""
        other = KernelFleet([machine.training(workload) for machine in self.machines])
        return other if self.reference is None else other.slowed(self.slowdown)


@final
class _KernelDevices:
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
