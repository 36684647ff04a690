"""Which messages a collective sends: step after step, from whom to whom, and how much.

Sizes are the specification's: what each participant brings (`size_bytes`), so that an all_gather moves n - 1 times as
much. Rings: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
19(1), 2005. Trees are binomial: ranks that have something pass it on to as many others, which doubles them each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from minitrain.errors import UsageError
from minitrain.workloads.field_faults import closest

Algorithm = Literal["ring", "tree"]
Step = list[tuple[int, int, float]]
"""Messages that go at the same time: the sender's place, the receiver's, and bytes."""

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")

_SPELLINGS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}


def op_of(name: str) -> str:
    """Return an operation by one of its spellings ("AllReduce", "all_reduce").

    Raises:
        UsageError: there is none of that name.
    """
    plain = name.lower().replace("-", "_")
    found = _SPELLINGS.get(plain.replace("_", ""), plain)
    found = "all_to_all" if plain.replace("_", "") == "alltoall" else found
    if found not in OPS:
        raise UsageError(f"there is no collective {name!r} {closest(name, OPS)}; use one of {', '.join(OPS)}", op=name)
    return found


def steps_of(op: str, num_ranks: int, size_bytes: float, algorithm: Algorithm = "ring") -> Iterator[Step]:
    """Yield the steps of a collective.

    Args:
        op: one of `OPS`.
        num_ranks: how many take part.
        size_bytes: what each of them brings; of a broadcast, what the first has.
        algorithm: "ring" or "tree"; trees are for all_reduce and broadcast.

    Raises:
        UsageError: the algorithm is not one for the operation.
    """
    if num_ranks == 1:
        return
    if algorithm == "tree":
        yield from _tree(op, num_ranks, size_bytes)
    elif op == "broadcast":
        yield from ([(source, dest, size_bytes)] for source, dest in pairwise(range(num_ranks)))
    elif op == "all_to_all":
        for shift in range(1, num_ranks):
            yield [(rank, (rank + shift) % num_ranks, size_bytes / num_ranks) for rank in range(num_ranks)]
    else:
        chunk = size_bytes if op == "all_gather" else size_bytes / num_ranks
        for _ in range((num_ranks - 1) * (2 if op == "all_reduce" else 1)):
            yield [(rank, (rank + 1) % num_ranks, chunk) for rank in range(num_ranks)]


def _tree(op: str, num_ranks: int, size_bytes: float) -> Iterator[Step]:
    if op not in ("all_reduce", "broadcast"):
        raise UsageError(f'algorithm="tree" is for all_reduce and broadcast, not {op}; use "ring"', op=op)
    spread: list[Step] = []
    reached = 1
    while reached < num_ranks:
        pairs = [(rank, rank + reached, size_bytes) for rank in range(min(reached, num_ranks - reached))]
        spread.append(pairs)
        reached *= 2
    if op == "all_reduce":
        yield from ([(dest, source, size) for source, dest, size in step] for step in reversed(spread))
    yield from spread


def closed_form(
    op: str, num_ranks: int, size_bytes: float, bytes_per_s: float, latency_s: float, algorithm: Algorithm = "ring"
) -> float:
    """Return how long a collective takes where all pairs of ranks have equal links, which they do not share, s.

    A ring's all_reduce: 2 (n - 1) x (size / n / bandwidth + latency).

    Args:
        op: one of `OPS`.
        num_ranks: how many take part.
        size_bytes: what each of them brings.
        bytes_per_s: bandwidth between two of them.
        latency_s: of a message.
        algorithm: as for `steps_of`.
    """
    if num_ranks == 1:
        return 0.0
    num_steps, chunk = shape_of(op, num_ranks, size_bytes, algorithm)
    return num_steps * message_s(chunk, bytes_per_s, latency_s)


def shape_of(op: str, num_ranks: int, size_bytes: float, algorithm: Algorithm = "ring") -> tuple[int, float]:
    """Return how many steps a collective has, and the bytes of a message; arguments as for `closed_form`."""
    others = num_ranks - 1
    if algorithm == "tree":
        return sum(1 for _ in steps_of(op, num_ranks, size_bytes, algorithm)), size_bytes
    whole = op in ("all_gather", "broadcast")
    return others * (2 if op == "all_reduce" else 1), size_bytes if whole else size_bytes / num_ranks


def message_s(size_bytes: float, bytes_per_s: float, latency_s: float) -> float:
    """Return how long a message takes that shares no link, s; rounded once."""
    return (size_bytes + latency_s * bytes_per_s) / bytes_per_s
