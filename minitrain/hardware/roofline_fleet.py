"""Machines whose configs differ in numbers alone, priced together: the roofline and tiers of `RuntimePredictor`.

The formulas are those of `hardware.device`, `hardware.network` and `hardware.topology`, with the numbers of all
machines in the place of one, and the same operations in the same order. So the prices are those that each machine's own
predictor gives, to the last float, which tests/vector/test_price.py checks. The machines of a fleet have tiers of the
same sizes with the same rows; peaks, bandwidths, efficiencies, capacities and latencies may differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from minitrain.hardware.config import SystemConfig
from minitrain.hardware.device import Memory, Rate, Rows, efficiency_at
from minitrain.hardware.many_predictors import PricedMachines
from minitrain.hardware.network import Network
from minitrain.hardware.per_machine import Floats, least, per_machine, values_of
from minitrain.hardware.predictor import DevicePredictor, make_topology
from minitrain.hardware.topology import (
    TWO_LEVEL_OPS,
    FlatTopology,
    GroupShape,
    Topology,
    Transfer,
    require_row_of,
    seconds_by,
)
from minitrain.hardware.two_level_collectives import two_level_seconds
from minitrain.workloads.workload import Cost, Workload, fills_devices


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
