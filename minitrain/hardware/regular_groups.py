"""Groups of ranks at equal distances, and copies of them at equal distances: how they lie in nodes, by arithmetic.

A million ranks are never listed. A group `range(start, stop, step)` meets node boundaries in a pattern that repeats
after step / gcd(step, node size) nodes. Groups that start a multiple of all units' sizes apart lie alike.
"""

from collections import Counter
from collections.abc import Iterable
from math import gcd

Step = tuple[int, int]  # distance in ranks, and how many places there are


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
