"""The links between named endpoints: single ones, those of usual clusters, those of a hardware config, and routes.

Each direction of a link is a lane, which flows share. Lines of a `hardware_profile` make the links of usual clusters:
switches, interfaces, PCIe, fat trees and tori.

    network_links:
      - {topology: torus, dims: [4, 4], bandwidth_bps: 400_000_000_000, latency_s: 1.0e-6}
      - {topology: star, name: rail0, endpoints: [nic0, nic1], bandwidth_bps: 200_000_000_000, latency_s: 2.0e-6}

A route has the fewest links. Of equally short routes a stated hash chooses (ECMP): at every endpoint, the next link is
chosen among those on shortest routes, in the order in which they were listed, by the CRC-32 of "source>dest>endpoint"
modulo their number. So all bytes between two endpoints take one route, and different pairs spread over the routes
(Hopps 2000, RFC 2992).

In the cluster of a hardware config (`ClusterLinks`), each processor has a port to the switch of its node (the smallest
tier), and a PCIe switch with the node's interfaces and its host. Interfaces lead to a switch for each unit of the next
tier, and so on; a unit's uplink carries what all of its processors may send at once, divided by `oversubscription`.
Capacities are those that the config's tiers reach, so that a transfer that shares no link takes as long as its price in
the run.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from types import MappingProxyType
from typing import Any
from zlib import crc32

from minitrain.errors import UsageError, one_of, require_count, require_number, typed
from minitrain.machine.config import SystemConfig, load_config
from minitrain.machine.network import Network
from minitrain.tensors.index_sets import grouped

BITS_PER_BYTE = 8
GIGA = 1e9
TOLERANCE = 1e-12
"""Rates add up with rounding errors; a lane is crowded beyond its capacity times one plus this."""


def require_known(subject: str, keys: Iterable[str], known: Iterable[str]) -> None:
    """Raise a UsageError for the first key that is not known, with the one that was meant.

    Args:
        subject: what the message begins with: "a task has no key".
        keys: those that were given.
        known: those that there are.
    """
    names = list(known)
    for key in keys:
        if key not in names:
            raise UsageError(f"{subject} {key!r:.60}; {one_of(key, names)}")


def share_used(steps: Sequence[tuple[float, float]], capacity: float, until: float) -> float:
    """Return the share of a capacity that was used until a moment, by steps of (moment, how much from then on)."""
    if not steps or until <= 0:
        return 0.0
    used = sum(amount * (end - begin) for (begin, amount), (end, _) in pairwise([*steps, (until, 0.0)]))
    return used / (capacity * until)


@typed
@dataclass(frozen=True, slots=True)
class VirtualNetworkLink:
    """A wire, or what behaves like one: NVLink, PCIe, a port of a switch.

    Args:
        link_id: its name.
        source_id: the endpoint at one end.
        dest_id: the endpoint at the other.
        bandwidth_bps: bits per second, in each direction.
        latency_s: what a transfer waits before its first byte arrives, s; it takes no bandwidth.
        bidirectional: whether transfers may go from `dest_id` to `source_id` too.

    Raises:
        UsageError: a bandwidth that is not above 0, or a negative latency.
    """

    link_id: str
    source_id: str
    dest_id: str
    bandwidth_bps: float
    latency_s: float = 0.0
    bidirectional: bool = True

    def __post_init__(self) -> None:
        """Refuse a link that no transfer could pass."""
        rules = (
            (
                0 < self.bandwidth_bps < math.inf,
                f"bandwidth_bps must be a number above 0, got {self.bandwidth_bps!r}; give bits per second",
            ),
            (0 <= self.latency_s < math.inf, f"latency_s must be at least 0, got {self.latency_s!r}; give seconds"),
        )
        for holds, rule in rules:
            if not holds:
                raise UsageError(f"link {self.link_id}: {rule}")

    @property
    def bytes_per_s(self) -> float:
        """Return the bandwidth of one direction, bytes/s."""
        return self.bandwidth_bps / BITS_PER_BYTE


@dataclass(slots=True, eq=False)
class Lane:
    """One direction of a link, or the port of a device: what flows share.

    Args:
        name: what logs and messages call it: "nic 3 out".
        bytes_per_s: what it carries at most.
        latency_s: of a transfer that passes, s.
        link_id: the link that it is a direction of.

    Attributes:
        flows: the streams that pass now, and how many times all of their flows pass together.
        demand: what all of them together would carry at their full rates, bytes/s.
        load: what they carry, bytes/s.
        steps: what it carried, as (moment, bytes/s from then on).
    """

    name: str
    bytes_per_s: float
    latency_s: float = 0.0
    link_id: str | None = None
    flows: dict[Any, float] = field(default_factory=dict, repr=False)
    demand: float = 0.0
    load: float = 0.0
    steps: list[tuple[float, float]] = field(default_factory=list, repr=False)

    @property
    def is_crowded(self) -> bool:
        """Whether its flows ask for more than it carries."""
        return self.demand > self.bytes_per_s * (1 + TOLERANCE)

    def change_load(self, now: float, change: float) -> None:
        """Note that more or less passes from now on."""
        load = self.load = self.load + change if self.flows else 0.0
        steps = self.steps
        if steps and steps[-1][0] == now:
            steps[-1] = now, load
        else:
            steps.append((now, load))

    def utilization(self, until: float) -> float:
        """Return the share of what it could have carried until a moment that it did carry."""
        return share_used(self.steps, self.bytes_per_s, until)


class Routes:
    """All routes over some links.

    Args:
        links: each has one lane in each direction that it can be used in.
        endpoints: names beside those of the links.

    Raises:
        UsageError: two links have one name.
    """

    def __init__(self, links: Iterable[VirtualNetworkLink], endpoints: Iterable[str] = ()) -> None:
        self.links: dict[str, VirtualNetworkLink] = {}
        self._out: dict[str, list[tuple[str, Lane]]] = defaultdict(list)
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._into: dict[str, list[str]] = defaultdict(list)
        for name in endpoints:
            self._out[name] = []
        for link in links:
            self._add(link)
        self._steps_to: dict[str, dict[str, int]] = {}
        self._found: dict[tuple[str, str], tuple[Lane, ...]] = {}

    def _add(self, link: VirtualNetworkLink) -> None:
        if link.link_id in self.links:
            raise UsageError(f"two links are called {link.link_id!r}; give each a name of its own")
        self.links[link.link_id] = link
        ends = link.source_id, link.dest_id
        for source, dest in (ends, ends[::-1]) if link.bidirectional else (ends,):
            lane = Lane(f"{link.link_id}: {source} to {dest}", link.bytes_per_s, link.latency_s, link.link_id)
            self._out[source].append((dest, lane))
            self._lanes.setdefault((source, dest), lane)
            self._into[dest].append(source)
            self._out[dest]

    @property
    def endpoints(self) -> list[str]:
        """Return all names that a route can begin or end at."""
        return list(self._out)

    @property
    def lanes(self) -> list[Lane]:
        """Return both directions of all links."""
        return [lane for exits in self._out.values() for _, lane in exits]

    def along(self, names: Sequence[str]) -> tuple[Lane, ...]:
        """Return the lanes between endpoints that are neighbours, one after the other."""
        return tuple(self._lanes[pair] for pair in pairwise(names))

    def route(self, source: str, dest: str) -> tuple[Lane, ...]:
        """Return the lanes of the route from one endpoint to another; none where they are the same.

        Raises:
            UsageError: an endpoint is unknown, or no links lead there.
        """
        found = self._found.get((source, dest))
        if found is None:
            found = self._found[source, dest] = tuple(self._walk(source, dest))
        return found

    def _walk(self, source: str, dest: str) -> Iterable[Lane]:
        for name in (source, dest):
            if name not in self._out:
                raise UsageError(f"there is no endpoint {name!r}; {one_of(name, self._out):.200}")
        steps = self._steps(dest)
        if source not in steps:
            raise UsageError(f"no links lead from {source} to {dest}; add one")
        here = source
        while here != dest:
            exits = [one for one in self._out[here] if steps.get(one[0], -1) == steps[here] - 1]
            here, lane = exits[crc32(f"{source}>{dest}>{here}".encode()) % len(exits)]
            yield lane

    def _steps(self, dest: str) -> dict[str, int]:
        """Return how many links lie between each endpoint and `dest`."""
        found = self._steps_to.get(dest)
        if found is None:
            found, waiting = {dest: 0}, deque([dest])
            while waiting:
                name = waiting.popleft()
                for before in self._into[name]:
                    if before not in found:
                        found[before] = found[name] + 1
                        waiting.append(before)
            self._steps_to[dest] = found
        return found


Links = list[VirtualNetworkLink]

MOST_ENDPOINTS = 2**17
"""What a line of a profile may connect: its links are objects, each with a queue."""


def star(name: str, endpoints: Sequence[str], bandwidth_bps: float, latency_s: float = 0.0) -> Links:
    """Return one link from each endpoint to a switch that carries all of them at once: NVSwitch, a rail, a PCIe switch.

    Args:
        name: of the switch.
        endpoints: what is connected to it.
        bandwidth_bps: of each link, one way.
        latency_s: of each link; a route over the switch has two.
    """
    return [VirtualNetworkLink(f"{end}-{name}", end, name, bandwidth_bps, latency_s) for end in endpoints]


def tree(
    name: str,
    endpoints: Sequence[str],
    bandwidth_bps: float,
    latency_s: float = 0.0,
    *,
    per_leaf: int,
    num_spines: int = 1,
    oversubscription: float = 1.0,
) -> Links:
    """Return a two-level fat tree: leaf switches with `per_leaf` endpoints each, every leaf connected to every spine.

    Args:
        name: what switches are called by: "tree.leaf0", "tree.spine0".
        endpoints: in the order in which they fill leaves.
        bandwidth_bps: of an endpoint's link, one way.
        latency_s: of each link.
        per_leaf: endpoints of a leaf.
        num_spines: spine switches; routes are spread over them by a hash (see `Routes`).
        oversubscription: how many times more a leaf's endpoints can send than its links to the spines carry.

    Source:
        Leiserson, "Fat-Trees", IEEE Transactions on Computers C-34(10), 1985; Al-Fares et al., SIGCOMM 2008.
    """
    require_count("per_leaf", per_leaf)
    require_count("num_spines", num_spines, most=MOST_ENDPOINTS)
    require_number("oversubscription", oversubscription)
    links: Links = []
    up_bps = bandwidth_bps * per_leaf / num_spines / oversubscription
    for number, begin in enumerate(range(0, len(endpoints), per_leaf)):
        leaf = f"{name}.leaf{number}"
        links += star(leaf, endpoints[begin : begin + per_leaf], bandwidth_bps, latency_s)
        links += [
            VirtualNetworkLink(f"{leaf}-spine{spine}", leaf, f"{name}.spine{spine}", up_bps, latency_s)
            for spine in range(num_spines)
        ]
    return links


def torus(
    dims: Sequence[int], bandwidth_bps: float, latency_s: float = 0.0, *, endpoints: Sequence[str] | None = None
) -> Links:
    """Return a ring in each dimension through every endpoint, as between TPUs.

    Args:
        dims: endpoints in each dimension; two have one link, one none.
        bandwidth_bps: of each link, one way.
        latency_s: of each link.
        endpoints: their names, the last dimension running fastest; "chip0", "chip1" ... if None.
    """
    sizes = [require_count("dims", size) for size in dims]
    require_count("the product of dims", math.prod(sizes), most=MOST_ENDPOINTS)
    places = list(product(*map(range, sizes)))
    names = [f"chip{number}" for number in range(len(places))] if endpoints is None else list(endpoints)
    if len(names) != len(places):
        raise UsageError(f"a torus of {list(dims)} has {len(places)} endpoints, got {len(names)} names")
    name_at = dict(zip(places, names, strict=True))
    links: Links = []
    for place, name in name_at.items():
        for axis, size in enumerate(sizes):
            if size > 2 or (size == 2 and place[axis] == 0):
                after = name_at[(*place[:axis], (place[axis] + 1) % size, *place[axis + 1 :])]
                links.append(VirtualNetworkLink(f"{name}-{after}", name, after, bandwidth_bps, latency_s))
    return links


def nodes(
    num_nodes: int,
    devices_per_node: int,
    *,
    nvlink_bps: float,
    pcie_bps: float,
    nic_bps: float,
    nics: int = 1,
    rails: bool = False,
    latency_s: float = 0.0,
    name: str = "gpu",
) -> Links:
    """Return servers: devices on a switch, PCIe switches with interfaces and the host, and what joins the servers.

    Each interface has a PCIe switch, which it shares with `devices_per_node / nics` devices. Interfaces of all nodes
    lead to one switch, or with `rails` to one switch for the first of every node, one for the second, and so on, which
    a spine joins.

    Args:
        num_nodes: servers; those of node 1 begin with device `devices_per_node`.
        devices_per_node: devices of each.
        nvlink_bps: between a device and the switch of its node, one way.
        pcie_bps: between a device, its PCIe switch and the host, one way.
        nic_bps: of an interface, one way.
        nics: interfaces of a node, at most one a device.
        rails: whether interfaces of one place have a switch of their own.
        latency_s: of an interface's link.
        name: what devices are called by: "gpu0".

    Raises:
        UsageError: a number is no count, or a node has more interfaces than devices.
    """
    for what, value in (("num_nodes", num_nodes), ("devices_per_node", devices_per_node), ("nics", nics)):
        require_count(what, value)
    require_count("num_nodes x devices_per_node", num_nodes * devices_per_node, most=MOST_ENDPOINTS)
    if nics > devices_per_node:
        raise UsageError(
            f"nics ({nics}) must be at most devices_per_node ({devices_per_node}), as each interface has devices of "
            "its own; use fewer, with a larger nic_bps"
        )
    links: Links = []
    for node in range(num_nodes):
        here = [f"{name}{node * devices_per_node + local}" for local in range(devices_per_node)]
        links += star(f"node{node}.switch", here, nvlink_bps)
        for local, device in enumerate(here):
            switch = f"node{node}.pcie{local * nics // devices_per_node}"
            links += star(f"{device}.port", [device], pcie_bps)
            links.append(VirtualNetworkLink(f"{device}-{switch}", f"{device}.port", switch, pcie_bps))
        for nic in range(nics):
            switch, end = f"node{node}.pcie{nic}", f"node{node}.nic{nic}"
            links.append(VirtualNetworkLink(f"{switch}-host", switch, f"node{node}.host", pcie_bps * devices_per_node))
            links.append(VirtualNetworkLink(f"{end}.bus", switch, end, max(pcie_bps, nic_bps)))
            links.append(VirtualNetworkLink(end, end, f"rail{nic}" if rails else "fabric", nic_bps, latency_s))
    if rails:
        links += star("spine", [f"rail{nic}" for nic in range(nics)], nic_bps * num_nodes)
    return links


TOPOLOGIES: Mapping[str, Callable[..., Links]] = MappingProxyType(
    {"star": star, "nodes": nodes, "tree": tree, "torus": torus}
)


def links_of(line: Mapping[str, Any]) -> Links:
    """Return the links that a line of a profile makes.

    Args:
        line: `topology` and the arguments of the function of that name.

    Raises:
        UsageError: there is no such topology, or an argument is missing, unknown or outside its rule.
    """
    arguments = dict(line)
    kind = arguments.pop("topology")
    make = TOPOLOGIES.get(kind)
    if make is None:
        raise UsageError(f"there is no topology {kind!r}; {one_of(kind, TOPOLOGIES)}")
    known = inspect.signature(make).parameters
    require_known(f"{kind} has no key", arguments, known)
    missing = [name for name, one in known.items() if one.default is one.empty and name not in arguments]
    if missing:
        raise UsageError(f"{kind} lacks {', '.join(missing)}")
    return make(**arguments)


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
        require_number("oversubscription", oversubscription)
        self.oversubscription = oversubscription
        if self.tiers[-1].size < world_size:
            raise UsageError(
                f"the largest tier of {config.name} spans {self.tiers[-1].size} processors, not {world_size}; use fewer"
            )
        size = self.node_size
        self.node_of = [rank // size for rank in range(world_size)] if placement is None else list(placement)
        self.nodes = grouped((node, rank) for rank, node in enumerate(self.node_of))
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


def _bps(tier: Network) -> float:
    """Return the rate that a processor reaches into a tier, bits/s."""
    return tier.bandwidth * GIGA * tier.efficiency * BITS_PER_BYTE
