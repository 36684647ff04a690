"""How ranks lie in nodes: as launchers start them, or a placement by hand; regular groups are counted by arithmetic.

Launchers start ranks node after node, and as many on each node as on any other: torchrun takes one `--nproc-per-node`,
Slurm's block distribution divides tasks evenly over nodes (man page of srun, `--distribution=block`), and jobs on
NVL72 racks use 64 of the 72 devices of each, so that their groups fit. `nodes_in_rank_order` does the same.

A million ranks are never listed. A group `range(start, stop, step)` meets node boundaries in a pattern that repeats
after step / gcd(step, node size) nodes. Groups that start a multiple of all units' sizes apart lie alike.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from operator import index
from typing import Protocol, final

from minitrain.errors import UsageError
from minitrain.hardware.two_level_collectives import Split

Step = tuple[int, int]  # distance in ranks, and how many places there are
_NEIGHBOURS = 8  # the largest tensor parallelism in use; its ranks are to stay in a node
_SPARE = 8  # a node may leave one in so many of its devices free, where all nodes then hold the same number


class RankNodes(Protocol):
    """Where ranks sit, as far as prices depend on it."""

    def one_of_each_shape(self, ranks: Sequence[int], steps: Iterable[Step]) -> list[Sequence[int]]:
        """Return groups that stand for a group and all its copies: copies of equal shape have equal prices."""
        ...

    def distance(self, source: int, dest: int) -> Hashable:
        """Return what the price of a message between two ranks depends on."""
        ...


@final
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
        raise UsageError(
            f"a placement's nodes must be in 0..{num_nodes - 1}, the largest tier's, not {wrong}",
            node=wrong,
        )
    node, crowd = Counter(nodes).most_common(1)[0]
    if crowd > node_size:
        raise UsageError(
            f"a node must hold at most {node_size} ranks, the size of the smallest tier, but the "
            f"placement puts {crowd} ranks on node {node}; spread them over more nodes",
            node=node,
            num_ranks=crowd,
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
