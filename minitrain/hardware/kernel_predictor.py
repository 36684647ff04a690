"""Prices from kernels: how long an operation takes is the sum of what it runs (`simulate(..., fidelity="kernels")`).

`KernelPredictor` asks the workload for the kernels of an operation and the device for their time. Equal operations of
equal layers share one price: it is computed once for each kind of layer, number of samples and mode of passing.

Transfers are priced by the curves of the config's tiers where they have any, by latency and bandwidth otherwise.
`network="flat"` keeps the one tier that it asks for, without curves. Loading weights takes no time: what is priced is
one step of many, and that is what measurements are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from minitrain.errors import UsageError
from minitrain.hardware.config import SystemConfig, load_config
from minitrain.hardware.derived_rates import rates_of
from minitrain.hardware.kernel_device import KernelDevice
from minitrain.hardware.kernel_rates import TERMS as TERMS_OF_KERNELS
from minitrain.hardware.measured_topology import MeasuredTopology, places_of
from minitrain.hardware.predictor import DevicePredictor, make_topology
from minitrain.hardware.price import Price
from minitrain.hardware.topology import Topology
from minitrain.workloads.matmul import MATMUL_LAYER
from minitrain.workloads.workload import USUAL, PassMode, Workload

if TYPE_CHECKING:
    from minitrain.hardware.pricing import Pricing
    from minitrain.workloads.kernels import KernelList
    from minitrain.workloads.pass_kernels import ListsKernels


class KernelPredictor(DevicePredictor):
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
        >>> from minitrain.hardware.pricing import Pricing
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
        from minitrain.workloads.unit_kernels import Style  # noqa: PLC0415  (only where kernels are priced)

        system, platform = load_config(hardware), pricing.known_platform
        rates = rates_of(system)
        terms = [term for term in pricing.without if term in TERMS_OF_KERNELS]
        self.world_size = world_size
        self.system = system
        self.pricing = pricing
        self._has_transfers = "transfers" not in pricing.without
        self._platform = platform
        self._inner = min(system.networks, key=lambda tier: tier.size)
        self._left_out = frozenset(pricing.without)
        self.style = Style(
            attention=platform.attention or rates.usual_attention,
            fused_loss=platform.fused_loss,
            eager=platform.eager,
            separate_gradients=platform.separate_gradients,
            stops_early=platform.stops_early,
            gradient_accesses=platform.gradient_accesses,
        )
        launch_s = 0.0 if "launches" in terms else platform.launch_s
        device = KernelDevice(
            system, rates.scaled(platform.clock, platform.attention_clock).without(*terms), launch_s=launch_s
        )
        super().__init__(workload, device, _topology(system, world_size, network, placement, pricing))

    def _remember_prices(self) -> None:
        """Begin anew for a workload, which must list its kernels."""
        if not hasattr(self.workload, "pass_kernels"):
            raise UsageError(
                f'fidelity="kernels" needs a workload that lists its kernels, and {self.workload!r:.80} does not; '
                'train a transformer or the default layers, or leave fidelity="roofline"'
            )
        self._lists = cast("ListsKernels", self.workload)
        super()._remember_prices()

    @property
    def num_nodes(self) -> int:
        """How many units of the smallest tier the ranks sit in."""
        places = places_of(self.topology)
        if places is not None:
            return int(places.num_nodes)
        return -(-self.world_size // min(tier.size for tier in self.system.networks))

    def _compute(self, typ: str, num_samples: int, layer: int = 0, mode: PassMode = USUAL) -> Price:
        first = self._lists.first_like(layer)
        if first != layer:
            return self.compute(typ, num_samples, first, *(() if mode is USUAL else (mode,)))
        return self._price_of_kernels(self._lists.pass_kernels(typ, num_samples, layer, mode, self.style))

    def _update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
        first = self._lists.first_like(layer)
        if first != layer:
            return self.update(num_shards_on_device, num_shards, first, *(() if num_parts == 1 else (num_parts,)))
        work = self._lists.update_kernels(num_shards_on_device, num_shards, layer, num_parts, self.style)
        return self._price_of_kernels(work)

    def _load(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:  # noqa: ARG002
        return Price(0.0)  # a step of many: the weights are there

    def _collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        if not self._has_transfers:
            return Price(0.0, size_bytes)
        share = self._platform.exposed_share(op, self._inner.processor_usage)
        if share == 1 or not self._are_neighbours(ranks):
            return super()._collective(op, size_bytes, ranks, algorithm)
        wire_bytes = size_bytes * self._gathered_share() if op == "all_gather" else size_bytes
        price = super()._collective(op, wire_bytes, ranks, algorithm)
        return replace(price, seconds=price.seconds * share, size_bytes=size_bytes)

    def _gathered_share(self) -> float:
        """Return the share of their bytes that gathers send: half where the multiplications after them take 8 bits."""
        precision = getattr(getattr(self.workload, "model", None), "precision", None)
        return 0.5 if getattr(precision, "weight_datatype", None) == "float8" else 1.0

    def _are_neighbours(self, ranks: Sequence[int]) -> bool:
        """Return whether ranks are those of one tensor-parallel group: one after another, within a node."""
        node_size = self._inner.size
        return ranks[-1] - ranks[0] == len(ranks) - 1 < node_size

    def _p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        return super()._p2p(op, size_bytes, source, dest) if self._has_transfers else Price(0.0, size_bytes)

    def _price_of_kernels(self, work: KernelList) -> Price:
        """Return the price of some kernels."""
        if self._left_out:
            work = _without(work, self._left_out)
        device = cast(KernelDevice, self.device)
        return Price(device.pass_seconds(work) * self.slowdown)


def _topology(
    system: SystemConfig, world_size: int, network: str, placement: Sequence[int] | None, pricing: Pricing
) -> Topology:
    """Return what prices transfers: measured curves, unless there are none, or they are not wanted."""
    specified = make_topology(system.networks, world_size, network, placement)
    is_measured = any(tier.curves for tier in system.networks) and "curves" not in pricing.without
    if network == "flat" or not is_measured:
        return specified
    return MeasuredTopology(system.networks, world_size, placement, may_be_unfilled=network == "auto")


def _without(work: KernelList, left_out: frozenset[str]) -> KernelList:
    """Return some kernels without the passes over memory that an ablation leaves out."""
    from minitrain.workloads.kernels import KernelList, MemoryPass  # noqa: PLC0415  (only where kernels are priced)

    kept = tuple(k for k in work.kernels if not isinstance(k, MemoryPass) or _term_of(k.name) not in left_out)
    return KernelList(kept, work.num_launches)


def _term_of(name: str) -> str:
    """Return which term of an ablation a pass over memory belongs to."""
    return {"loss": "loss", "adam": "update", "gradients": "update", "update": "update"}.get(name, "elementwise")
