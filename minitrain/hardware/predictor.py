"""How long each operation takes: workload x hardware -> seconds.

An operation of a layer follows the roofline (Williams et al. 2009): the slower of its arithmetic at the processor's
throughput and its traffic at the memory's. A transfer follows the network tier's row for that operation. Both
throughputs depend on the size of the operation, by the efficiency rows of the hardware config.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from minitrain.errors import UsageError, require_count
from minitrain.hardware import (
    FlatTopology,
    HierarchicalTopology,
    SystemConfig,
    Topology,
    load_config,
    select_tier,
)
from minitrain.workloads.workload import MATMUL_LAYER, Cost, Workload


@dataclass(frozen=True, slots=True)
class Price:
    """What one operation costs.

    Args:
        seconds: its duration, s.
        size_bytes: bytes it puts on the wire, 0 for compute.
        algorithm: "ring" or "hierarchical" where the network offers the choice, else None.
        processor_usage: share of the processor that driving the transfer takes, 0 to 1.
        tier_size: processors that the network tier carrying it spans, which tells tiers apart; 0 for compute.
    """

    seconds: float
    size_bytes: float = 0
    algorithm: str | None = None
    processor_usage: float = 0.0
    tier_size: int = 0


FREE = Price(0.0)
PENDING = Price(0.0)  # stands in a log until the price is known, for ever where an operation was given up


class Predictor(Protocol):
    """What a `Model` asks of the thing that prices its operations."""

    @property
    def workload(self) -> Workload:
        """What a layer costs."""
        ...

    @property
    def peak_flop_per_s(self) -> float | None:
        """The device's peak rate, or None where durations are given by hand."""
        ...

    @property
    def capacity_bytes(self) -> float | None:
        """The device's memory, or None where there is no device."""
        ...

    def compute(self, typ: str, num_samples: int, layer: int = 0) -> Price:
        """Price a forward, loss, backward, backward_input or backward_weight of a layer."""
        ...

    def update(self, num_shards_on_device: int, num_shards: int, layer: int = 0) -> Price:
        """Price an optimizer step on some shards of a layer."""
        ...

    def load(self, num_shards_on_device: int, num_shards: int, layer: int = 0) -> Price:
        """Price loading some shards of a layer's weight."""
        ...

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int]) -> Price:
        """Price a collective among some ranks."""
        ...

    def p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        """Price one side ("send" or "recv") of a message."""
        ...

    def slowed(self, factor: float) -> Predictor:
        """Return the same predictor for a rank whose computing takes `factor` times as long."""
        ...


class RuntimePredictor:
    """Price operations on a machine that a hardware config describes.

    Args:
        world_size: number of ranks; the run's network is the smallest tier that spans them.
        config_file_name: a shipped config's name (with or without ".json"), a path, or a loaded config.
        network: "flat" (one tier for the whole run) or "hierarchical" (the tier that each group needs).
        placement: node of each rank, for the hierarchical network; rank order by default.
        workload: what a layer costs.

    Raises:
        HardwareConfigError: the config cannot be found, read or believed, or no tier spans world_size ranks.
    """

    def __init__(
        self,
        world_size: int,
        config_file_name: str | SystemConfig = "h100_80g_nvl8.json",
        *,
        network: str = "flat",
        placement: Sequence[int] | None = None,
        workload: Workload = MATMUL_LAYER,
    ) -> None:
        require_count("world_size", world_size)
        system = load_config(config_file_name)
        self.world_size = world_size
        self.system = system
        self.workload = workload
        self.processor = system.processor
        self.mem_hbm = system.mem_hbm
        self.mem_pcie = system.mem_pcie
        self.network = select_tier(system.networks, world_size)
        self.topology = _topology(self, network, placement)
        self._slowdown = 1.0
        self._remember_prices()

    def _remember_prices(self) -> None:
        """Let equal questions share one answer; all layers do where they are alike."""
        self._pass_price = cache(self._price_of_pass)
        self._update_price = cache(self._price_of_update)
        self._load_price = cache(self._price_of_load)
        self.compute = cache(self._compute)
        self.update = cache(self._update)
        self.load = cache(self._load)
        self.collective = cache(self._collective)
        self.p2p = self._alike(cache(self._p2p)) if isinstance(self.topology, FlatTopology) else cache(self._p2p)

    @staticmethod
    def _alike(price: Callable[[str, float, int, int], Price]) -> Callable[[str, float, int, int], Price]:
        """Let all pairs of ranks share one answer, where nobody sits closer to anybody."""
        return lambda op, size_bytes, source, dest: price(op, size_bytes, 0, 1)  # noqa: ARG005

    @property
    def peak_flop_per_s(self) -> float:
        """The processor's peak rate for the workload's datatype, FLOP/s."""
        return self.processor.peak(self.workload.datatype)

    @property
    def capacity_bytes(self) -> float:
        """The device's main memory, bytes."""
        return self.mem_hbm.capacity_bytes

    def slowed(self, factor: float) -> RuntimePredictor:
        """Return the same predictor for a rank whose computing takes `factor` times as long."""
        other = copy.copy(self)
        other._slowdown = self._slowdown * factor
        other._remember_prices()
        return other

    def compute_flops_time(self, flops: float) -> float:
        """Return the time of pure computation, s."""
        return flops / self.processor.throughput(self.workload.datatype, flops) if flops else 0.0

    def compute_mem_time(self, bytes_read_write: float) -> float:
        """Return the time of memory traffic, s."""
        return bytes_read_write / self.mem_hbm.throughput(bytes_read_write) if bytes_read_write else 0.0

    def get_processing_time(self, flops: float, bytes_read_write: float) -> float:
        """Return the time of an operation limited by the slower of the two, s (the roofline)."""
        return max(self.compute_flops_time(flops), self.compute_mem_time(bytes_read_write))

    def get_forward_backward_time(self, batch_size: int) -> float:
        """Return the time of a forward or of a backward pass of one layer, s."""
        return self._seconds(self.workload.compute_cost("forward", batch_size, 0))

    def get_update_step_time(self, num_shards_on_device: int, num_shards: int) -> float:
        """Return the time of an optimizer step on some shards of one layer, s."""
        return self._seconds(self.workload.update_cost(num_shards_on_device, num_shards, 0))

    def get_weight_load_time(self, num_shards_on_device: int, num_shards: int) -> float:
        """Return the time to load some shards of one layer from the host's memory, s."""
        return self._load_seconds(self.workload.load_bytes(num_shards_on_device, num_shards, 0))

    def get_comm_bytes(self, v: Any) -> int:
        """Return the bytes that a tensor puts on the wire.

        Raises:
            TensorTypeError: `v` is not one of the five kinds of tensor.
        """
        return self.workload.message_bytes(v)

    def get_collective_time(self, collective_name: str, v: Any) -> float:
        """Return the time of a collective among all ranks, s; 0 for a world of one."""
        return self.collective(collective_name, self.get_comm_bytes(v), range(self.world_size)).seconds

    def get_send_recv_time(self, v: Any) -> float:
        """Return the time of a message on the run's network, s."""
        return self.network.time("p2p", self.get_comm_bytes(v), 2)

    def _seconds(self, cost: Cost) -> float:
        """Return how long work of a cost takes, s; the caller applies its share."""
        return self.get_processing_time(cost.work_flop, cost.traffic_bytes)

    def _load_seconds(self, size_bytes: int) -> float:
        """Return how long loading takes from the host's memory, s."""
        return size_bytes / self.mem_pcie.throughput(size_bytes) if size_bytes else 0.0

    def _representative(self, layer: int) -> int:
        """Return the layer whose price a layer has."""
        return 0 if self.workload.is_uniform else layer

    def _compute(self, typ: str, num_samples: int, layer: int = 0) -> Price:
        return self._pass_price(typ, num_samples, self._representative(layer))

    def _update(self, num_shards_on_device: int, num_shards: int, layer: int = 0) -> Price:
        return self._update_price(num_shards_on_device, num_shards, self._representative(layer))

    def _load(self, num_shards_on_device: int, num_shards: int, layer: int = 0) -> Price:
        return self._load_price(num_shards_on_device, num_shards, self._representative(layer))

    def _price_of_pass(self, typ: str, num_samples: int, layer: int) -> Price:
        cost = self.workload.compute_cost(typ, num_samples, layer)
        return Price(self._seconds(cost) * cost.share * self._slowdown)

    def _price_of_update(self, num_shards_on_device: int, num_shards: int, layer: int) -> Price:
        cost = self.workload.update_cost(num_shards_on_device, num_shards, layer)
        return Price(self._seconds(cost) * self._slowdown)

    def _price_of_load(self, num_shards_on_device: int, num_shards: int, layer: int) -> Price:
        return Price(self._load_seconds(self.workload.load_bytes(num_shards_on_device, num_shards, layer)))

    def _collective(self, op: str, size_bytes: float, ranks: Sequence[int]) -> Price:
        if len(ranks) == 1:
            return Price(0.0, size_bytes)
        found = self.topology.collective(op, size_bytes, ranks)
        return Price(found.seconds, size_bytes, found.algorithm, found.tier.processor_usage, found.tier.size)

    def _p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:  # noqa: ARG002  (both sides pay)
        found = self.topology.p2p(size_bytes, source, dest)
        return Price(found.seconds, size_bytes, found.algorithm, found.tier.processor_usage, found.tier.size)


def _topology(predictor: RuntimePredictor, network: str, placement: Sequence[int] | None) -> Topology:
    """Return what prices transfers, by the network's name."""
    if network == "flat":
        if placement is not None:
            raise UsageError('placement needs network="hierarchical"; the flat network has no nodes')
        return FlatTopology(predictor.network)
    if network == "hierarchical":
        return HierarchicalTopology(predictor.system.networks, predictor.world_size, placement)
    raise UsageError(f'network must be "flat" or "hierarchical", got {network!r}', network=network)
