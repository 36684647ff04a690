"""How long each operation takes: a workload on a device and a network.

`DevicePredictor` is put together from the three, each of which can be another: what a layer costs (a `Workload`), how
long work of that cost takes (a `Device`), and how long a transfer takes (a `Topology`). `RuntimePredictor` is the
specified one: it takes device and network from a hardware config, and answers by the specification's names too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

from minitrain.errors import UsageError, require_count
from minitrain.hardware.config import SPECIFIED, SystemConfig, load_config
from minitrain.hardware.device import Device, RooflineDevice
from minitrain.hardware.network import Network, select_tier
from minitrain.hardware.price import Price
from minitrain.hardware.pricing import ROOFLINE
from minitrain.hardware.topology import FlatTopology, HierarchicalTopology, Topology, Transfer
from minitrain.workloads.matmul import MATMUL_LAYER
from minitrain.workloads.workload import USUAL, Cost, PassMode, Workload, fills_devices

NETWORKS = ("auto", "flat", "hierarchical")
_SPECIFIED_FILE = "h100_80g_nvl8.json"  # the specification's name of what is `SPECIFIED` here


class DevicePredictor:
    """Price the operations of a workload on a device and a network.

    Args:
        workload: what the layers cost and hold.
        device: what the rank runs on.
        topology: where ranks sit, and so what transfers between them take; shared by all ranks of a run.

    Attributes:
        slowdown: factor by which computing takes longer than the device says.
        pricing: how operations are priced.
        reference: the predictor of a rank that is no straggler; None for such a one.
    """

    prices_layers_alike = True
    """Whether layers that are alike have one price, so that it may be remembered for all of them."""

    pricing = ROOFLINE

    def __init__(self, workload: Workload, device: Device, topology: Topology) -> None:
        self.workload = workload
        self.device = device
        self.topology = topology
        self.slowdown = 1.0
        self.reference: Self | None = None
        self._remember_prices()

    def _remember_prices(self) -> None:
        """Let equal questions share one answer; all layers do where they are alike.

        Answers are kept in a dict, not by `functools.cache` of a method, which would refer to the predictor in turn:
        such a reference cycle stays in memory until Python's cycle collector runs, with all that a run has made.
        """
        self._answers: dict[tuple[Any, ...], Price] = {}
        self._pairs_are_alike = isinstance(self.topology, FlatTopology)

    def compute(self, typ: str, num_samples: int, layer: int = 0, mode: PassMode = USUAL) -> Price:
        """Price a pass through a layer."""
        question = "compute", typ, num_samples, layer, mode
        return self._answers.get(question) or self._answer(question)

    def update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
        """Price an optimizer step on some shards of a layer, or of one of its parts."""
        question = "update", num_shards_on_device, num_shards, layer, num_parts
        return self._answers.get(question) or self._answer(question)

    def load(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
        """Price loading some shards of a layer's weight, or of one of its parts."""
        question = "load", num_shards_on_device, num_shards, layer, num_parts
        return self._answers.get(question) or self._answer(question)

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        """Price a collective among some ranks, by an algorithm or by the network's choice."""
        question = "collective", op, size_bytes, ranks, algorithm
        return self._answers.get(question) or self._answer(question)

    def p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        """Price one side ("send" or "recv") of a message; once for all pairs, where all are equally far apart."""
        question = ("p2p", op, size_bytes, 0, 1) if self._pairs_are_alike else ("p2p", op, size_bytes, source, dest)
        return self._answers.get(question) or self._answer(question)

    def host_transfer(self, op: str, size_bytes: float) -> Price:
        """Price a move to or from the host's memory."""
        question = "host_transfer", op, size_bytes
        return self._answers.get(question) or self._answer(question)

    def _answer(self, question: tuple[Any, ...]) -> Price:
        """Answer a question for the first time; it begins with its kind."""
        kind, *asked = question
        price: Price = getattr(self, f"_{kind}")(*asked)
        self._answers[question] = price
        return price

    @property
    def peak_flop_per_s(self) -> float:
        """The device's peak rate for the workload's datatype, FLOP/s."""
        return self.device.peak_flop_per_s(self.workload.datatype)

    @property
    def capacity_bytes(self) -> float:
        """The device's main memory, bytes; what a process may use of it where all that it holds is counted."""
        whole = self.device.capacity_bytes
        return getattr(self.device, "usable_bytes", whole) if fills_devices(self.workload) else whole

    @property
    def host_capacity_bytes(self) -> float | None:
        """The memory of a rank's host, bytes; None where the device says nothing of it."""
        return getattr(self.device, "host_capacity_bytes", None)

    def slowed(self, factor: float) -> Self:
        """Return the same predictor for a rank whose computing takes `factor` times as long."""
        other = copy.copy(self)
        other.reference = self.reference or self
        other.slowdown = self.slowdown * factor
        other._remember_prices()
        return other

    def training(self, workload: Workload) -> Self:
        """Return the same machine for another workload."""
        other = copy.copy(self)
        other.reference = self.reference and self.reference.training(workload)
        other.workload = workload
        other._remember_prices()
        return other

    def _compute(self, typ: str, num_samples: int, layer: int = 0, mode: PassMode = USUAL) -> Price:
        if layer and self.workload.is_uniform:
            return self.compute(typ, num_samples) if mode is USUAL else self.compute(typ, num_samples, 0, mode)
        if mode is USUAL:  # a workload whose layers are alike need not know any other
            return self._price_of(self.workload.compute_cost(typ, num_samples, layer))
        return self._price_of(self.workload.compute_cost(typ, num_samples, layer, mode))

    def _update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
        if layer and self.workload.is_uniform:
            return self.update(num_shards_on_device, num_shards, 0, num_parts)
        parts = () if num_parts == 1 else (num_parts,)  # a workload need not know of parts
        return self._price_of(self.workload.update_cost(num_shards_on_device, num_shards, layer, *parts))

    def _load(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
        if layer and self.workload.is_uniform:
            return self.load(num_shards_on_device, num_shards, 0, num_parts)
        parts = () if num_parts == 1 else (num_parts,)
        size_bytes = self.workload.load_bytes(num_shards_on_device, num_shards, layer, *parts)
        return Price(self.device.load_seconds(size_bytes))

    def _price_of(self, cost: Cost) -> Price:
        return Price(self.device.seconds(cost, self.workload.datatype) * cost.share * self.slowdown)

    def _host_transfer(self, op: str, size_bytes: float) -> Price:  # noqa: ARG002  (both directions are alike)
        return Price(self.device.load_seconds(size_bytes), size_bytes)

    def _collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        if len(ranks) == 1:
            return Price(0.0, size_bytes)
        return _price_of_transfer(self.topology.collective(op, size_bytes, ranks, algorithm), size_bytes)

    def _p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:  # noqa: ARG002  (both sides pay)
        return _price_of_transfer(self.topology.p2p(size_bytes, source, dest), size_bytes)


def _price_of_transfer(found: Transfer, size_bytes: float) -> Price:
    """Return the price of a transfer of some bytes."""
    return Price(found.seconds, size_bytes, found.algorithm, found.tier.processor_usage, found.tier.size)


class RuntimePredictor(DevicePredictor):
    """Price operations on a machine that a hardware config describes.

    Args:
        world_size: number of ranks; the run's network is the smallest tier that spans them.
        config_file_name: a shipped config's name (with or without ".json"), a path, or a loaded config. The
            specification's file name means the specification's figures: `specified_h100_80g_nvl8`.
        network: "flat", "hierarchical" or "auto", as for `make_topology`.
        placement: node of each rank; rank order by default.
        workload: what the layers cost and hold.

    Raises:
        HardwareConfigError: the config cannot be found or read, or is invalid, or no tier spans world_size ranks.
    """

    def __init__(
        self,
        world_size: int,
        config_file_name: str | SystemConfig = _SPECIFIED_FILE,
        *,
        network: str = "flat",
        placement: Sequence[int] | None = None,
        workload: Workload = MATMUL_LAYER,
    ) -> None:
        require_count("world_size", world_size)
        system = load_config(SPECIFIED if config_file_name == _SPECIFIED_FILE else config_file_name)
        self.world_size = world_size
        self.system = system
        self.processor = system.processor
        self.mem_hbm = system.mem_hbm
        self.mem_pcie = system.mem_pcie
        self.network = select_tier(system.networks, world_size)
        self._roofline = RooflineDevice(self.processor, self.mem_hbm, self.mem_pcie)
        super().__init__(workload, self._roofline, make_topology(system.networks, world_size, network, placement))

    @property
    def num_nodes(self) -> int:
        """How many units of the smallest tier the ranks sit in."""
        if isinstance(self.topology, HierarchicalTopology):
            return self.topology.num_nodes
        return -(-self.world_size // min(tier.size for tier in self.system.networks))

    def compute_flops_time(self, flops: float) -> float:
        """Return the time of pure computation, s."""
        return self._roofline.arithmetic_seconds(flops, self.workload.datatype)

    def compute_mem_time(self, bytes_read_write: float) -> float:
        """Return the time of memory traffic, s."""
        return self._roofline.traffic_seconds(bytes_read_write)

    def get_processing_time(self, flops: float, bytes_read_write: float) -> float:
        """Return the time of an operation limited by the slower of the two, s (the roofline)."""
        return max(self.compute_flops_time(flops), self.compute_mem_time(bytes_read_write))

    def get_forward_backward_time(self, batch_size: int) -> float:
        """Return the time of a forward or of a backward pass of layer 0, s; by default all layers are alike."""
        cost = self.workload.compute_cost("forward", batch_size, 0)
        return self.get_processing_time(cost.work_flop, cost.traffic_bytes)

    def get_update_step_time(self, num_shards_on_device: int, num_shards: int) -> float:
        """Return the time of an optimizer step on some shards of layer 0, s."""
        cost = self.workload.update_cost(num_shards_on_device, num_shards, 0)
        return self.get_processing_time(cost.work_flop, cost.traffic_bytes)

    def get_weight_load_time(self, num_shards_on_device: int, num_shards: int) -> float:
        """Return the time to load some shards of layer 0 from the host's memory, s."""
        return self._roofline.load_seconds(self.workload.load_bytes(num_shards_on_device, num_shards, 0))

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


def network_of(predictor: Any) -> str | None:
    """Return "flat", "hierarchical" or another topology's kind; None where a predictor has none."""
    return getattr(getattr(predictor, "topology", None), "kind", None)


def make_topology(
    tiers: Sequence[Network], world_size: int, network: str = "flat", placement: Sequence[int] | None = None
) -> Topology:
    """Return what prices transfers between the ranks of a run.

    Args:
        tiers: those of a config, in any order.
        world_size: number of ranks.
        network: "flat" (one tier for the whole run), "hierarchical" (the tier that each group needs), or "auto": flat
            where all ranks fit into the smallest tier and have no placement, else hierarchical. "auto" takes any number
            of ranks; "hierarchical" takes those that fill each `must_be_filled` tier.
        placement: node of each rank; rank order by default. The flat network has no nodes.

    Raises:
        UsageError: there is no such network, or it takes no placement, or no tier spans the ranks.
    """
    if network not in NETWORKS:
        raise UsageError(f'network must be "auto", "flat" or "hierarchical", got {network!r}', network=network)
    if network == "flat" or (network == "auto" and placement is None and _fits_one_tier(tiers, world_size)):
        if placement is not None:
            raise UsageError('placement needs network="auto" or "hierarchical"; the flat network has no nodes')
        return FlatTopology(select_tier(tiers, world_size))
    return HierarchicalTopology(tiers, world_size, placement, may_be_unfilled=network == "auto")


def _fits_one_tier(tiers: Sequence[Network], world_size: int) -> bool:
    """Return whether all ranks fit into the smallest tier."""
    return world_size <= min((tier.size for tier in tiers), default=0)
