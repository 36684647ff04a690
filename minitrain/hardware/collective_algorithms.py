"""Which algorithm carries a collective: the words for it, what is refused, and how NCCL chooses between nodes.

A strategy may ask: `all_reduce(..., algorithm="tree")`. `"ring"` is one ring through all ranks. `"tree"` is NCCL's: a
chain in each node, and two binary trees of the nodes, for all_reduce alone. `"hierarchical"` is a collective inside the
nodes and one across them, as `topology` says. Where nobody asks, a network decides.

Between nodes, NCCL takes the algorithm and the protocol (LL, LL128, Simple) of which its own model expects the least
time. For n ranks in N nodes:

    base + (steps - steps_across) inside + steps_across across + wire / share            (ring)
    base + 2 ((n/N - 1) inside + floor(log2 N) across) + wire / (share correction(S))    (tree)

A ring has 2 (n-1) steps for an all_reduce, of which 2 N are across, else n-1 and N-1. wire is the time of the bytes at
full bandwidth, of which a protocol reaches a share; so few bytes go by a protocol of short steps and many by one of
full bandwidth. `overhead_s` is all of this but the wire itself. A chain counts eight ranks at most: the larger nodes
that there are sum in their switch (NVLS). Left out: what else switches that reduce in flight save (NVLS, SHARP), limits
of bandwidth a channel and of LL, and the plateau of rings.

Source: `ncclTopoTuneModel` and `ncclTopoGetAlgoTime` of src/graph/tuning.cc, github.com/NVIDIA/nccl, commit b647562.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from minitrain.errors import UsageError
from minitrain.operations.collectives import COLLECTIVES

MEASURED_RANKS, MEASURED_NODES = 16, 2
"""The layout of the sweeps that curves between nodes were read from: two full nodes of eight."""


def require_algorithm(op: str, algorithm: str | None) -> None:
    """Require an algorithm that the operation has, or None.

    Raises:
        UsageError: it has no such algorithm.
    """
    algorithms = COLLECTIVES[op].algorithms if op in COLLECTIVES else ()
    if algorithm is not None and algorithm not in algorithms:
        known = ", ".join(map(repr, algorithms))
        raise UsageError(
            f"the algorithm of {op} must be one of {known}, or None for the network's choice; got {algorithm!r}",
            op=op,
            algorithm=algorithm,
        )


def no_such_algorithm(op: str, algorithm: str, why: str) -> UsageError:
    """Return the error for an algorithm that a network cannot price for a group.

    Args:
        op: the collective.
        algorithm: what was asked for.
        why: the rule that the network or the group breaks, and what to use.
    """
    return UsageError(f"{op} was asked for by algorithm={algorithm!r}, but {why}", op=op, algorithm=algorithm)


def require_two_levels(op: str, *, has_two_levels: bool) -> None:
    """Require a group that lies in several nodes with several ranks in each, as the hierarchical algorithm needs."""
    if not has_two_levels:
        raise no_such_algorithm(
            op, "hierarchical", "its group has not two ranks or more in each of several nodes; use algorithm=None"
        )


class _Protocol(NamedTuple):
    """One of NCCL's protocols: microseconds of a start and of a step, and the share of the bandwidth it reaches."""

    base_us: float
    inside_us: float
    across_us: float
    share: float


_RING = (_Protocol(6.6, 1.0, 2.7, 1 / 4), _Protocol(14.0, 1.9, 4.0, 0.92), _Protocol(8.4, 3.4, 14.0, 1.0))
_ALONE = 0.7  # the share of a ring of LL128 where each node has one rank
_TREE = (
    _Protocol(6.8, 0.6, 5.0, 0.92 / 3.8),
    _Protocol(14.0, 1.25, 8.5, 0.92 * 120 / 128),
    _Protocol(0.0, 28.0, 28.0, 0.92),
)
_LONGEST_CHAIN = 8
# What trees of each protocol reach of their share, for sizes of 64 B times powers of two, up to 256 MiB.
_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)


def overhead_s(algorithm: str, op: str, size_bytes: float, num_ranks: int, num_nodes: int, wire_s: float) -> float:
    """Return what a collective between nodes takes beyond its bytes at full bandwidth, by NCCL's model, s.

    Args:
        algorithm: "ring" or "tree".
        op: all_reduce, all_gather or reduce_scatter.
        size_bytes: full size of the tensor.
        num_ranks: how many take part.
        num_nodes: in how many nodes, at least 2.
        wire_s: the time of the bytes at full bandwidth, s.

    >>> round(overhead_s("ring", "all_gather", 1e9, 16, 2, 3e-3) * 1e6)  # 8.4 us, 14 steps inside, 1 across
    70
    """
    if algorithm == "tree":
        chain = min(num_ranks // num_nodes, _LONGEST_CHAIN)
        inside, across = 2 * (chain - 1), 2 * (num_nodes.bit_length() - 1)
    elif op == "all_reduce":
        inside, across = max(0, 2 * (num_ranks - 1 - num_nodes)), 2 * num_nodes
    else:
        inside, across = num_ranks - num_nodes, num_nodes - 1
    return min(
        (each.base_us + inside * each.inside_us + across * each.across_us) * 1e-6 + wire_s * (1 / share - 1)
        for each, share in _protocols(algorithm, size_bytes, is_alone=num_ranks < 2 * num_nodes)
    )


def _protocols(algorithm: str, size_bytes: float, *, is_alone: bool) -> Iterator[tuple[_Protocol, float]]:
    """Yield LL, LL128 and Simple with the share of the bandwidth that each reaches at a size."""
    doublings = max(0, (int(size_bytes) >> 6).bit_length() - 1)
    for place, each in enumerate(_TREE if algorithm == "tree" else _RING):
        if algorithm == "tree":
            yield each, each.share * (_CORRECTION[place][doublings] if doublings < len(_CORRECTION[place]) else 1)
        else:
            yield each, _ALONE if is_alone and place == 1 else each.share
