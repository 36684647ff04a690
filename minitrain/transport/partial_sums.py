"""What collectives do to parts of weights, to partial sums, and to shards of a sequence; see `minitrain.tensors.parts`.

As in `collectives`, the functions are pure, from the members' values in rank order to their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitrain.tensors.fields import clone
from minitrain.tensors.index_sets import ranges, singleton
from minitrain.tensors.kinds import Activation, passage_of
from minitrain.tensors.parts import (
    PARTIAL,
    SHARDS_OF_SEQUENCE,
    WeightGradPart,
    shard_of_sequence,
    with_parts,
    with_sequence_shards,
)
from minitrain.transport.agreement import Mismatch, require_alike, union_of


def all_reduce(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to each member the sum of partial sums, or the sum of gradients of its part.

    Members with the same part add samples. Members with a part each add only what all parts hold (norms), where each
    member has seen some shards of the sequence.
    """
    first = values[0]
    if isinstance(first, PARTIAL):
        total = _sum("all_reduce", values, ranks, mismatch)
        return [remember(clone(total), value) for value in values]
    if len({value.parts for value in values if isinstance(value, WeightGradPart)}) == 1:
        samples = _samples("all_reduce", values, ranks, mismatch)
        return [value.with_sums(samples, value.sequence_shards) for value in values]
    return _sum_of_common(values, ranks, mismatch)


def reduce_scatter(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to the k-th member the k-th shard: of the sequence for partial sums, and of a part's gradient."""
    num_shards = len(values)
    if isinstance(values[0], PARTIAL):
        total = _sum("reduce_scatter", values, ranks, mismatch)
        if isinstance(total, PARTIAL):
            missing = ranges(set(range(total.num_parts)) - total.parts)
            raise mismatch("reduce_scatter", values, ranks, f"must together bring every part; {missing} is missing")
        return [remember(shard_of_sequence(total, place, num_shards), value) for place, value in enumerate(values)]
    samples = _samples("reduce_scatter", values, ranks, mismatch)
    if not values[0].is_complete():
        raise mismatch("reduce_scatter", values, ranks, "must bring complete gradients")
    return [
        value.with_sums(samples, value.sequence_shards, singleton(place), num_shards)
        for place, value in enumerate(values)
    ]


def all_gather(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to each member what holds the shards of all: of the sequence, or of one part of a layer."""
    first = values[0]
    if isinstance(first, SHARDS_OF_SEQUENCE):
        of_context = ("context", "num_context") if hasattr(first, "context") else ()
        require_alike("all_gather", values, ranks, mismatch, ("layer", "samples", "num_shards", *of_context))
        whole = with_sequence_shards(first, union_of(values, "shards"))
        return [gathered(clone(whole), value) for value in values]
    require_alike("all_gather", values, ranks, mismatch, first._must_agree)
    return [first.with_shards(union_of(values, "shards"), first.num_shards) for _ in values]


def _sum(op: str, values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> Any:
    """Return the sum of partial sums of different parts."""
    require_alike(op, values, ranks, mismatch, values[0]._must_agree)
    parts = union_of(values, "parts")
    if len(parts) != sum(len(value.parts) for value in values):
        raise mismatch(op, values, ranks, "must bring different parts of one sum, so that each is added once")
    return with_parts(values[0], parts)


def _samples(op: str, values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> frozenset[int]:
    """Return the samples of gradients of one part that add."""
    names = ("layer", "shards", "num_shards", "parts", "num_parts", "sequence_shards", "num_sequence_shards")
    require_alike(op, values, ranks, mismatch, names)
    return union_of(values, "samples")


def _sum_of_common(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to each member the gradient of its part, with what all parts hold summed over the sequence."""
    names = ("layer", "samples", "shards", "num_shards", "num_parts", "num_sequence_shards")
    require_alike("all_reduce", values, ranks, mismatch, names)
    covered = union_of(values, "sequence_shards")
    if len(covered) != sum(len(value.sequence_shards) for value in values):
        raise mismatch(
            "all_reduce",
            values,
            ranks,
            "must bring gradients of one part, or of parts that have each seen other shards of the sequence; parts "
            "that have seen all of it have nothing to add",
        )
    return [value.with_sums(value.samples, covered) for value in values]


def remember(result: Any, value: Any) -> Any:
    """Pass on how the layer before went forward, from a value to the result: see `minitrain.rank.kept_for_backward`."""
    passage = getattr(value, "_passage", None)
    if passage is not None and passage.made_in is not None:  # gradients have none
        passage_of(result).made_in = passage.made_in
    return result


def gathered(result: Any, shard: Any) -> Any:
    """Give a gathered activation the member's own shard, which stands for what its layer keeps."""
    if isinstance(result, Activation):
        passage_of(result).gathered_from = shard
    return remember(result, shard)
