"""How long a collective by the two-level algorithm takes: inside nodes, and across them; formulas are in `topology`.

Each phase is priced by whatever prices operations among its ranks: one tier of a network, or several links of which the
slowest sets the pace.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, final


@final
@dataclass(frozen=True, slots=True)
class Split:
    """How many ranks take part in a collective, and how they lie in nodes.

    Args:
        num_ranks: all of them.
        num_nodes: in how many nodes they sit.
        least: those in the node that has fewest.
        most: those in the node that has most.
    """

    num_ranks: int
    num_nodes: int
    least: int
    most: int

    @property
    def has_two_levels(self) -> bool:
        """Whether there are several nodes with two ranks or more in each."""
        return self.num_nodes > 1 and self.least > 1

    @staticmethod
    def of(counts: Collection[int]) -> Split:
        """Return that of so many ranks in each node."""
        return Split(sum(counts), len(counts), min(counts), max(counts))


class PricesOps(Protocol):
    """The interface of what prices a phase: one tier, or several of which the slowest counts."""

    def time(self, op: str, size_bytes: float, num_ranks: float) -> float:
        """Return how long an operation lasts, s."""
        ...


def two_level_seconds(op: str, size_bytes: float, inner: PricesOps, outer: PricesOps, split: Split) -> float:
    """Return the seconds of the two-level algorithm: inside the nodes and across them, at once in an all_to_all.

    Args:
        op: all_reduce, all_gather, reduce_scatter or all_to_all.
        size_bytes: full size of the tensor.
        inner: what connects the ranks of a node.
        outer: what connects nodes, at the bandwidth of one rank.
        split: how the ranks lie in nodes.
    """
    if op == "all_to_all":
        each = size_bytes / split.num_ranks
        across = outer.time("p2p", each * (split.num_ranks - split.least), 2)
        return max(across, inner.time("p2p", each * (split.most - 1), 2))
    # What passes the ports of the emptiest node is what n/least nodes like it would exchange; sums pass once a node.
    num_nodes = split.num_nodes if op == "all_reduce" else split.num_ranks / split.least
    across = outer.time(op, size_bytes / split.least, num_nodes)
    if op == "all_gather":
        return across + inner.time("all_gather", size_bytes, split.most)
    scattered = inner.time("reduce_scatter", size_bytes, split.most) + across
    if op == "reduce_scatter":
        return scattered
    return scattered + inner.time("all_gather", size_bytes, split.most)
