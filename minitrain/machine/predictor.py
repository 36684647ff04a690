"""How long each operation takes: a workload on a device and a network.

`make_predictor` says which predictor a run has. `hardware` may be one, which then has prices of its own; otherwise it
names a hardware config, and the fidelity says how operations are priced on it.

- `DevicePredictor` is put together from three parts, each of which can be another: what a layer costs (a `Workload`),
  how long work of that cost takes (a `Device`), and how long a transfer takes (a `Topology`).
- `RuntimePredictor` is the specified one: it takes device and network from a hardware config, and answers by the
  specification's names too.
- `KernelPredictor` (`fidelity="kernels"`) asks the workload for the kernels of an operation and the device for their
  time, and adds them up. Equal operations of equal layers share one price: it is computed once for each kind of layer,
  number of samples and mode of passing. Transfers are priced by the curves of the config's tiers where they have any,
  by latency and bandwidth otherwise. `network="flat"` keeps the one tier that it asks for, without curves. Loading
  weights takes no time: what is priced is one step of many, and that is what measurements are of.
- `LayerPredictor` (`prices=mt.MeasuredLayers.read("layers.csv")`) takes forward, backward and update of a layer from
  the table; transfers, loads and the device's limits are those of another predictor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from minitrain.errors import HardwareConfigError, UsageError, require_count
from minitrain.machine.columns import larger
from minitrain.machine.config import SPECIFIED, SystemConfig, load_config
from minitrain.machine.device import STORAGE, Device, RooflineDevice
from minitrain.machine.device import TERMS as TERMS_OF_KERNELS
from minitrain.machine.dispatchers import has_experts, shape_of
from minitrain.machine.kernel_device import KernelDevice, eager_launch_s, gradients_beside, longer_by_pieces, rates_of
from minitrain.machine.kernel_device import loop_share as loop_share_of
from minitrain.machine.measured_layers import MeasuredLayers
from minitrain.machine.measured_topology import places_of, topology_of
from minitrain.machine.network import CHANNEL_GBPS, SENDING_WARPS, channels_of_message, memory_bytes, select_tier
from minitrain.machine.platforms import COMPONENTS, UPDATE_BYTES, StandsFor, exposed_share
from minitrain.machine.price import (
    FREE,
    ROOFLINE,
    Account,
    Part,
    Predictor,
    Price,
    Pricing,
    account_of_transfer,
    account_of_work,
)
from minitrain.machine.topology import FlatTopology, Topology, Transfer, make_topology
from minitrain.operations import ON_HOST, UPDATE_ON_HOST, WRITE
from minitrain.workloads.matmul import MATMUL_LAYER
from minitrain.workloads.workload import USUAL, WEIGHT_PASSES, PassMode, Style, Workload, fills_devices

if TYPE_CHECKING:
    from minitrain.workloads.kernels import KernelList
    from minitrain.workloads.unit_kernels import ListsKernels


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

    num_writers: int | None = None
    """How many ranks share the storage, where these are not all that the predictor was made for."""

    def __init__(self, workload: Workload, device: Device, topology: Topology) -> None:
        self.workload = workload
        self.device = device
        self.topology = topology
        self._slowdown = 1.0
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
        other._slowdown = self._slowdown * factor
        other._remember_prices()
        return other

    def training(self, workload: Workload) -> Self:
        """Return the same machine for another workload."""
        other = copy.copy(self)
        other.reference = self.reference and self.reference.training(workload)
        other.workload = workload
        other._remember_prices()
        return other

    def accounts(self) -> dict[int, Callable[[], Account]]:
        """Return what explains each price that was asked for, by the price's id."""
        return {id(price): partial(self._account, question, price) for question, price in self._answers.items()}

    def _account(self, question: tuple[Any, ...], price: Price) -> Account:
        """Return what a price is made of."""
        kind, *asked = question
        if kind == "compute":
            return self._account_of_work(self._work_of_pass(*asked), price)
        if kind == "update":
            return self._account_of_work(self._work_of_update(*asked), price)
        tiers = getattr(places_of(self.topology), "tiers", ())
        node_size = min(tier.size for tier in tiers) if len(tiers) > 1 else None
        if kind == "collective":
            op, _, ranks, algorithm = asked
            others = self._collective(op, 0, ranks, algorithm), self._on_wire(*asked)
            return account_of_transfer(op, price, *others, len(ranks), node_size)
        if kind == "p2p":
            return account_of_transfer("p2p", price, self._p2p(asked[0], 0, *asked[2:]), price, 2, node_size)
        shared = {WRITE: "a rank's share of the storage", UPDATE_ON_HOST: "a rank's share of the host's optimizer step"}
        of = shared.get(asked[0], "the host's memory")
        return Account(f"the bytes at the rate of {of}", Part("", price.seconds))

    def _account_of_work(self, work: Any, price: Price) -> Account:
        return account_of_work(work, self.device, self.workload.datatype, price)

    def _work_of_pass(self, typ: str, num_samples: int, layer: int = 0, mode: PassMode = USUAL) -> Any:
        """Return what a pass through a layer has to do: what `_price_of` prices."""
        return self.workload.compute_cost(typ, num_samples, layer, *(() if mode is USUAL else (mode,)))

    def _work_of_update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Any:
        """Return what an optimizer step has to do."""
        parts = () if num_parts == 1 else (num_parts,)  # a workload need not know of parts
        return self.workload.update_cost(num_shards_on_device, num_shards, layer, *parts)

    def _compute(self, typ: str, num_samples: int, layer: int = 0, mode: PassMode = USUAL) -> Price:
        first = self._first_like(layer)
        if first != layer:
            return self.compute(typ, num_samples, first, *(() if mode is USUAL else (mode,)))
        return self._price_of(self._work_of_pass(typ, num_samples, layer, mode))

    def _first_like(self, layer: int) -> int:
        """Return the first layer that costs the same as one."""
        return 0 if self.workload.is_uniform else layer

    def _update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
        first = self._first_like(layer)
        if first != layer:
            return self.update(num_shards_on_device, num_shards, first, *(() if num_parts == 1 else (num_parts,)))
        return self._price_of(self._work_of_update(num_shards_on_device, num_shards, layer, num_parts))

    def _load(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
        if layer and self.workload.is_uniform:
            return self.load(num_shards_on_device, num_shards, 0, num_parts)
        parts = () if num_parts == 1 else (num_parts,)
        size_bytes = self.workload.load_bytes(num_shards_on_device, num_shards, layer, *parts)
        return Price(self.device.load_seconds(size_bytes))

    def _price_of(self, cost: Any) -> Price:
        """Price the work of an operation: a `Cost`, or what another predictor's `_work_of_pass` returns."""
        return Price(self.device.seconds(cost, self.workload.datatype) * cost.share * self._slowdown)

    def _host_transfer(self, op: str, size_bytes: float) -> Price:
        """Price a move, which takes as long in both directions, or what ranks share: the storage, the host's update."""
        if op not in ON_HOST:
            return Price(self.device.load_seconds(size_bytes), size_bytes)
        known: Any = self
        ranks_a_node, num_ranks = -(-known.world_size // known.num_nodes), self.num_writers or known.world_size
        if op == UPDATE_ON_HOST:
            stated, usual = known.system.mem_pcie.update_s_per_billion, getattr(self, "_platform", COMPONENTS)
            rate = usual.host_update_s if stated is None else stated
            return Price(size_bytes / (UPDATE_BYTES * 1e9) * rate * ranks_a_node, size_bytes)
        return Price((known.system.storage or STORAGE).seconds(size_bytes, num_ranks, ranks_a_node), size_bytes)

    def _collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        if len(ranks) == 1:
            return Price(0.0, size_bytes)
        return _price_of_transfer(self.pricing.transfer(self.topology, op, size_bytes, ranks, algorithm), size_bytes)

    def _on_wire(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price | None:
        """Return the price of a collective of which computing hides nothing; None where nobody knows."""
        return DevicePredictor._collective(self, op, size_bytes, ranks, algorithm)

    def _p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:  # noqa: ARG002  (both sides pay)
        return _price_of_transfer(self.topology.p2p(size_bytes, source, dest), size_bytes)


def _price_of_transfer(found: Transfer, size_bytes: float) -> Price:
    """Return the price of a transfer of some bytes."""
    usage = found.tier.processor_usage if found.usage is None else found.usage
    return Price(found.seconds, size_bytes, found.algorithm, usage, found.tier.size)


class _ConfigPredictor(DevicePredictor):
    """Price operations on a machine that a hardware config describes."""

    system: SystemConfig
    world_size: int

    @property
    def num_nodes(self) -> int:
        """How many units of the smallest tier the ranks sit in."""
        places = places_of(self.topology)
        if places is not None:
            return int(places.num_nodes)
        return -(-self.world_size // min(tier.size for tier in self.system.networks))


class RuntimePredictor(_ConfigPredictor):
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
        self.network.time(collective_name, 0, self.world_size)  # refuses an unknown name, also in a world of one
        return self.collective(collective_name, self.get_comm_bytes(v), range(self.world_size)).seconds

    def get_send_recv_time(self, v: Any) -> float:
        """Return the time of a message on the run's network, s."""
        return self.network.time("p2p", self.get_comm_bytes(v), 2)


def network_of(predictor: Any) -> str | None:
    """Return "flat", "hierarchical" or another topology's kind; None where a predictor has none."""
    return getattr(getattr(predictor, "topology", None), "kind", None)


class KernelPredictor(_ConfigPredictor):
    """Price operations by their kernels, on a machine that a hardware config describes.

    Args:
        world_size: number of ranks.
        hardware: a shipped config's name, a path, or a loaded config.
        pricing: platform, and terms to leave out.
        network: "flat", "hierarchical" or "auto", as for `make_topology`.
        placement: node of each rank; rank order by default.
        workload: what is trained; it must list its kernels.

    Raises:
        HardwareConfigError: the config says neither what kernels reach nor how many units the device has.
        UsageError: the workload lists no kernels, or the network does not connect so many ranks.

    Example:
        >>> from minitrain.machine.price import Pricing
        >>> from minitrain.workloads.transformer_workload import find_workload
        >>> prices = KernelPredictor(8, "a100_80g", Pricing("kernels"), workload=find_workload("llama3-8b"))
        >>> round(prices.compute("forward", num_samples=1, layer=2).seconds * 1e3, 2)
        12.26
    """

    def __init__(
        self,
        world_size: int,
        hardware: str | SystemConfig,
        pricing: Pricing,
        *,
        network: str = "auto",
        placement: Sequence[int] | None = None,
        workload: Workload = MATMUL_LAYER,
    ) -> None:
        system, platform = load_config(hardware), pricing.known_platform
        rates, captures = rates_of(system), platform.captures_on(system.name)
        terms = [term for term in pricing.without if term in TERMS_OF_KERNELS]
        self.world_size, self.system, self.pricing = world_size, system, pricing
        self._platform, self._left_out = platform, frozenset(pricing.without)
        self._inner = min(system.networks, key=lambda tier: tier.size)
        is_module = platform.has_modules and not (platform.pads_experts or captures == "whole")
        is_waiting = is_module and has_experts(workload)
        self.style = Style(
            attention=platform.attention_of(rates),
            casts_apart=platform.casts_apart,
            **platform.habits,
            captures=captures,
            captures_experts=captures == "whole" or (platform.pads_experts and captures is True),
            loop_share=loop_share_of(system.name) if is_waiting else 1.0,
            module_share=1 / loop_share_of(system.name) if is_module and not (is_waiting or captures) else 1.0,
            num_gathered=int(cast("float", system.sheet.features.get("devices", 1))),
            transposes=system.sheet.device_class != "tpu"
            and cast("float", system.sheet.features.get("compute_capability", 0)) < _EITHER_ORDER,
        )
        launch_s = platform.launch_s
        if platform.is_eager and launch_s is None:
            launch_s = eager_launch_s(system.name, is_module=is_module and not captures, is_waiting=is_waiting)
            launch_s *= platform.launch_factor
        rates, launch_s = platform.rates(rates.without(*terms)), 0.0 if "launches" in terms else launch_s
        device = KernelDevice(system, rates, launch_s=launch_s, num_devices=world_size)
        topology = topology_of(system.networks, world_size, network, placement, without=pricing.without)
        super().__init__(workload, device, topology)

    def in_layout(self, layout: StandsFor) -> Self:
        """Return the same prices for runs of another layout."""
        if layout not in self._layouts:
            other = self._layouts[layout] = copy.copy(self)
            other.pricing = replace(self.pricing, stands_for=layout)
            other._platform = other.pricing.known_platform
            other.style = replace(self.style, **other._platform.habits)
            other._remember_prices()
        return self._layouts[layout]

    def _remember_prices(self) -> None:
        """Begin anew for a workload, which must list its kernels."""
        if not hasattr(self.workload, "pass_kernels"):
            raise UsageError(
                f'fidelity="kernels" needs a workload that lists its kernels, and {self.workload!r:.80} does not; '
                'train a transformer or the default layers, or leave fidelity="roofline"'
            )
        self._lists = cast("ListsKernels", self.workload)
        self._layouts: dict[StandsFor, Self] = {}
        super()._remember_prices()
        self._pairs_are_alike &= not self._platform.batches_messages  # those of a stage, and of two

    def _first_like(self, layer: int) -> int:
        return self._lists.first_like(layer)

    def _work_of_pass(self, typ: str, num_samples: int, layer: int = 0, mode: PassMode = USUAL) -> KernelList:
        return self._priced(self._lists.pass_kernels(typ, num_samples, layer, mode, self.style))

    def _work_of_update(
        self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1
    ) -> KernelList:
        return self._priced(self._lists.update_kernels(num_shards_on_device, num_shards, layer, num_parts, self.style))

    def _priced(self, work: KernelList) -> KernelList:
        """Return those of some kernels that an ablation does not leave out."""
        return work.without(self._left_out) if self._left_out else work

    def _load(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:  # noqa: ARG002
        return Price(0.0)  # a step of many: the weights are there

    def _collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        if "transfers" in self._left_out:
            return Price(0.0, size_bytes)
        price = self._unhidden(op, size_bytes, ranks, algorithm)
        return self._beside_memory(price, memory_bytes(op, size_bytes, len(ranks)))

    def _beside_memory(self, price: Price, traffic_bytes: float) -> Price:
        """Return the price of a transfer that reads and writes so many bytes of its ranks' memory."""
        return replace(price, memory_s=traffic_bytes / (cast(KernelDevice, self.device).rates.GBps * 1e9))

    def _unhidden(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None) -> Price:
        """Return the price of a collective but for what tensor parallelism hides of it."""
        platform = self._platform
        if platform.shares_by_rank and op in ("all_gather", "reduce_scatter"):
            gathered = super()._collective(op, size_bytes, ranks, algorithm)
            copies_s = _MATRICES_OF_UNIT * len(ranks) * eager_launch_s(self.system.name)
            return replace(gathered, seconds=gathered.seconds + copies_s)
        price, exposed = self._on_wire(op, size_bytes, ranks, algorithm), self._exposed(op, ranks)
        if price is None:
            return self._dispatch(size_bytes, ranks)
        if exposed is None:
            return price
        hidden = (1 - exposed) and self._not_hidden(op, price.seconds, size_bytes, len(ranks))
        longer = exposed * price.seconds + (1 - exposed) * hidden
        return replace(price, seconds=platform.parts_exposed * longer, size_bytes=size_bytes)

    def _on_wire(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price | None:
        is_copies = op == "all_to_all" and len(ranks) > 1 and has_experts(self.workload)
        if is_copies and self._platform.dispatcher != "alltoall" and "all_to_all" not in self.pricing.collectives:
            return None
        size_bytes *= (is_copies and self._platform.one_hot_capacity) or 1.0  # slots, taken or not
        precision = getattr(getattr(self.workload, "model", None), "precision", None)
        is_cast = op == "all_gather" and getattr(precision, "gathers_narrow", False)  # before, to half of the bits
        if is_cast and self._exposed(op, ranks) is not None:
            size_bytes /= 2
        return super()._on_wire(op, size_bytes, ranks, algorithm)

    def _exposed(self, op: str, ranks: Sequence[int]) -> float | None:
        """Return the share of a collective that no multiplication beside it hides; None where none ever does."""
        precision = getattr(getattr(self.workload, "model", None), "precision", None)
        share = exposed_share(self._platform.parts_overlap, op, getattr(precision, "scaling", None))
        hides = share * self._platform.parts_exposed != 1 and op != "all_to_all"  # which waits for experts' tokens
        return share if hides and self._are_neighbours(ranks) else None

    def _dispatch(self, size_bytes: float, ranks: Sequence[int]) -> Price:
        """Return the price of bringing copies of tokens to experts, or back, but by an all_to_all."""
        model, shape = cast(Any, self.workload).model, shape_of(places_of(self.topology), ranks, self._inner)
        if (kernels := self._platform.dispatcher_kernels(self.system.name)) is None or shape is None:  # all get all
            price = super()._collective("all_gather", size_bytes / model.experts_per_token * len(ranks), ranks)
            return replace(price, size_bytes=size_bytes)
        usage = kernels.num_units / cast(KernelDevice, self.device).rates.num_units
        seconds = kernels.seconds(model, size_bytes, shape, self._inner, in_turn=self._platform.in_turn)
        return Price(seconds, size_bytes, self._platform.dispatcher, usage, shape.tier.size)

    def _not_hidden(self, op: str, seconds: float, size_bytes: float, num_parts: int) -> float:
        """Return by how much a collective beside a multiplication makes a step longer, s: mean of attention and MLP."""
        if self._platform.parts_overlap != "gradients":
            return longer_by_pieces(self.device, self.workload, op, seconds, size_bytes, num_parts)
        slowed = self._inner.processor_usage * seconds
        beside = gradients_beside(self.device, self.workload, op, size_bytes, num_parts)
        return sum(larger(slowed, seconds - each) for each in beside) / len(beside) if beside else slowed

    def _are_neighbours(self, ranks: Sequence[int]) -> bool:
        """Return whether ranks are those of one tensor-parallel group: one after another, within a node."""
        return ranks[-1] - ranks[0] == len(ranks) - 1 < self._inner.size

    def _p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        if "transfers" in self._left_out:
            return Price(0.0, size_bytes)
        price = super()._p2p(op, size_bytes, source, dest)
        apart = min(abs(source - dest), self.world_size - abs(source - dest))  # the last stage is beside the first
        num_channels = channels_of_message(size_bytes, self.world_size // max(1, apart), self.num_nodes)
        if getattr(self.system.sheet, "vendor", None) == "NVIDIA":  # NCCL's, each one block
            price = replace(price, processor_usage=num_channels / cast(KernelDevice, self.device).rates.num_units)
        stage_size = self.pricing.stands_for.stage_size if self.pricing.stands_for else 1
        if self._platform.batches_messages and source // stage_size != dest // stage_size:
            price = self._batched(price, abs(source - dest), num_channels)
        return self._beside_memory(price, memory_bytes(op, size_bytes, 2))

    def _batched(self, price: Price, stride: int, num_channels: int) -> Price:
        """Return the price of a message between stages, which are so many ranks apart.

        NCCL's channels may be few within a node. The host waits for the batch (`batch_p2p_sync` of Megatron-Core), and
        launches the next kernel only then.
        """
        price = replace(price, seconds=price.seconds + cast(KernelDevice, self.device).launch_s)
        channel_GBps = CHANNEL_GBPS.get(self.system.name.partition("_")[0])
        if channel_GBps is None or price.tier_size != self._inner.size:
            return price
        latency = super()._p2p("send", 0, 0, stride).seconds + cast(KernelDevice, self.device).launch_s
        reached = num_channels * channel_GBps * SENDING_WARPS * 1e9
        return replace(price, seconds=larger(price.seconds, latency + price.size_bytes / reached))

    def _price_of(self, work: KernelList) -> Price:
        device = cast(KernelDevice, self.device)
        memory_s = device.passes_seconds(work) * self._slowdown
        persistent_s = device.persistent_seconds(work) * self._slowdown if self._platform.persistent else 0.0
        seconds = device.pass_seconds(work) * self._slowdown
        if self._platform.ring and "transfers" not in self._left_out:
            from minitrain.workloads.rings import exposed_seconds  # noqa: PLC0415  (only where kernels are priced)

            seconds += exposed_seconds(work, self._platform.ring, device, self.topology, cast(Any, self.workload).model)
        return Price(seconds, memory_s=memory_s, persistent_s=persistent_s)


_MATRICES_OF_UNIT = 2  # of an attention, or of an MLP that is not gated: each is a collective

_EITHER_ORDER = 10.0  # the compute capability from which matrix units take eight-bit operands in either order

_HALVES = ("backward_input", "backward_weight")


class LayerPredictor(DevicePredictor):
    """Price layers by a table, and all else as another predictor does.

    Args:
        layers: the table.
        base: what prices transfers and loads.

    Raises:
        UsageError: the table has another number of layers than the workload.
    """

    prices_layers_alike = False

    def __init__(self, layers: MeasuredLayers, base: DevicePredictor) -> None:
        self.layers = layers
        self.base = base
        self.pricing = replace(getattr(base, "pricing", ROOFLINE), prices=layers)
        self.system = getattr(base, "system", None)
        self.num_nodes, self.world_size = getattr(base, "num_nodes", 1), getattr(base, "world_size", 1)
        super().__init__(base.workload, base.device, base.topology)

    @property
    def peak_flop_per_s(self) -> float | None:  # type: ignore[override]  # a table needs no rate for its datatype
        """The device's peak rate for the workload's datatype, FLOP/s; None where its config has none."""
        try:
            return super().peak_flop_per_s
        except HardwareConfigError:
            return None

    def training(self, workload: Workload) -> LayerPredictor:
        """Return the same machine for another workload."""
        other = LayerPredictor(self.layers, self.base.training(workload))
        return other if self._slowdown == 1.0 else other.slowed(self._slowdown)

    def _remember_prices(self) -> None:
        """Begin anew for a workload, whose layers must be those of the table."""
        num_transformer_layers = getattr(getattr(self.workload, "model", None), "num_layers", None)
        if num_transformer_layers is not None and self.layers.num_layers != num_transformer_layers + 2:
            raise UsageError(
                f"{self.layers.source} has layers 0..{self.layers.num_layers - 1}, embedding and head included, but "
                f"{self.workload!r:.80} has 0..{num_transformer_layers + 1}; use the table of this model",
                num_layers=self.layers.num_layers,
            )
        super()._remember_prices()

    def _compute(self, typ: str, num_samples: int, layer: int = 0, mode: PassMode = USUAL) -> Price:
        if typ == "loss":
            return FREE
        if typ in WEIGHT_PASSES:
            return super()._compute(typ, num_samples, layer, mode)
        if mode.context is not None and mode.context.degree > 1:
            raise UsageError(
                f"{self.layers.source} has times of whole sequences, and {typ} of layer {layer} is of shards of one; "
                "leave prices out, or give a rank whole sequences (cp=1)",
                layer=layer,
            )
        unit = self._unit(layer)
        row = layer if unit is None else _row_of(unit, self.layers.num_layers)
        ahead = self.layers.seconds("forward_s", row, num_samples, mode.num_parts) * self._share(unit)
        if typ == "forward":
            return Price(larger(0.0, ahead - self._transfer(unit, "embedding", num_samples, mode)) * self._slowdown)
        seconds = self.layers.seconds("backward_s", row, num_samples, mode.num_parts) * self._share(unit)
        seconds = larger(0.0, seconds - self._transfer(unit, "head", num_samples, mode))
        if typ in _HALVES:
            seconds /= 2
        if typ != "backward_weight":
            seconds += ahead * self._repeated(unit, mode)
        return Price(seconds * self._slowdown)

    def _update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
        unit = self._unit(layer)
        row = layer if unit is None else _row_of(unit, self.layers.num_layers)
        share = num_shards_on_device / num_shards * self._slowdown
        if unit is not None:
            share *= unit.num_held_parameters() / sum(each.num_held_parameters() for each in self._units_of(unit))
        return Price(share * self.layers.any_seconds("update_s", row, getattr(num_parts, "num_parts", num_parts)))

    def accounts(self) -> dict[int, Callable[[], Account]]:
        """Return the same, with those of transfers."""
        return {**self.base.accounts(), **super().accounts()}

    def _account(self, question: tuple[Any, ...], price: Price) -> Account:
        kind, *asked = question
        if kind not in ("compute", "update"):
            return self.base._account(question, price)
        cost = self._work_of_pass(*asked) if kind == "compute" else self._work_of_update(*asked)
        whole = Part("", price.seconds, cost.work_flop * cost.share, cost.traffic_bytes * cost.share)
        return Account(f"measured: {self.layers.source}", whole, (), self.peak_flop_per_s)

    def _collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        return self.base.collective(op, size_bytes, ranks, algorithm)

    def _p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        return self.base.p2p(op, size_bytes, source, dest)

    def _transfer(self, unit: Any, end: str, num_samples: int, mode: PassMode) -> float:
        """Return what the all_reduce in the measured time of a pass takes, s.

        Args:
            unit: whose pass it is.
            end: "embedding" for forward, "head" for backward: the end of the model that has an all_reduce then.
            num_samples: of the microbatch.
            mode: its number of parts are the ranks of the all_reduce.
        """
        has_one = unit is not None and (unit.layer is not None or unit.kind == end)
        if not self.layers.includes_transfers or mode.num_parts == 1 or not has_one:
            return 0.0
        workload: Any = self.workload
        hidden = workload.model.hidden_size * workload.model.precision.activation_bytes
        size_bytes = hidden * workload.seq_len * num_samples
        return self.base.collective("all_reduce", size_bytes, range(mode.num_parts)).seconds

    def _unit(self, layer: int) -> Any:
        """Return the unit that the engine calls a layer; None where the workload is no transformer."""
        units = getattr(self.workload, "units", None)
        return None if units is None else units[layer]

    def _units_of(self, unit: Any) -> list[Any]:
        """Return the units that the table counts together as one layer."""
        if unit.layer is None:
            return [unit]
        return [each for each in self.workload.units if each.layer == unit.layer]  # type: ignore[attr-defined]  # a transformer's

    def _share(self, unit: Any) -> float:
        """Return a unit's share of the time of its layer."""
        if unit is None or unit.layer is None:
            return 1.0
        seq_len: int = self.workload.seq_len  # type: ignore[attr-defined]  # a transformer's
        flop = [each.forward_flop(seq_len) for each in self._units_of(unit)]
        share: float = unit.forward_flop(seq_len) / sum(flop)
        return share

    def _repeated(self, unit: Any, mode: PassMode) -> float:
        """Return what share of a unit's forward is computed again in its backward."""
        if unit is None or mode.recompute == "none" or unit.layer is None:
            return 0.0
        seq_len: int = self.workload.seq_len  # type: ignore[attr-defined]  # a transformer's
        share: float = unit.recomputed_flop(seq_len, mode.recompute) / unit.forward_flop(seq_len)
        return share


def _row_of(unit: Any, num_rows: int) -> int:
    """Return which of the table's layers a unit belongs to."""
    if unit.layer is not None:
        return int(unit.layer) + 1
    return 0 if unit.kind == "embedding" else num_rows - 1


def make_predictor(
    hardware: Any,
    world_size: int,
    network: str = "auto",
    placement: Sequence[int] | None = None,
    workload: Workload | None = None,
    pricing: Pricing = ROOFLINE,
) -> Predictor:
    """Return what prices the operations of a run.

    Args:
        hardware: a shipped config's name, a path, a loaded config, a calibration, or a predictor, which is returned as
            it is.
        world_size: number of ranks.
        network: "auto", "flat" or "hierarchical".
        placement: node of each rank.
        workload: what is trained; the specified one, or that of a predictor, if None.
        pricing: how operations are priced on a hardware config.

    Raises:
        UsageError: a predictor is to be priced otherwise than it does, was made for fewer ranks, or the network does
            not connect so many.
        HardwareConfigError: the hardware config cannot be found or read, or is invalid.
    """
    if hasattr(hardware, "compute") and hasattr(hardware, "slowed"):
        require_default(pricing, hardware)
        _require_ranks(hardware, world_size)
        return hardware if workload in (None, hardware.workload) else hardware.training(workload)  # type: ignore[no-any-return]  # a Predictor
    if hasattr(hardware, "how_sure"):  # a calibration
        found: Predictor = hardware.predictor(world_size, workload)
        require_default(pricing, found)
        return found
    if hasattr(hardware, "profile"):  # a platform
        hardware = hardware.profile.system_config()
    workload = workload or MATMUL_LAYER
    system = load_config(hardware)
    machine: Any = {"network": network, "placement": placement, "workload": workload}
    if getattr(workload, "model", None) is None and pricing.is_default:
        return RuntimePredictor(world_size, system, **machine)
    pricing = pricing.on(system, workload)
    base: RuntimePredictor | KernelPredictor
    if pricing.fidelity == "roofline":
        base = RuntimePredictor(world_size, system, **machine)
        base.pricing = pricing  # so that a headline says it, and why
    else:
        base = KernelPredictor(world_size, system, pricing, **machine)
    return base if pricing.prices is None else LayerPredictor(pricing.prices, base)


def _require_ranks(predictor: Any, world_size: int) -> None:
    """Require that a predictor whose network was made for so many ranks is not used for more.

    Raises:
        UsageError: it is.
    """
    made_for = getattr(predictor, "world_size", None)
    if isinstance(made_for, int) and made_for < world_size:
        raise UsageError(
            f"hardware is a predictor whose network was made for {made_for} ranks, but the run has {world_size}; "
            f"make it with world_size={world_size}",
            world_size=world_size,
        )


def require_default(pricing: Pricing, hardware: Any) -> None:
    """Require the default pricing beside a predictor, which has prices of its own.

    Raises:
        UsageError: another pricing was asked for.
    """
    if not pricing.is_default:
        raise UsageError(
            f"fidelity is for a hardware config, and {hardware!r:.80} is a predictor with prices of its own; leave "
            "fidelity out, or give the config",
            fidelity=pricing.fidelity,
        )
