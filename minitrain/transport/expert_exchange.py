"""What collectives do to copies of tokens for experts, and to the pieces of layers with experts.

As in `collectives`, the functions are pure, from the members' values in rank order to their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minitrain.tensors.experts import COPIES, moved
from minitrain.tensors.index_sets import singleton
from minitrain.tensors.sequence_parts import SequencePart, union_of_parts
from minitrain.transport.agreement import Mismatch, require_alike, union_of


def exchange(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to the k-th member the copies for the k-th part of the experts; or those of its own samples, back.

    Members bring copies of their own samples for all parts, or copies for a part each, of the samples of all.
    """
    first = values[0]
    if not all(value.__class__ in COPIES for value in values):
        raise mismatch("all_to_all", values, ranks, "must bring copies of tokens, or a list of one tensor a rank each")
    require_alike("all_to_all", values, ranks, mismatch, ("layer", "num_parts", "load", "sequence.cut"))
    if first.num_parts != len(values):
        raise mismatch(
            "all_to_all",
            values,
            ranks,
            f"must be as many as there are parts of the experts ({first.num_parts}), which are {len(values)}",
        )
    if all(len(value.parts) == value.num_parts for value in values):
        return _to_experts(values, ranks, mismatch)
    return _back(values, ranks, mismatch)


def _to_experts(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return the copies of all samples that are for each part."""
    samples, sequence = _covered("all_to_all", values, ranks, mismatch)
    return [moved(value, samples, singleton(part), sequence) for part, value in enumerate(values)]


def _covered(
    op: str, values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch
) -> tuple[frozenset[int], SequencePart]:
    """Return the samples and the part of their sequences that the members bring together, each token once."""
    samples, sequence = union_of(values, "samples"), union_of_parts([value.sequence for value in values])
    if len(samples) * sequence.count != sum(len(value.samples) * value.sequence.count for value in values):
        tokens = "copies of" if op == "all_to_all" else "sums over"
        raise mismatch(op, values, ranks, f"must bring {tokens} different samples, or different parts of all of them")
    return samples, sequence


def _back(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return the copies of each member's own samples, from all parts."""
    parts = union_of(values, "parts")
    if len(parts) != sum(len(value.parts) for value in values) or len(parts) != len(values):
        raise mismatch(
            "all_to_all", values, ranks, "must bring copies for all parts of the experts, or for another part each"
        )
    require_alike("all_to_all", values, ranks, mismatch, ("samples", "sequence"))
    return [moved(value, value.own, parts, value.own_sequence) for value in values]


def all_reduce(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to each member the sum of gradients of one piece."""
    return _reduced("all_reduce", values, ranks, mismatch)


def reduce_scatter(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to the k-th member the k-th shard of the sum of gradients of one piece."""
    return _reduced("reduce_scatter", values, ranks, mismatch)


def _reduced(op: str, values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return the sum of gradients of one piece over the members' samples, to each or in shards.

    Raises:
        LawError: the members bring gradients of different parts of the experts, or of different pieces.
    """
    first = values[0]
    parts = {getattr(value, "parts", None) for value in values}
    if len(parts) > 1 and all(value.__class__ is first.__class__ for value in values):
        raise mismatch(
            op,
            values,
            ranks,
            "must bring gradients of one part of the experts: those of different parts have nothing to add, and hold "
            "the samples of all ranks that exchange tokens already; reduce them over the ranks that hold the same part",
        )
    require_alike(op, values, ranks, mismatch, ("layer", "shards", "num_shards", "sequence.cut"))
    if first.sequence.share == 1:
        samples, sequence = union_of(values, "samples"), first.sequence
    else:
        samples, sequence = _covered(op, values, ranks, mismatch)
    totals = [replace(value, samples=samples, sequence=sequence) for value in values]
    if op == "all_reduce":
        return totals
    if not first.is_complete():
        raise mismatch(op, values, ranks, "must bring complete gradients")
    return [total.with_shards(singleton(place), len(values)) for place, total in enumerate(totals)]


def all_gather(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to each member the shards of all, of one piece."""
    first = values[0]
    require_alike("all_gather", values, ranks, mismatch, first._must_agree)
    shards = union_of(values, "shards")
    return [first.with_shards(shards, first.num_shards) for _ in values]
