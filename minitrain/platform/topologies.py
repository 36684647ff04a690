"""Links of usual clusters, a line each: switches, interfaces, PCIe, fat trees and tori.

In a `hardware_profile` they stand among the links, and are replaced by what they make:

    network_links:
      - {topology: torus, dims: [4, 4], bandwidth_bps: 400_000_000_000, latency_s: 1.0e-6}
      - {topology: star, name: rail0, endpoints: [nic0, nic1], bandwidth_bps: 200_000_000_000, latency_s: 2.0e-6}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError, require_count
from minitrain.platform.links import VirtualNetworkLink
from minitrain.workloads.field_faults import closest

Links = list[VirtualNetworkLink]


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
    require_count("num_spines", num_spines)
    if not oversubscription > 0:
        raise UsageError(f"oversubscription must be above 0, got {oversubscription!r}; 1 is a tree that never blocks")
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
    places = list(product(*map(range, sizes)))
    names = [f"chip{number}" for number in range(len(places))] if endpoints is None else list(endpoints)
    if len(names) != len(places):
        raise UsageError(f"a torus of {list(dims)} has {len(places)} endpoints, got {len(names)} names")
    name_at = dict(zip(places, names, strict=True))
    return [
        VirtualNetworkLink(
            f"{name_at[place]}-{name_at[after]}", name_at[place], name_at[after], bandwidth_bps, latency_s
        )
        for place in places
        for after in _neighbours(place, sizes)
    ]


def _neighbours(place: tuple[int, ...], sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the place one further in each dimension."""
    for axis, size in enumerate(sizes):
        if size == 1 or (size == 2 and place[axis] == 1):
            continue
        yield (*place[:axis], (place[axis] + 1) % size, *place[axis + 1 :])


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
    if nics > devices_per_node:
        raise UsageError(
            f"nics ({nics}) must be at most devices_per_node ({devices_per_node}), as each interface has devices of "
            "its own; use fewer, with a larger nic_bps",
            nics=nics,
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
        raise UsageError(
            f"there is no topology {kind!r} {closest(kind, TOPOLOGIES)}; use one of {', '.join(TOPOLOGIES)}"
        )
    known = inspect.signature(make).parameters
    unknown = [name for name in arguments if name not in known]
    missing = [name for name, one in known.items() if one.default is one.empty and name not in arguments]
    if unknown:
        raise UsageError(
            f"{kind} has no key {unknown[0]!r} {closest(unknown[0], known)}; it may have {', '.join(known)}"
        )
    if missing:
        raise UsageError(f"{kind} lacks {', '.join(missing)}")
    return make(**arguments)
