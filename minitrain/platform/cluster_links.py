"""The links of a cluster that a hardware config describes.

Each processor has a port to the switch of its node (the smallest tier), and a PCIe switch with the node's interfaces
and its host. Interfaces lead to a switch for each unit of the next tier, and so on; a unit's uplink carries what all of
its processors may send at once, divided by `oversubscription`. Capacities are those that the config's tiers reach,
so that a transfer that shares no link takes as long as its price in the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, final

from minitrain.errors import UsageError, require_count
from minitrain.hardware.config import SystemConfig, load_config
from minitrain.hardware.network import Network
from minitrain.platform.devices import VirtualComputeDevice, VirtualMemoryDevice
from minitrain.platform.links import BITS_PER_BYTE, Lane, VirtualNetworkLink
from minitrain.platform.profile import HardwareResourceProfile
from minitrain.platform.rank_routes import GIGA, RankRoutes
from minitrain.platform.routes import Routes
from minitrain.platform.topologies import Links, star

_SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8": "fp8"}


@final
class ClusterLinks:
    """The links of a cluster.

    Args:
        config: the hardware config, or its name or file.
        world_size: processors, from 0 up; processor r is the endpoint "gpu{r}".
        placement: node of each processor; filled in order by default.
        nics: interfaces of a node, which its processors share; as the config says if None, one a processor by default.
        oversubscription: how many times more the processors of a unit can send than leaves it.

    Raises:
        UsageError: a number is outside its rule, or the config has no tier of that size.
    """

    def __init__(
        self,
        config: SystemConfig | Mapping[str, Any] | str,
        world_size: int,
        *,
        placement: Sequence[int] | None = None,
        nics: int | None = None,
        oversubscription: float = 1.0,
    ) -> None:
        self.config = config = load_config(config)
        self.world_size = require_count("world_size", world_size)
        self.tiers = sorted(config.networks, key=lambda tier: tier.size)
        self.node_size = self.tiers[0].size
        stated = next((tier.nics for tier in self.tiers[1:] if tier.nics), None)
        self.nics = require_count("nics", (stated or self.node_size) if nics is None else nics)
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
        self.placement = placement
        self._ranks = {f"gpu{rank}": rank for rank in range(world_size)}
        self._known_routes: dict[tuple[str, str], tuple[Lane, ...]] = {}
        self.routes = Routes(self._links())

    def _links(self) -> Links:
        """Return all links."""
        links: Links = []
        for node, ranks in self.nodes.items():
            links += star(f"node{node}.switch", [f"gpu{rank}" for rank in ranks], _bps(self.tiers[0]))
            links += self._host_links(node, ranks)
        return links + self._outer_links() if len(self.nodes) > 1 else links

    @property
    def _host_bps(self) -> float:
        """Return what a PCIe link carries: as much as an interface, at least."""
        return max(self.config.mem2.GBps * GIGA * BITS_PER_BYTE, *map(_bps, self.tiers[1:]), 0.0)

    def _host_links(self, node: int, ranks: Sequence[int]) -> Links:
        """Return the PCIe links of a node: processors, interfaces and host around one switch for each interface."""
        host_bps = self._host_bps
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
                links.append(VirtualNetworkLink(f"{name}.bus", f"node{node}.pcie{nic}", name, self._host_bps))
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

    def route(self, source: str, dest: str) -> tuple[Lane, ...]:
        """Return the route from one endpoint to another: that of `Routes.route`, which takes longer to find it.

        Between processors of a node it goes over their switch, else up to the first switch that both are below.
        """
        found = self._known_routes.get((source, dest))
        if found is None:
            found = self._known_routes[source, dest] = self._find_route(source, dest)
        return found

    def _find_route(self, source: str, dest: str) -> tuple[Lane, ...]:
        first, second = self._ranks.get(source), self._ranks.get(dest)
        if first is None or second is None or first == second:
            return self.routes.route(source, dest)
        if self.node_of[first] == self.node_of[second]:
            return self.routes.along((source, f"node{self.node_of[first]}.switch", dest))
        up, down = self._chain(first), self._chain(second)
        top = next(place for place, name in enumerate(up) if name == down[place])
        return self.routes.along([*up[: top + 1], *reversed(down[:top])])

    def _chain(self, rank: int) -> list[str]:
        """Return the endpoints above a processor, itself first."""
        node, nic = self.node_of[rank], self.nic(rank)
        names = [f"gpu{rank}", f"gpu{rank}.port", f"node{node}.pcie{nic}", f"node{node}.nic{nic}"]
        outer = enumerate(self.tiers[1:], start=1)
        return names + [f"tier{level}.unit{node * self.node_size // tier.size}" for level, tier in outer]

    def nic(self, rank: int) -> int:
        """Return which of its node's interfaces a processor uses."""
        neighbours = self.nodes[self.node_of[rank]]
        return neighbours.index(rank) * self.nics // max(len(neighbours), self.nics)

    def fresh(self) -> ClusterLinks:
        """Return the same links without any flows."""
        sizes: dict[str, Any] = {"nics": self.nics, "oversubscription": self.oversubscription}
        return ClusterLinks(self.config, self.world_size, placement=self.placement, **sizes)

    def rank_routes(self, processors: Sequence[int]) -> RankRoutes:
        """Return the routes between some processors, in the order of the ranks that run on them."""
        nodes = [self.node_of[processor] for processor in processors]
        names = [f"gpu{processor}" for processor in processors]
        return RankRoutes(self.route, names, nodes, [f"node{node}.host" for node in nodes], self.tiers)


def _bps(tier: Network) -> float:
    """Return the rate that a processor reaches into a tier, bits/s."""
    return tier.bandwidth * GIGA * tier.efficiency * BITS_PER_BYTE


def profile_of_config(source: Any, world_size: int, *, nics: int | None = None) -> HardwareResourceProfile:
    """Return a platform's profile of processors that a hardware config describes, with the links between them.

    Args:
        source: a hardware config, its name or its file.
        world_size: how many processors, from "gpu0" up.
        nics: as for `ClusterLinks`.
    """
    config = load_config(source)
    links = ClusterLinks(config, world_size, nics=nics)
    peaks = {_SHORT.get(name, name): rate.tflops for name, rate in config.matrix.items()}
    memory = config.mem1.GiB * 2**30, config.mem1.GBps
    units = config.sheet.num_units or 1
    devices = [VirtualComputeDevice(f"gpu{rank}", peaks, *memory, units) for rank in range(world_size)]
    hosts = [VirtualMemoryDevice(f"node{node}.host", config.mem2.GiB * 2**30) for node in links.nodes]
    return HardwareResourceProfile(devices, hosts, list(links.routes.links.values()))
