"""How ranks lie in nodes: a placement by hand, checked, and regular groups, counted by arithmetic.

A million ranks are never listed. A group `range(start, stop, step)` meets node boundaries in a pattern that repeats
after step / gcd(step, node size) nodes. Groups that start a multiple of all units' sizes apart lie alike.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from math import gcd
from operator import index
from typing import Protocol

from minitrain.errors import UsageError

Step = tuple[int, int]  # distance in ranks, and how many places there are


class RankNodes(Protocol):
    """Where ranks sit, as far as prices depend on it."""

    def one_of_each_shape(self, ranks: Sequence[int], steps: Iterable[Step]) -> list[Sequence[int]]:
        """Return groups that stand for a group and all its copies: copies of equal shape have equal prices."""
        ...

    def distance(self, source: int, dest: int) -> Hashable:
        """Return what the price of a message between two ranks depends on."""
        ...


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
