"""The cost of what ranks of a cluster do together: by the links that they cross.

**Within a group of devices** the group's own predictor prices it, as in a run on that hardware alone.

**Between groups.** The members of a collective form one ring, node after node. Each byte of the ring crosses every hop,
so that the slowest link on the ring sets the pace: the price is the largest of T_hop(op, S, n) over the hops, each the
price of that link alone (see `hardware.network`). Hops are those inside a node (where it has two members or more),
between nodes of a group, and between groups. A node's devices share its link to others: a ring has the part of it that
belongs to its members, since in a training step the groups beside a group do the same at the same time. Of one cable
between two groups it has the part of its members among all ranks of a group.

Where all nodes have two members or more, the two-level algorithm of `hardware.topology` is taken if it is faster: its
inner phases take as long as in the slowest node, its outer one as on the slowest link between them. An all_to_all and a
message have a device's own part of a link alone.

Left out: several rings at a time, links that carry other traffic meanwhile, and routes over a third group.

A predictor for each rank of a cluster: its own device's prices, and one network for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

from minitrain.errors import UsageError
from minitrain.machine.cluster import Places
from minitrain.machine.device import Power, Processor, Rate
from minitrain.machine.network import Network, Split, two_level_seconds
from minitrain.machine.predictor import make_predictor
from minitrain.machine.price import ROOFLINE, Account, Predictor, Price, Pricing, RankPredictors, accounts_of
from minitrain.machine.topology import RING_OPS, TWO_LEVEL_OPS, seconds_by
from minitrain.operations.collectives import COLLECTIVES, RING_ROWS

if TYPE_CHECKING:
    from minitrain.machine.cluster import Cluster
    from minitrain.machine.config import SystemConfig
    from minitrain.machine.device_groups import Devices, Link
    from minitrain.machine.topology import Step
    from minitrain.workloads.workload import Workload


"""The bytes that cross each hop of a ring (see `hardware.network`)."""

_RAILED_OPS = RING_OPS | {name for name, record in COLLECTIVES.items() if record.has_root}


class Slowest:
    """Links of which the slowest sets the pace.

    Args:
        tiers: the links.
    """

    __slots__ = ("tiers",)

    def __init__(self, tiers: Iterable[Network]) -> None:
        self.tiers = tuple(tiers)

    def time(self, op: str, size_bytes: float, num_ranks: float) -> float:
        """Return the longest time of an operation on any of them, s."""
        return max(tier.time(op, size_bytes, num_ranks) for tier in self.tiers)

    def tier(self, op: str, size_bytes: float, num_ranks: int) -> Network:
        """Return the one that takes longest."""
        return max(self.tiers, key=lambda tier: tier.time(op, size_bytes, num_ranks))


@dataclass(eq=False)
class ClusterNetwork:
    """Prices what the ranks of a run on a cluster do together.

    Args:
        cluster: groups and links.
        places: which rank has which device.
        predictors: by group, what prices operations among its ranks, which it knows as 0, 1, ...
        tiers: by group, its links inside a node and between nodes.
        is_free: whether transfers take no time (an ablation).
    """

    kind: ClassVar[str] = "hierarchical"

    cluster: Cluster
    places: Places
    predictors: Mapping[str, Predictor]
    tiers: Mapping[str, Sequence[Network]]
    is_free: bool = False

    def __post_init__(self) -> None:
        self.num_nodes = len(set(self.places.nodes))
        self.collective = cache(self._collective)
        self.p2p = cache(self._p2p)

    def accounts(self) -> Mapping[int, Callable[[], Account]]:
        """Return what explains each price within a group, by the price's id."""
        return {key: found for each in self.predictors.values() for key, found in accounts_of(each).items()}

    def _collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        """Price a collective among some ranks, by an algorithm or by the network's choice."""
        self._check(ranks)
        groups = self.places.groups_of(ranks)
        if len(groups) == 1:
            own = self.predictors[groups.pop()]
            return own.collective(op, size_bytes, self.places.local(ranks), algorithm)
        if self.is_free:
            return Price(0.0, size_bytes)
        return self._between_groups(op, size_bytes, ranks, algorithm)

    def _p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        """Price one side of a message."""
        self._check((source, dest))
        here, there = self.places.group(source), self.places.group(dest)
        if here == there:
            return self.predictors[here].p2p(op, size_bytes, *self.places.local((source, dest)))
        if self.is_free:
            return Price(0.0, size_bytes)
        link = Slowest(self._hop(self.places.nodes[source], self.places.nodes[dest], None))
        tier = link.tier("p2p", size_bytes, 2)
        return Price(tier.time("p2p", size_bytes, 2), size_bytes, None, tier.processor_usage, tier.size)

    def _between_groups(self, op: str, size_bytes: float, ranks: Sequence[int], asked: str | None) -> Price:
        """Price a collective whose members are in several groups: as asked, or by the faster of ring and two levels."""
        members = Counter(self.places.nodes[rank] for rank in ranks)
        is_ring, num_ranks = op in _RAILED_OPS, len(ranks)
        ring = Slowest(self._ring(members, share_rails=is_ring))
        split = Split.of(members.values())
        inner, outer = Slowest(self._inside(members)), Slowest(self._across(members, None))
        found: list[tuple[float, str | None]] = []
        if asked != "hierarchical":
            found.append((ring.time(op, size_bytes, num_ranks), "ring" if op in RING_OPS else None))
        if asked not in (None, "ring"):
            found.append((seconds_by(asked, op, size_bytes, inner, outer, split), asked))
        elif asked is None and op in TWO_LEVEL_OPS and split.has_two_levels:
            found.append((two_level_seconds(op, size_bytes, inner, outer, split), "hierarchical"))
        seconds, algorithm = min(found, key=itemgetter(0))
        tier = ring.tier(op, size_bytes, num_ranks)
        return Price(seconds, size_bytes, algorithm, tier.processor_usage, tier.size)

    def _ring(self, members: Counter[int], *, share_rails: bool) -> Iterator[Network]:
        """Yield the hops of a ring through some nodes."""
        yield from self._inside(members)
        yield from self._across(members, members if share_rails else None)

    def _inside(self, members: Counter[int]) -> Iterator[Network]:
        """Yield the links inside the nodes that have two members or more."""
        groups = {self.places.group_of_node(node) for node, number in members.items() if number > 1}
        for name in sorted(groups):
            yield self.tiers[name][0]

    def _across(self, members: Counter[int], rails: Counter[int] | None) -> Iterator[Network]:
        """Yield the hops between nodes, the last one back to the first."""
        nodes = sorted(members)
        for here, there in pairwise([*nodes, nodes[0]]):
            yield from self._hop(here, there, rails)

    def _hop(self, here: int, there: int, rails: Counter[int] | None) -> Iterator[Network]:
        """Yield what carries transfers from one node to another: the part of each of the two.

        Args:
            here: a node.
            there: another one.
            rails: the members of the collective by node, which have their part of the link together; None for the part
                of a single device.
        """
        first, second = self.places.group_of_node(here), self.places.group_of_node(there)
        for node, name in ((here, first), (there, second)):
            if first == second:
                tier = self.tiers[name][-1]
                yield tier if rails is None else _wider(tier, rails[node])
            else:
                link, group = self.cluster.link(first, second), self.cluster.group(name)
                yield self._part_of_link(link, group, node, rails)

    def _part_of_link(self, link: Link, group: Devices, node: int, rails: Counter[int] | None) -> Network:
        """Return a part of a link between groups: that of one device, or of a collective's members."""
        if not link.is_one_cable:
            return self._network(link, (1 if rails is None else rails[node]) / group.devices_per_node)
        num_members = 1
        if rails is not None:
            of_group = (number for other, number in rails.items() if self.places.group_of_node(other) == group.label)
            num_members = sum(of_group)
        return self._network(link, num_members / self.places.num_ranks_of(group.label))

    def _network(self, link: Link, part: float) -> Network:
        """Return a part of a link as a tier that spans all ranks."""
        return tier_of(link, part, len(self.places.nodes))

    def _check(self, ranks: Sequence[int]) -> None:
        """Refuse ranks that the run does not have."""
        world_size = len(self.places.nodes)
        wrong = next((rank for rank in (min(ranks), max(ranks)) if not 0 <= rank < world_size), None)
        if wrong is not None:
            raise UsageError(
                f"rank {wrong} must be in 0..{world_size - 1} for world_size {world_size}",
                rank=wrong,
                world_size=world_size,
            )

    def one_of_each_shape(self, ranks: Sequence[int], steps: Iterable[Step]) -> list[Sequence[int]]:
        """Return groups that stand for a group and all its copies: copies of equal shape have equal prices.

        Args:
            ranks: the group.
            steps: distance and number of copies, which are at all sums of these multiples.
        """
        steps = list(steps)
        by_shape = {self._shape(ranks): ranks}
        for places in product(*(range(count) for _, count in steps)):
            shift = sum(place * distance for place, (distance, _) in zip(places, steps, strict=True))
            copy = tuple(rank + shift for rank in ranks)
            by_shape.setdefault(self._shape(copy), copy)
        return list(by_shape.values())

    def distance(self, source: int, dest: int) -> object:
        """Return what the price of a message between two ranks depends on."""
        return self._shape((source, dest))

    def _shape(self, ranks: Sequence[int]) -> object:
        """Return what the price of a collective among some ranks depends on."""
        nodes = self.places.nodes
        members = Counter(nodes[rank] for rank in ranks)
        groups = tuple(sorted((self.places.group_of_node(node), number) for node, number in members.items()))
        is_alone = len({name for name, _ in groups}) == 1
        return groups, tuple(sorted(node - min(members) for node in members)) if is_alone else ()


def tier_of(link: Link, part: float, size: int) -> Network:
    """Return a part of a link as one tier of a network.

    Args:
        link: the link.
        part: of its bandwidth.
        size: ranks that the tier spans.
    """
    return Network(link.bytes_per_s * part / 1e9, 1.0, size, link.latency_s, RING_ROWS)


def _wider(tier: Network, num_rails: int) -> Network:
    """Return a tier at the bandwidth that several devices of a node have into it together."""
    return replace(tier, bandwidth=tier.bandwidth * num_rails)


def predictors_of(
    cluster: Cluster,
    world_size: int,
    network: str = "auto",
    placement: Sequence[int] | None = None,
    workload: Workload | None = None,
    pricing: Pricing = ROOFLINE,
) -> RankPredictors:
    """Return what prices the operations of each rank of a run on a cluster.

    Args:
        cluster: groups of devices and links.
        world_size: number of ranks.
        network: "auto" or "hierarchical": how ranks of one group are connected.
        placement: node of each rank, numbered over the whole cluster.
        workload: what is trained; the specified one if None.
        pricing: how operations are priced on a device.

    Raises:
        UsageError: there are more ranks than devices, the placement does not fit, or the network is flat.
        HardwareConfigError: a config lacks what the pricing needs.
    """
    if network == "flat":
        raise UsageError(
            'network="flat" is one tier for all ranks, and a cluster has links of its own; leave network out',
            network=network,
        )
    places = Places(cluster, world_size, placement)
    own: dict[str, Predictor] = {}
    pricings = _pricings(cluster, workload, pricing)
    if pricing.collectives:
        raise UsageError(
            "collectives are laws of one hardware config's network, and a cluster has several; leave them out"
        )
    for name in places.used_groups:
        group, priced = cluster.group(name), pricings[name]
        nodes = None if placement is None else places.local_nodes(name)
        own[name] = make_predictor(
            system_of(group, priced), places.num_ranks_of(name), network, nodes, workload, priced
        )
        own[name].num_writers = world_size  # type: ignore[attr-defined]  # of all that a config makes
        if group.clock_share < 1 and group.prices is not None:  # a table cannot tell arithmetic from memory traffic
            own[name] = own[name].slowed(1 / group.clock_share)
    tiers = {name: tiers_of(cluster.group(name)) for name in places.used_groups}
    shared = ClusterNetwork(cluster, places, own, tiers, is_free="transfers" in pricing.without)
    names = [places.group(rank) for rank in range(world_size)]
    return RankPredictors([own[name] for name in names], shared, devices=names, cluster=cluster)


def _pricings(cluster: Cluster, workload: Workload | None, pricing: Pricing) -> dict[str, Pricing]:
    """Return how operations are priced on the devices of each group: by kernels where all of the cluster can be."""
    found = {
        group.label: (pricing if group.prices is None else replace(pricing, prices=group.prices)).on(
            group.system, workload
        )
        for group in cluster.devices
    }
    lacking = next((each.reason for each in found.values() if each.reason), "")
    if not lacking:
        return found
    priced_by = {"fidelity": "roofline", "platform": None, "reason": lacking}
    return {name: replace(each, **priced_by) for name, each in found.items()}  # type: ignore[arg-type]  # each of its kind


def system_of(group: Devices, pricing: Pricing = ROOFLINE) -> SystemConfig:
    """Return the config of a group's devices: its own links, and arithmetic at the clock that caps and heat leave.

    The peak rates stay those of the data sheet, so that MFU counts what the devices could do.
    """
    system = replace(group.system, networks=tiers_of(group))
    share = group.clock_share
    if share == 1.0:
        return system
    power = system.sheet.power
    assert power is not None  # a cap has asked for it
    capped = Power(min(power.tdp_W, group.watts or power.tdp_W), power.idle_W)
    processor = Processor(_slowed(system.matrix, share), _slowed(system.vector, share))
    kernels = system.kernels
    if pricing.fidelity == "kernels":
        from minitrain.machine.kernel_device import rates_of  # noqa: PLC0415 - only where it is asked for

        kernels = rates_of(system).scaled(share)
    sheet = replace(system.sheet, power=capped)
    return replace(system, processor=processor, kernels=kernels, sheet=sheet)


def _slowed(rates: Mapping[str, Rate], share: float) -> dict[str, Rate]:
    """Return rates of which less is reached."""
    return {
        key: Rate(rate.tflops, tuple((bound, reached * share) for bound, reached in rate.gflops_efficiency))
        for key, rate in rates.items()
    }


def tiers_of(group: Devices) -> tuple[Network, ...]:
    """Return the network of a group: its config's tiers, or what the group says in their place."""
    inner, *outer = sorted(group.system.networks, key=lambda tier: tier.size)
    if group.per_node is None and group.inside_node is group.between_nodes is None:
        return (inner, *outer)
    size = group.devices_per_node
    within = replace(inner, size=size, must_be_filled=False)
    if group.inside_node is not None:
        within = tier_of(group.inside_node, 1.0, size)
    most = max([tier.size for tier in outer], default=inner.size)
    if group.between_nodes is not None:
        return within, tier_of(group.between_nodes, 1 / size, max(most, group.count, size + 1))
    return (within, *outer) if outer else (within, replace(inner, size=max(most, size + 1)))
