"""The flows that the transfers of a run put on links, over the routes between its ranks.

A collective is one flow over the links between neighbours of its ring. The hierarchical algorithm has three such
flows, one after the other: inside the nodes, between them, and inside again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

from minitrain.hardware.network import Network
from minitrain.hardware.price import Price
from minitrain.platform.links import Lane

GIGA = 1e9
Route = Callable[[str, str], tuple[Lane, ...]]


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
class RankRoutes:
    """The routes between the ranks of a run, and between each and its host.

    Args:
        route: returns the lanes from one endpoint to another.
        endpoints: the endpoint of each rank.
        node_of: the node of each rank.
        hosts: the endpoint of each rank's host; none where copies to it are not shared.
        tiers: those of the hardware config that priced the run, the smallest first.
    """

    def __init__(
        self,
        route: Route,
        endpoints: Sequence[str],
        node_of: Sequence[int],
        hosts: Sequence[str],
        tiers: Sequence[Network],
    ) -> None:
        self.route = route
        self.endpoints = endpoints
        self.node_of = node_of
        self.hosts = hosts
        self.tiers = tiers
        self._by_size = {tier.size: tier for tier in tiers}

    def _route(self, source: int, dest: int) -> tuple[Lane, ...]:
        return self.route(self.endpoints[source], self.endpoints[dest])

    def message(self, source: int, dest: int, price: Price) -> list[Phase]:
        """Return what a message puts on the links."""
        tier = self._by_size.get(price.tier_size)
        lanes = Counter(self._route(source, dest))
        return [self._phase(tier, "p2p", 2, lanes, price.size_bytes, price.seconds)]

    def host_copy(self, rank: int, price: Price, *, to_host: bool) -> list[Phase]:
        """Return what a copy between a processor and its host puts on the links; nothing where hosts are not known."""
        if not self.hosts:
            return [self._phase(None, "p2p", 2, Counter(), price.size_bytes, price.seconds)]
        ends = self.endpoints[rank], self.hosts[rank]
        lanes = Counter(self.route(*(ends if to_host else ends[::-1])))
        return [self._phase(None, "p2p", 2, lanes, price.size_bytes, price.seconds)]

    def collective(self, op: str, ranks: Sequence[int], price: Price) -> list[Phase]:
        """Return what a collective puts on the links."""
        tier = self._by_size.get(price.tier_size)
        if price.algorithm == "hierarchical" and tier is not None:
            return self._hierarchical(op, ranks, price, tier)
        return [self._phase(tier, op, len(ranks), self._ring([list(ranks)]), price.size_bytes, price.seconds)]

    def _ring(self, groups: Sequence[Sequence[int]]) -> Counter[Lane]:
        """Return the lanes between neighbours of rings that run at the same time."""
        lanes: Counter[Lane] = Counter()
        for ranks in groups:
            if len(ranks) > 1:
                for source, dest in pairwise([*ranks, ranks[0]]):
                    lanes.update(self._route(source, dest))
        return lanes

    def _hierarchical(self, op: str, ranks: Sequence[int], price: Price, outer: Network) -> list[Phase]:
        """Return the phases of the two-level algorithm (see `minitrain.hardware.topology`)."""
        nodes: dict[int, list[int]] = {}
        for rank in ranks:
            nodes.setdefault(self.node_of[rank], []).append(rank)
        local = [nodes[node] for node in sorted(nodes)]
        across = [list(column) for column in zip(*local, strict=False)]  # as many rings as the emptiest node has ranks
        most, least, inner = max(map(len, local)), len(across), self.tiers[0]
        inside, between = self._ring(local), self._ring(across)
        num_like_it = len(local) if op == "all_reduce" else len(ranks) / least
        share = price.size_bytes / least
        phases = []
        if op in ("all_reduce", "reduce_scatter"):
            seconds = inner.time("reduce_scatter", price.size_bytes, most)
            phases.append(self._phase(inner, "reduce_scatter", most, inside, price.size_bytes, seconds))
        phases.append(self._phase(outer, op, num_like_it, between, share, outer.time(op, share, num_like_it)))
        if op in ("all_reduce", "all_gather"):
            seconds = inner.time("all_gather", price.size_bytes, most)
            phases.append(self._phase(inner, "all_gather", most, inside, price.size_bytes, seconds))
        total = sum(phase.seconds for phase in phases)
        if abs(total - price.seconds) <= 1e-9 * price.seconds:
            return phases
        # The price is by curves, not by the rows of the tiers: each phase keeps its part of it.
        slower = price.seconds / total
        return [
            replace(
                each,
                full_rate=each.full_rate / slower,
                latency_s=each.latency_s * slower,
                seconds=each.seconds * slower,
            )
            for each in phases
        ]

    def _phase(
        self,
        tier: Network | None,
        op: str,
        num_ranks: float,
        lanes: Counter[Lane],
        size_bytes: float,
        seconds: float,
    ) -> Phase:
        """Return a flow that takes `seconds` where it is alone.

        It moves what the tier's row says, at the tier's rate. Where a price has no row (a curve by size, a copy), it
        fills its links, or moves as much as its time allows.
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
        if abs(latency_s + wire_bytes / rate - seconds) > 1e-9 * seconds:
            rate = min(wire_bytes / (seconds - latency_s), rate) if seconds > latency_s else rate
            wire_bytes = (seconds - latency_s) * rate
        return Phase(lanes, wire_bytes, rate, latency_s, seconds)
