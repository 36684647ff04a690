"""What collectives do to tensors of shards of a sequence: keys and values, their gradients, and gradients of weights.

See `minitrain.tensors.context`. As in `collectives`, the functions are pure, from the members' values in rank order to
their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitrain.tensors.attention import KeysValues, KeysValuesGrad
from minitrain.tensors.context import ContextWeightGrad
from minitrain.tensors.fields import clone
from minitrain.tensors.index_sets import ranges, singleton
from minitrain.transport.agreement import Mismatch, require_alike, union_of

_OF_A_GRADIENT = ("layer", "shards", "num_shards", "parts", "num_parts", "num_sequence_shards")
_OF_PIECES = ("pieces", "num_pieces")
_OF_KEYS = ("layer", "samples", "shards", "num_shards", "parts", "num_parts")


def all_gather(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to each member the keys and values of all."""
    first: KeysValues = values[0]
    require_alike("all_gather", values, ranks, mismatch, KeysValues._must_agree)
    return [first.with_shards(union_of(values, "shards")) for _ in values]


def all_reduce(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to each member the sum of gradients of keys and values, or of weights."""
    if isinstance(values[0], KeysValuesGrad):
        total: Any = _sum_over_queries("all_reduce", values, ranks, mismatch)
    elif any(isinstance(value, ContextWeightGrad) and value.parts != values[0].parts for value in values):
        return _sum_of_common(values, ranks, mismatch)
    else:
        total = _sum_of_weight_grads("all_reduce", values, ranks, mismatch)
    return [clone(total) for _ in values]


def _sum_of_common(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to each member the gradient of its part, with what all parts hold summed over the pieces of its shards."""
    names = (*(name for name in _OF_A_GRADIENT if name != "parts"), "samples", "sequence_shards", "num_pieces")
    require_alike("all_reduce", values, ranks, mismatch, names)
    covered = union_of(values, "pieces")
    if len(covered) != sum(len(value.pieces) for value in values):
        rule = "must bring gradients of one part, or of parts that have each seen other pieces of the same shards"
        raise mismatch("all_reduce", values, ranks, rule)
    return [value.with_pieces(covered) for value in values]


def reduce_scatter(values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to each member what is its own of a sum: the keys and values of its queries, or a shard of a weight."""
    if isinstance(values[0], KeysValuesGrad):
        return _scatter_keys(values, ranks, mismatch)
    total = _sum_of_weight_grads("reduce_scatter", values, ranks, mismatch)
    if not total.is_complete():
        raise mismatch("reduce_scatter", values, ranks, "must bring complete gradients")
    return [
        total.with_sums(total.samples, total.sequence_shards, singleton(place), len(values))
        for place in range(len(values))
    ]


def _scatter_keys(values: Sequence[KeysValuesGrad], ranks: Sequence[int], mismatch: Mismatch) -> list[Any]:
    """Return to each member the sum of the gradients of its own keys and values: those of the shards of its queries."""
    total = _sum_over_queries("reduce_scatter", values, ranks, mismatch)
    if total.queries != total.shards:
        lacking = ranges(total.shards ^ total.queries)
        raise mismatch(
            "reduce_scatter",
            values,
            ranks,
            f"must together have queries of the same shards as the keys are of, so that each gets its own; {lacking} "
            "is not in both",
        )
    return [total.with_sums(value.queries, total.queries) for value in values]


def _sum_over_queries(op: str, values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch) -> KeysValuesGrad:
    """Return the sum of gradients of the same keys and values, each over other queries."""
    require_alike(op, values, ranks, mismatch, _OF_KEYS)
    queries = union_of(values, "queries")
    if len(queries) != sum(len(value.queries) for value in values):
        raise mismatch(op, values, ranks, "must bring sums over different queries, so that each is added once")
    first: KeysValuesGrad = values[0]
    return first.with_sums(first.shards, queries)


def _sum_of_weight_grads(
    op: str, values: Sequence[ContextWeightGrad], ranks: Sequence[int], mismatch: Mismatch
) -> ContextWeightGrad:
    """Return the sum of gradients of one weight: over samples, over shards of the sequence, or over both at once.

    Members that bring the same shards add samples. Members that bring other shards add these, where all of them have
    the same samples then, so that the sum covers each sample in each shard.
    """
    require_alike(op, values, ranks, mismatch, (*_OF_A_GRADIENT, *_OF_PIECES))
    samples_of: dict[frozenset[int], frozenset[int]] = {}
    for value in values:
        samples_of[value.sequence_shards] = samples_of.get(value.sequence_shards, frozenset()) | value.samples
    covered = union_of(values, "sequence_shards")
    samples = values[0].samples.union(*samples_of.values())
    if len(covered) != sum(map(len, samples_of)) or any(found != samples for found in samples_of.values()):
        raise mismatch(
            op,
            values,
            ranks,
            "must bring gradients of the same shards of the sequence, or of the same samples in different shards, so "
            "that each sample is added once in each shard",
        )
    return values[0].with_sums(samples, covered)
