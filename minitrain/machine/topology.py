"""Network models: the interface `Topology`, and the flat and the hierarchical model. A new one goes here.

`FlatTopology` is the specified model: one tier for the whole run. `HierarchicalTopology` places ranks in
nodes and prices each message or collective on the smallest tier that contains its participants.

Definitions. A *node* is one unit of the smallest tier and holds at most `tiers[0].size` ranks. Nodes are
numbered; they take ranks as launchers start them (see `rank_placement`) unless a placement says otherwise. A larger
tier k spans ceil(size_k / size_0) consecutive nodes; blocks of so many nodes, counted from node 0, are its units (a
node that a tier reaches only in part belongs to it, which happens where sizes do not divide). A tier *contains*
ranks whose nodes lie in one block.

Formulas, for a group of n ranks in N nodes, of which the emptiest has `least` and the fullest `most`, and S bytes;
T(op, bytes, ranks) is the tier's own price:

    ring            T_outer(op, S, n)
    hierarchical
      all_reduce      T_inner(reduce_scatter, S, most) + T_outer(all_reduce, S/least, N)
                        + T_inner(all_gather, S, most)
      all_gather      T_outer(all_gather, S/least, n/least) + T_inner(all_gather, S, most)
      reduce_scatter  T_inner(reduce_scatter, S, most) + T_outer(reduce_scatter, S/least, n/least)
      all_to_all      max(T_outer(p2p, S (n - least)/n), T_inner(p2p, S (most - 1)/n))

A strategy may ask for one of them (`algorithm=`); a tier's row has no steps, so that trees are refused here.

inner is the smallest tier, outer the one that contains the group. The ranks of a node work on different shares at the
same time, each over its own port: a tier's bandwidth is that of one processor. All nodes work on as many shares as the
emptiest has ports, as NCCL takes the fewest channels that any node has; all of S but what it holds itself, a share
1 - least/n, passes them in an all_gather and a reduce_scatter. The hierarchical form needs two participants or more in
each of several nodes; the faster of the two is taken, the ring if equal. An all_to_all has no ring: each rank sends to
every other one itself, to those of its node inside, at the same time as to all others across; on the containing tier
alone, (n - 1)/n of S go there. broadcast and barrier are priced on the containing tier alone. Left out: congestion
between groups, and the reordering of shards that a hierarchical all_gather needs.

`must_be_filled` is a rule for the whole run: one that reaches beyond such a tier holds a multiple of its
size. Groups of the run may hold any ranks.

Source: hierarchical all-reduce: Jia et al., "Highly Scalable Deep Learning Training System with
Mixed-Precision", 2018 (arXiv 1807.11205), in the reduce-scatter form of BlueConnect (Cho et al., SysML
2019) and Horovod's NCCLHierarchicalAllreduce; its halves are the two-phase forms of the other collectives. Fewest
channels: `initTransportsRank` in src/init.cc of github.com/NVIDIA/nccl, which takes the minimum over all ranks.
Ring costs: see `network.py`.

How ranks lie in nodes: as launchers start them, or a placement by hand; regular groups are counted by arithmetic.

Launchers start ranks node after node, and as many on each node as on any other: torchrun takes one `--nproc-per-node`,
Slurm's block distribution divides tasks evenly over nodes (man page of srun, `--distribution=block`), and jobs on
NVL72 racks use 64 of the 72 devices of each, so that their groups fit. `nodes_in_rank_order` does the same.

A million ranks are never listed. A group `range(start, stop, step)` meets node boundaries in a pattern that repeats
after step / gcd(step, node size) nodes. Groups that start a multiple of all units' sizes apart lie alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from operator import index
from typing import ClassVar, Protocol

from minitrain.errors import UsageError
from minitrain.machine.columns import chosen
from minitrain.machine.network import (
    Network,
    PricesOps,
    Split,
    no_such_algorithm,
    require_algorithm,
    require_two_levels,
    select_tier,
    two_level_seconds,
)
from minitrain.operations.collectives import COLLECTIVES

Step = tuple[int, int]  # distance in ranks, and how many places there are
_NEIGHBOURS = 8  # the largest tensor parallelism in use; its ranks are to stay in a node
_SPARE = 8  # a node may leave one in so many of its devices free, where all nodes then hold the same number


class RankNodes(Protocol):
    """Where ranks sit, as far as prices depend on it."""

    def one_of_each_shape(self, ranks: Sequence[int], steps: Iterable[Step]) -> list[Sequence[int]]:
        """Return groups that stand for a group and all its copies: copies of equal shape have equal prices."""

    def distance(self, source: int, dest: int) -> Hashable:
        """Return what the price of a message between two ranks depends on."""


@dataclass(frozen=True, slots=True)
class NodesInRankOrder:
    """Nodes that take ranks in their order: some of them `most` ranks each, and all later ones `least`.

    Args:
        num_full: how many hold `most`.
        most: ranks of one of these.
        least: ranks of a later node; as many as `most` where all are equal.
    """

    num_full: int
    most: int
    least: int

    @property
    def are_equal(self) -> bool:
        """Whether all nodes hold the same number of ranks."""
        return self.least == self.most

    def node(self, rank: int) -> int:
        """Return the node of a rank."""
        beyond = rank - self.num_full * self.most
        return rank // self.most if beyond < 0 else self.num_full + beyond // self.least

    def split(self, ranks: range) -> Split:
        """Return how an ascending group lies in the nodes."""
        border = self.num_full * self.most
        num_first = len(range(ranks.start, min(border, ranks.stop), ranks.step))
        later = ranks[num_first:]
        moved = range(later.start - border, later.stop - border, ranks.step)
        parts = [(part, size) for part, size in ((ranks[:num_first], self.most), (moved, self.least)) if part]
        counts = set[int]().union(*(counts_in_nodes(part, size) for part, size in parts))
        num_nodes = sum(num_nodes_of(part, size) for part, size in parts)
        return Split(len(ranks), num_nodes, min(counts), max(counts))


def nodes_in_rank_order(world_size: int, node_size: int) -> NodesInRankOrder:
    """Return how a run lies in nodes where nothing else is asked for.

    All nodes hold the same number where a divisor of the world size nearly fills a node, else as nearly the same as may
    be, in the fewest nodes. Blocks of gcd(world_size, node_size, 8) neighbours are never torn apart: groups for tensor
    parallelism, whose size divides all three, stay in a node.

    Args:
        world_size: number of ranks.
        node_size: ranks that a node holds at most.

    >>> nodes_in_rank_order(512, 72)
    NodesInRankOrder(num_full=8, most=64, least=64)
    >>> nodes_in_rank_order(20, 8)
    NodesInRankOrder(num_full=2, most=8, least=4)
    """
    block = gcd(world_size, node_size, _NEIGHBOURS)
    blocks, places = world_size // block, node_size // block
    for equal in range(places, places - places // _SPARE - 1, -1):
        if blocks % equal == 0:
            return NodesInRankOrder(blocks // equal, equal * block, equal * block)
    num_nodes = -(-blocks // places)
    least, num_full = divmod(blocks, num_nodes)
    return NodesInRankOrder(num_full, (least + bool(num_full)) * block, least * block)


def counts_in_nodes(ranks: range, node_size: int) -> set[int]:
    """Return how many members a group has in its nodes, each number once.

    Args:
        ranks: the members, ascending; nodes are filled in rank order.
        node_size: ranks that a node holds.

    >>> sorted(counts_in_nodes(range(4, 2**40), 8))
    [4, 8]
    """
    period = node_size // gcd(ranks.step, node_size)  # members after which the pattern repeats
    if len(ranks) > 4 * period:  # the same first node, the same last one, and every kind of node between them
        ranks = ranks[: 3 * period + len(ranks) % period]
    return set(Counter(rank // node_size for rank in ranks).values())


def num_nodes_of(ranks: range, node_size: int) -> int:
    """Return in how many nodes an ascending group sits: all between its ends, or one a member.

    >>> num_nodes_of(range(4, 20), 8), num_nodes_of(range(0, 64, 16), 8)
    (3, 4)
    """
    return len(ranks) if ranks.step > node_size else ranks[-1] // node_size - ranks[0] // node_size + 1


def distinct_shifts(steps: Iterable[Step], period: int) -> list[int]:
    """Return shifts that stand for all sums of multiples of some steps: one for each remainder by a period.

    >>> distinct_shifts([(3, 2**40)], 8)
    [0, 3, 6, 9, 12, 15, 18, 21]
    """
    shifts = {0: 0}  # by remainder
    for distance, count in steps:
        places = range(min(count, period // gcd(distance, period)))  # more of them repeat the remainders
        sums = [known + distance * place for place in places for known in shifts.values()]
        shifts = {total % period: total for total in reversed(sums)}
    return sorted(shifts.values())


def checked_placement(placement: Sequence[int], world_size: int, node_size: int, num_nodes: int) -> tuple[int, ...]:
    """Return a placement as a tuple, or say what does not fit.

    Args:
        placement: the node of each rank.
        world_size: number of ranks.
        node_size: most ranks of a node.
        num_nodes: nodes of the largest tier.

    Raises:
        UsageError: it is no sequence of node numbers, one a rank, or names a node that is not there or is full.
    """
    nodes = node_of_each_rank(placement, world_size)
    if min(nodes) < 0 or max(nodes) >= num_nodes:
        wrong = min(nodes) if min(nodes) < 0 else max(nodes)
        raise UsageError(f"a placement's nodes must be in 0..{num_nodes - 1}, the largest tier's, not {wrong}")
    node, crowd = Counter(nodes).most_common(1)[0]
    if crowd > node_size:
        raise UsageError(
            f"a node must hold at most {node_size} ranks, the size of the smallest tier, but the "
            f"placement puts {crowd} ranks on node {node}; spread them over more nodes"
        )
    return nodes


def node_of_each_rank(placement: Sequence[int], world_size: int) -> tuple[int, ...]:
    """Return a placement as a tuple, whatever nodes there are.

    Raises:
        UsageError: it is no sequence of node numbers, one a rank.
    """
    try:
        nodes = tuple(map(index, placement))
    except TypeError:
        raise UsageError(
            f"a placement must be a sequence of whole node numbers, one a rank, not {placement!r:.80}"
        ) from None
    if len(nodes) != world_size:
        raise UsageError(f"a placement must name the node of each of the {world_size} ranks, not of {len(nodes)}")
    return nodes


def shifted(ranks: Sequence[int], shift: int) -> Sequence[int]:
    """Return a group, every rank of it moved by as much."""
    if isinstance(ranks, range):
        return range(ranks.start + shift, ranks.stop + shift, ranks.step)
    return tuple(rank + shift for rank in ranks)


RING_OPS = frozenset(name for name, record in COLLECTIVES.items() if record.passes)
TWO_LEVEL_OPS = frozenset(name for name, record in COLLECTIVES.items() if record.has_two_levels)
_STOPPED = 0.99  # of a processor whose program waits: the most that a price may take
_MOST_RECENT = 1 << 16  # rank tuples remembered by identity before starting over


@dataclass(frozen=True, slots=True)
class Transfer:
    """How long a message or a collective takes, and how it is carried.

    Args:
        seconds: duration, at least 0.
        algorithm: "ring" or "hierarchical" for all_reduce, all_gather and reduce_scatter on a hierarchical
            topology, "hierarchical" for an all_to_all that sends inside nodes and across; None where there is
            no choice (a flat network, one rank, messages and the other collectives).
        tier: the outermost tier that carries it.
        usage: share of the processor that it takes from compute; the tier's `processor_usage` if None.
    """

    seconds: float
    algorithm: str | None
    tier: Network
    usage: float | None = None


class Topology(Protocol):
    """Prices communication between ranks."""

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Transfer:
        """Price a collective of `size_bytes` bytes among `ranks`, by the algorithm that was asked for, if any."""

    def p2p(self, size_bytes: float, source: int, dest: int) -> Transfer:
        """Price a message of `size_bytes` bytes from rank `source` to rank `dest`."""


@dataclass(frozen=True, slots=True)
class FlatTopology:
    """One tier carries everything: the specified model.

    Args:
        tier: the run's tier, as `select_tier` finds it.
    """

    tier: Network
    kind: ClassVar[str] = "flat"

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Transfer:
        """Price a collective: the tier's time for `len(ranks)` ranks.

        Raises:
            UsageError: as for `Network.time`; an algorithm was asked for that one tier has not.
        """
        require_row_of(op, algorithm, self.tier)
        return Transfer(self.tier.time(op, size_bytes, len(ranks)), algorithm, self.tier)

    def p2p(self, size_bytes: float, source: int, dest: int) -> Transfer:
        """Price a message: the tier's p2p time, whoever the two ranks are."""
        del source, dest
        return Transfer(self.tier.time("p2p", size_bytes, 2), None, self.tier)


@dataclass(frozen=True, slots=True)
class GroupShape:
    """What the price of a group depends on.

    Args:
        tier: the smallest that contains it.
        split: how its ranks lie in nodes.
    """

    tier: Network
    split: Split


def require_row_of(op: str, algorithm: str | None, tier: Network) -> None:
    """Require an algorithm that the row of a single tier stands for: a ring, where it has the bytes of one.

    Raises:
        UsageError: it stands for another.
    """
    require_algorithm(op, algorithm)
    if algorithm is None:
        return
    if algorithm != "ring":
        raise no_such_algorithm(
            op, algorithm, 'the flat network has one tier and no nodes; use network="hierarchical", or algorithm=None'
        )
    if tier.ops[op] != (2.0 if op == "all_reduce" else 1.0, -1):
        raise no_such_algorithm(op, algorithm, f"its tier's row {tier.ops[op]} is no ring's; use algorithm=None")


def seconds_by(algorithm: str, op: str, size_bytes: float, inner: PricesOps, outer: PricesOps, split: Split) -> float:
    """Return the seconds of a collective by an algorithm that was asked for, where tiers have rows alone.

    Args:
        algorithm: "ring" or "hierarchical".
        op: the collective.
        size_bytes: full size of the tensor.
        inner: what prices operations inside nodes.
        outer: what prices operations of the whole group.
        split: how its ranks lie in nodes.

    Raises:
        UsageError: the operation or the group has no such algorithm, or it is a tree.
    """
    require_algorithm(op, algorithm)
    if algorithm == "tree":
        raise no_such_algorithm(
            op,
            algorithm,
            'a network of tiers without curves has no price of a step, in which trees differ from rings; use "ring", '
            '"hierarchical" or None, or fidelity="kernels" on hardware whose networks have curves',
        )
    if algorithm == "ring":
        return outer.time(op, size_bytes, split.num_ranks)
    require_two_levels(op, has_two_levels=split.has_two_levels)
    return two_level_seconds(op, size_bytes, inner, outer, split)


class HierarchicalTopology:
    """Ranks sit in nodes; each operation is carried by the smallest tier that contains its participants.

    Args:
        tiers: the tiers of a config, in any order.
        world_size: number of ranks of the run.
        placement: the node of each rank; by default as `nodes_in_rank_order` says.
        may_be_unfilled: whether the run may fill a `must_be_filled` tier in part.

    Raises:
        UsageError: the run does not fit into the largest tier, it fills a `must_be_filled` tier in part, or the
            placement does not fit the tiers.

    Example:
        >>> from minitrain.machine import HierarchicalTopology, load_config
        >>> net = HierarchicalTopology(load_config("h100_80g_nvl8").networks, world_size=16)
        >>> net.p2p(0, 0, 7).tier.size, net.p2p(0, 0, 8).tier.size
        (8, 1048576)
    """

    kind: ClassVar[str] = "hierarchical"

    def __init__(
        self,
        tiers: Sequence[Network],
        world_size: int,
        placement: Sequence[int] | None = None,
        *,
        may_be_unfilled: bool = False,
    ) -> None:
        """Place the ranks."""
        select_tier(tiers, world_size)
        self.tiers = tuple(sorted(tiers, key=lambda tier: tier.size))
        self.world_size = world_size
        node_size = self.tiers[0].size
        self._in_order = nodes_in_rank_order(world_size, node_size)
        self._spans = tuple(-(-tier.size // node_size) for tier in self.tiers)  # nodes a block, rounded up
        self.placement = (
            None if placement is None else checked_placement(placement, world_size, node_size, self._spans[-1])
        )
        if not may_be_unfilled:
            self._check_filled()
        self._period = self._shift_that_changes_nothing()
        self._shapes: dict[Sequence[int], GroupShape] = {}
        self._copies: dict[tuple[range, tuple[Step, ...]], list[Sequence[int]]] = {}  # runs of a sweep share it
        # Hashing a tuple of a million ranks takes milliseconds: one seen before is known by its identity.
        self._recent: dict[int, tuple[Sequence[int], GroupShape]] = {}

    def node(self, rank: int) -> int:
        """Return the node that a rank sits in."""
        return self._in_order.node(rank) if self.placement is None else self.placement[rank]

    @property
    def num_nodes(self) -> int:
        """How many nodes the ranks sit in."""
        return self.node(self.world_size - 1) + 1 if self.placement is None else len(set(self.placement))

    @property
    def ranks_per_node(self) -> int:
        """How many ranks sit in the node that has most of them."""
        return self._in_order.most if self.placement is None else max(Counter(self.placement).values())

    def lie_alike(self, size: int) -> bool:
        """Return whether blocks of so many neighbours, counted from rank 0, lie alike in nodes and larger units."""
        if self.placement is not None or not self._in_order.are_equal:
            return size % self.world_size == 0
        return all(unit % size == 0 or size % unit == 0 for unit in self._units)

    @property
    def _units(self) -> list[int]:
        """The ranks of a unit of each tier that the run reaches beyond, where nodes hold equal numbers."""
        sizes = [span * self._in_order.most for span in self._spans]
        return [size for size in sizes if size < self.world_size]

    def one_of_each_shape(self, ranks: Sequence[int], steps: Iterable[Step]) -> list[Sequence[int]]:
        """Return groups that stand for a group and all its copies: copies of equal shape have equal prices.

        For a range of ranks and nodes in rank order, this takes arithmetic alone, however many ranks and copies.

        Args:
            ranks: the group.
            steps: distance and number of copies, which are at all sums of these multiples.

        Returns:
            The group, and a copy for each other shape.

        Raises:
            UsageError: as for `collective`.
        """
        if not isinstance(ranks, range):
            return self._one_of_each_shape(ranks, steps)
        key = ranks, tuple(steps)
        found = self._copies.get(key)
        if found is None:
            found = self._copies[key] = self._one_of_each_shape(*key)
        return found

    def _one_of_each_shape(self, ranks: Sequence[int], steps: Iterable[Step]) -> list[Sequence[int]]:
        """Find out what `one_of_each_shape` returns."""
        by_shape = {self.shape(ranks): ranks}
        for shift in distinct_shifts(steps, self._period):
            copy = shifted(ranks, shift)
            by_shape.setdefault(self.shape(copy), copy)
        return list(by_shape.values())

    def distance(self, source: int, dest: int) -> int:
        """Return the size of the tier that carries a message between two ranks."""
        return self.p2p(0, source, dest).tier.size

    def p2p(self, size_bytes: float, source: int, dest: int) -> Transfer:
        """Price a message on the smallest tier that contains its two ranks.

        Args:
            size_bytes: size of the message, in bytes.
            source: the sending rank.
            dest: the receiving rank.

        Returns:
            The price; its algorithm is None.

        Raises:
            UsageError: a rank outside 0..world_size-1, or a negative size.
        """
        self._check_range(min(source, dest), max(source, dest))
        first, second = self.node(source), self.node(dest)
        tier = self.tiers[self._level(min(first, second), max(first, second))]
        return Transfer(tier.time("p2p", size_bytes, 2), None, tier)

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Transfer:
        """Price a collective on the smallest tier that contains its ranks.

        Costs O(len(ranks)) for ranks not seen before and O(1) for the same tuple object again. A range of ranks
        costs O(node size) at most where nodes are filled in rank order.

        Args:
            op: as for `Network.time`, except p2p.
            size_bytes: full size of the tensor, in bytes.
            ranks: the participants, in any order.
            algorithm: "ring" or "hierarchical", or None for the faster of them.

        Returns:
            The price by that algorithm, and which it is.

        Raises:
            UsageError: ranks that are out of range, repeated or none; an unknown operation or a negative size; the
                group has no such algorithm.
        """
        shape = self.shape(ranks)
        tier, split = shape.tier, shape.split
        if algorithm is not None and split.num_ranks > 1:
            return Transfer(seconds_by(algorithm, op, size_bytes, self.tiers[0], tier, split), algorithm, tier)
        seconds = tier.time(op, size_bytes, split.num_ranks)
        if op not in TWO_LEVEL_OPS or split.num_ranks == 1:
            return Transfer(seconds, None, tier)
        if split.has_two_levels and not (op == "all_to_all" and op in tier.ops):
            nested = two_level_seconds(op, size_bytes, self.tiers[0], tier, split)
            is_faster = nested < seconds
            if not isinstance(is_faster, bool):  # of many machines, which need not agree on the algorithm
                return Transfer(chosen(is_faster, nested, seconds), None, tier)
            if is_faster:
                inside = self.tiers[0].time(op, size_bytes, split.most)
                return Transfer(nested, "hierarchical", tier, self._usage(split, nested, inside))
        return Transfer(seconds, "ring" if op in RING_OPS else None, tier, self._usage(split, seconds))

    def _usage(self, split: Split, seconds: float, inside_s: float = 0.0) -> float | None:
        """Return what a collective across slices of a torus takes from compute: more within them, and all to meet."""
        inner, outer = self.tiers[0], self.tiers[-1]
        if not inner.torus or split.num_nodes == 1 or not seconds:
            return None
        inside = min(1.0, inside_s / seconds)
        meets = min(1 - inside, (outer.latency + outer.latency_per_rank * (split.num_nodes - 1)) / seconds)
        return inside * inner.processor_usage + meets * _STOPPED + (1 - inside - meets) * outer.processor_usage

    def shape(self, ranks: Sequence[int]) -> GroupShape:
        """Return the shape of a group, remembered by identity and by value."""
        recent = self._recent.get(id(ranks))
        if recent is not None and recent[0] is ranks:
            return recent[1]
        key = ranks if isinstance(ranks, tuple | range) else tuple(ranks)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._described(key)
        if key is ranks:  # never a list: it could change and keep its identity
            if len(self._recent) >= _MOST_RECENT:
                self._recent.clear()
            self._recent[id(ranks)] = ranks, shape
        return shape

    def _described(self, ranks: Sequence[int]) -> GroupShape:
        """Find the tier and the split over nodes of a group."""
        if isinstance(ranks, range) and ranks and self.placement is None:
            if ranks.step < 0:
                ranks = ranks[::-1]
            self._check_range(ranks[0], ranks[-1])
            tier = self.tiers[self._level(self.node(ranks[0]), self.node(ranks[-1]))]
            return GroupShape(tier, self._in_order.split(ranks))
        if not ranks or len(set(ranks)) != len(ranks):
            raise UsageError("a group holds at least one rank, each once; check the ranks of the collective")
        self._check_range(min(ranks), max(ranks))
        counts = Counter(map(self.node, ranks))
        tier = self.tiers[self._level(min(counts), max(counts))]
        return GroupShape(tier, Split.of(counts.values()))

    def _level(self, first_node: int, last_node: int) -> int:
        """Return the index of the smallest tier with all nodes from first to last in one block."""
        return next(k for k, span in enumerate(self._spans) if first_node // span == last_node // span)

    def _check_range(self, lowest: int, highest: int) -> None:
        """Refuse ranks that the run does not have."""
        if lowest < 0 or highest >= self.world_size:
            rank = lowest if lowest < 0 else highest
            raise UsageError(
                f"rank {rank} must be in 0..{self.world_size - 1} for world_size {self.world_size}",
                rank=rank,
                world_size=self.world_size,
            )

    def _check_filled(self) -> None:
        """Refuse a run that reaches beyond a `must_be_filled` tier without filling units of it."""
        nodes = self.placement or (0, self.node(self.world_size - 1))
        for tier in self.tiers[: self._level(min(nodes), max(nodes))]:
            if tier.must_be_filled and self.world_size % tier.size:
                fill = -(-self.world_size // tier.size) * tier.size
                raise UsageError(
                    f"a run that reaches beyond a must_be_filled tier must hold a multiple of its size "
                    f"({tier.size} ranks), but world_size is {self.world_size}; use {fill} ranks, "
                    f'network="auto" or "flat", or must_be_filled false',
                    world_size=self.world_size,
                )

    def _shift_that_changes_nothing(self) -> int:
        """Return a number of ranks: groups that far apart, and multiples of it, have one shape."""
        if self.placement is not None or not self._in_order.are_equal:
            return self.world_size  # no two groups of the run are that far apart
        return min(lcm(*self._units), self.world_size)


NETWORKS = ("auto", "flat", "hierarchical")


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
        return FlatTopology(select_tier(tiers, world_size).of_slice(world_size))
    return HierarchicalTopology(tiers, world_size, placement, may_be_unfilled=network == "auto")


def _fits_one_tier(tiers: Sequence[Network], world_size: int) -> bool:
    """Return whether all ranks fit into the smallest tier."""
    return world_size <= min((tier.size for tier in tiers), default=0)
