"""The links of a cluster that a hardware config describes, and what a run's transfers put on them.

Each processor has a port to the switch of its node (the smallest tier), and a PCIe switch with the node's interfaces
and its host. Interfaces lead to a switch for each unit of the next tier, and so on; a unit's way up carries what all of
its processors may send at once, divided by `oversubscription`. Capacities are those that the config's tiers reach,
so that a transfer with its links for itself takes what the run's price says.

A collective is one flow over the links between neighbours of its ring. The hierarchical algorithm has three such
flows, one after the other: inside the nodes, between them, and inside again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from minitrain.errors import UsageError, require_count
from minitrain.hardware.config import SystemConfig
from minitrain.hardware.network import Network
from minitrain.hardware.price import Price
from minitrain.platform.links import BITS_PER_BYTE, Lane, VirtualNetworkLink
from minitrain.platform.routes import Routes
from minitrain.platform.topologies import Links, star

GIGA = 1e9


@final
@dataclass(frozen=True, slots=True)
class Phase:
    """A flow that a transfer consists of.

    Args:
        lanes: what it passes, and how often.
        size_bytes: what it moves over each.
        full_rate: what it moves in a second where it is alone, bytes/s.
        latency_s: what it waits first, s.
        seconds: how long it lasts where it is alone, s.
    """

    lanes: Mapping[Lane, float]
    size_bytes: float
    full_rate: float
    latency_s: float
    seconds: float


@final
class ClusterLinks:
    """A cluster's links, and the ways of a run's transfers.

    Args:
        config: the hardware config.
        world_size: processors, from 0 up; processor r is the endpoint "gpu{r}".
        placement: node of each processor; filled in order by default.
        nics: interfaces of a node, which its processors share; as the config says if None, one a processor by default.
        oversubscription: how many times more the processors of a unit can send than leaves it.

    Raises:
        UsageError: a number is outside its rule, or the config has no tier of that size.
    """

    def __init__(
        self,
        config: SystemConfig,
        world_size: int,
        *,
        placement: Sequence[int] | None = None,
        nics: int | None = None,
        oversubscription: float = 1.0,
    ) -> None:
        self.config = config
        self.world_size = require_count("world_size", world_size)
        self.tiers = sorted(config.networks, key=lambda tier: tier.size)
        self.node_size = self.tiers[0].size
        stated = next((tier.nics for tier in self.tiers[1:] if tier.nics), None)
        self.nics = require_count("nics", nics or stated or self.node_size)
        if not oversubscription > 0:
            raise UsageError(f"oversubscription must be above 0, got {oversubscription!r}; 1 is a network without")
        self.oversubscription = oversubscription
        if self.tiers[-1].size < world_size:
            raise UsageError(
                f"the largest tier of {config.name} spans {self.tiers[-1].size} processors, not {world_size}; use fewer"
            )
        size = self.node_size
        self.node_of = [rank // size for rank in range(world_size)] if placement is None else list(placement)
        self.nodes: dict[int, list[int]] = {}
        for rank, node in enumerate(self.node_of):
            self.nodes.setdefault(node, []).append(rank)
        self.routes = Routes(self._links())
        self._by_size = {tier.size: tier for tier in self.tiers}

    def _links(self) -> Links:
        """Return all links."""
        links: Links = []
        for node, ranks in self.nodes.items():
            links += star(f"node{node}.switch", [f"gpu{rank}" for rank in ranks], _bps(self.tiers[0]))
            links += self._host_links(node, ranks)
        return links + self._outer_links() if len(self.nodes) > 1 else links

    def _host_links(self, node: int, ranks: Sequence[int]) -> Links:
        """Return the PCIe links of a node: processors, interfaces and host around one switch for each interface."""
        host_bps = self.config.mem2.GBps * GIGA * BITS_PER_BYTE
        links: Links = []
        for rank in ranks:
            switch, port = f"node{node}.pcie{self.nic(rank)}", f"gpu{rank}.port"
            links.append(VirtualNetworkLink(f"gpu{rank}.pcie", f"gpu{rank}", port, host_bps))
            links.append(VirtualNetworkLink(f"{port}-{switch}", port, switch, host_bps))
        for switch in dict.fromkeys(f"node{node}.pcie{self.nic(rank)}" for rank in ranks):
            links.append(VirtualNetworkLink(f"{switch}-host", switch, f"node{node}.host", host_bps * self.node_size))
        return links

    def _outer_links(self) -> Links:
        """Return the interfaces of all nodes, and the switches of the tiers beyond."""
        links: Links = []
        first = self.tiers[1]
        for node, ranks in self.nodes.items():
            up = f"tier1.unit{node * self.node_size // first.size}"
            for nic in dict.fromkeys(map(self.nic, ranks)):
                name = f"node{node}.nic{nic}"
                links.append(VirtualNetworkLink(f"{name}.bus", f"node{node}.pcie{nic}", name, _bps(first)))
                links.append(VirtualNetworkLink(name, name, up, _bps(first)))
        num_places = (max(self.nodes) + 1) * self.node_size
        for level, (inner, outer) in enumerate(pairwise(self.tiers[1:]), start=1):
            num_units = -(-num_places // inner.size)
            if num_units == 1:
                break
            bps = _bps(outer) * inner.size / self.oversubscription
            for unit in range(num_units):
                up, here = f"tier{level + 1}.unit{unit * inner.size // outer.size}", f"tier{level}.unit{unit}"
                links.append(VirtualNetworkLink(f"{here}.up", here, up, bps))
        return links

    def nic(self, rank: int) -> int:
        """Return which of its node's interfaces a processor uses."""
        neighbours = self.nodes[self.node_of[rank]]
        return neighbours.index(rank) * self.nics // max(len(neighbours), self.nics)

    def message(self, source: int, dest: int, price: Price) -> list[Phase]:
        """Return what a message puts on the links."""
        tier = self._by_size.get(price.tier_size)
        lanes = Counter(self.routes.route(f"gpu{source}", f"gpu{dest}"))
        return [_phase(tier, "p2p", 2, lanes, price.size_bytes, price.seconds)]

    def host_copy(self, rank: int, price: Price, *, to_host: bool) -> list[Phase]:
        """Return what a copy between a processor and its host puts on the links."""
        ends = f"gpu{rank}", f"node{self.node_of[rank]}.host"
        lanes = Counter(self.routes.route(*(ends if to_host else ends[::-1])))
        return [_phase(None, "p2p", 2, lanes, price.size_bytes, price.seconds)]

    def collective(self, op: str, ranks: Sequence[int], price: Price) -> list[Phase]:
        """Return what a collective puts on the links."""
        tier = self._by_size.get(price.tier_size)
        if price.algorithm == "hierarchical" and tier is not None:
            return self._hierarchical(op, ranks, price, tier)
        return [_phase(tier, op, len(ranks), self._ring([list(ranks)]), price.size_bytes, price.seconds)]

    def _ring(self, groups: Sequence[Sequence[int]]) -> Counter[Lane]:
        """Return the lanes between neighbours of rings that run at the same time."""
        lanes: Counter[Lane] = Counter()
        for ranks in groups:
            if len(ranks) > 1:
                for source, dest in pairwise([*ranks, ranks[0]]):
                    lanes.update(self.routes.route(f"gpu{source}", f"gpu{dest}"))
        return lanes

    def _hierarchical(self, op: str, ranks: Sequence[int], price: Price, outer: Network) -> list[Phase]:
        """Return the phases of the two-level algorithm (see `minitrain.hardware.topology`)."""
        nodes: dict[int, list[int]] = {}
        for rank in ranks:
            nodes.setdefault(self.node_of[rank], []).append(rank)
        local = [nodes[node] for node in sorted(nodes)]
        across = [list(column) for column in zip(*local, strict=True)]
        num_local, inner = len(local[0]), self.tiers[0]
        inside, between = self._ring(local), self._ring(across)
        share = price.size_bytes / num_local
        phases = []
        if op in ("all_reduce", "reduce_scatter"):
            seconds = inner.time("reduce_scatter", price.size_bytes, num_local)
            phases.append(_phase(inner, "reduce_scatter", num_local, inside, price.size_bytes, seconds))
        phases.append(_phase(outer, op, len(local), between, share, outer.time(op, share, len(local))))
        if op in ("all_reduce", "all_gather"):
            seconds = inner.time("all_gather", price.size_bytes, num_local)
            phases.append(_phase(inner, "all_gather", num_local, inside, price.size_bytes, seconds))
        return phases


def _bps(tier: Network) -> float:
    """Return what a processor reaches into a tier, bits/s."""
    return tier.bandwidth * GIGA * tier.efficiency * BITS_PER_BYTE


def _phase(
    tier: Network | None, op: str, num_ranks: int, lanes: Counter[Lane], size_bytes: float, seconds: float
) -> Phase:
    """Return a flow that takes `seconds` where it is alone.

    It moves what the tier's row says, at the tier's rate. Where a price has no row (a curve by size, a copy), it fills
    its links, or moves as much as its time allows.
    """
    if tier is None or not lanes:
        rate = size_bytes / seconds if seconds else 1.0
        return Phase(lanes, size_bytes, rate, 0.0, seconds)
    rate = tier.bandwidth * 1e9 * tier.efficiency
    latency_s = min(tier.latency, seconds)
    scalar, offset = tier.ops.get(op) or (1.0, None)
    wire_bytes = size_bytes * scalar
    if offset is not None:
        wire_bytes += (1 / num_ranks * wire_bytes) * offset
    if abs(latency_s + wire_bytes / rate - seconds) > 1e-9 * seconds:  # noqa: PLR2004  (rounding)
        rate = min(wire_bytes / (seconds - latency_s), rate) if seconds > latency_s else rate
        wire_bytes = (seconds - latency_s) * rate
    passing = {lane: min(times, lane.bytes_per_s / rate) for lane, times in lanes.items()}
    return Phase(passing, wire_bytes, rate, latency_s, seconds)
