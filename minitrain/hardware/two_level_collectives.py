"""How long a collective by the two-level algorithm takes: inside nodes, and across them; formulas are in `topology`.

Each phase is priced by whatever prices operations among its ranks: one tier of a network, or several links of which the
slowest sets the pace.
"""

from __future__ import annotations

from typing import Protocol


class PricesOps(Protocol):
    """The interface of what prices a phase: one tier, or several of which the slowest counts."""

    def time(self, op: str, size_bytes: float, num_ranks: int) -> float:
        """Return how long an operation lasts, s."""
        ...


def two_level_seconds(
    op: str, size_bytes: float, inner: PricesOps, outer: PricesOps, num_ranks: int, local: int
) -> float:
    """Return the seconds of the two-level algorithm: inside the nodes and across them, at once in an all_to_all.

    Args:
        op: all_reduce, all_gather, reduce_scatter or all_to_all.
        size_bytes: full size of the tensor.
        inner: what connects the ranks of a node.
        outer: what connects nodes, at the bandwidth of one rank.
        num_ranks: how many take part.
        local: how many of them are in each node.
    """
    num_nodes, share_bytes = num_ranks // local, size_bytes / local
    if op == "all_to_all":
        each = size_bytes / num_ranks
        return max(outer.time("p2p", each * (num_ranks - local), 2), inner.time("p2p", each * (local - 1), 2))
    across = outer.time(op, share_bytes, num_nodes)
    if op == "all_gather":
        return across + inner.time("all_gather", size_bytes, local)
    scattered = inner.time("reduce_scatter", size_bytes, local) + across
    if op == "reduce_scatter":
        return scattered
    return scattered + inner.time("all_gather", size_bytes, local)
