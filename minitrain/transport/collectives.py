"""What collectives do to values: pure functions from the members' inputs, in rank order, to their results.

Every member gets a result of its own; a reduction combines in rank order, so that the outcome never depends on who
arrived first. A bucket (a list of tensors) is worked on tensor by tensor.

A new collective begins with a function here. Its name then goes into `COLLECTIVES` (`minitrain.events.event`), its
method into `minitrain.rank.communication`, and its price into `minitrain.hardware.network`. Where members get other
samples or sizes than one another, `Operation.settle_all` (`minitrain.rank.operations`) must know. Strict, numeric and
folded runs follow tensors through collectives by rules of their own, and each refuses one that it does not know.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from minitrain.errors import CollectiveMismatchError, LawError, TensorTypeError
from minitrain.tensors import OptState, Sharded, Tensor, Weight, WeightGrad
from minitrain.tensors.attention import KeysValues, KeysValuesGrad
from minitrain.tensors.context import PIECES_OF_CONTEXT, ContextWeightGrad, PartialContextGradShard, PartialContextShard
from minitrain.tensors.experts import COPIES, PIECES
from minitrain.tensors.index_sets import singleton
from minitrain.tensors.parts import PARTIAL, SHARDS_OF_SEQUENCE, WEIGHT_PARTS, WeightGradPart
from minitrain.transport import context_sums, expert_exchange, partial_sums

Results = list[Any]

_REDUCED_IN: Mapping[type[Any], Any] = MappingProxyType(
    {
        **dict.fromkeys((*PARTIAL, PartialContextShard, PartialContextGradShard, WeightGradPart), partial_sums),
        **dict.fromkeys((ContextWeightGrad, KeysValuesGrad), context_sums),
        **dict.fromkeys(PIECES, expert_exchange),
    }
)
_GATHERED_IN: Mapping[type[Any], Any] = MappingProxyType(
    {
        **dict.fromkeys((*SHARDS_OF_SEQUENCE, *PIECES_OF_CONTEXT, *WEIGHT_PARTS, ContextWeightGrad), partial_sums),
        KeysValues: context_sums,
        **dict.fromkeys(PIECES, expert_exchange),
    }
)
"""The files that know tensors of parts and of shards of a sequence."""


def describe(value: Any) -> str:
    """Return what a member brought in words: the fields of a tensor that must agree, or just its type."""
    if isinstance(value, list):
        return "[" + ", ".join(describe(item) for item in value) + "]"
    if isinstance(value, str):  # a description already
        return value
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{type(value).__name__}({', '.join(_facts(value))})"


def _facts(tensor: Any) -> Iterator[str]:
    """Yield the fields of a tensor that must agree, in words."""
    yield f"layer {tensor.layer}"
    for name, total in _SETS:
        if hasattr(tensor, name) and (name not in _COVERED or getattr(tensor, _COVERED[name]) > 1):
            of = f" of {getattr(tensor, total)}" if total is not None else ""
            yield f"{name.replace('_', ' ')} {_brief(getattr(tensor, name))}{of}"


_SETS = (
    ("step", None),
    ("samples", None),
    ("shards", "num_shards"),
    ("parts", "num_parts"),
    ("sequence_shards", "num_sequence_shards"),
    ("context", "num_context"),
    ("pieces", "num_pieces"),
    ("keys", "num_shards"),
    ("queries", "num_shards"),
)


_COVERED = {"sequence_shards": "num_sequence_shards", "pieces": "num_pieces"}
"""The sets that are told where they are no wholes, with the fields of their numbers."""


def _brief(value: Any) -> str:
    """Return a number, or a set of numbers as ranges."""
    if not isinstance(value, frozenset):
        return str(value)
    numbers = sorted(value)
    if len(numbers) > 4 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{{{numbers[0]}..{numbers[-1]}}}"
    more = ", ..." if len(numbers) > 8 else ""
    return "{" + ", ".join(str(number) for number in numbers[:8]) + more + "}"


def _agree_on(name: str, op: str, values: Sequence[Any], ranks: Sequence[int]) -> None:
    """Raise a CollectiveMismatchError unless all are gradients of one layer that agree in samples, or in shards.

    Args:
        name: the field that they must agree in: "samples" or "shards".
        op: the operation.
        values: what the members brought.
        ranks: the members.
    """
    first, numbers_of = values[0], attrgetter(name)
    layer, num_shards, numbers = first.layer, first.num_shards, numbers_of(first)
    for value in values:
        if (
            value.__class__ is not WeightGrad
            or value.layer != layer
            or value.num_shards != num_shards
            or (numbers_of(value) is not numbers and numbers_of(value) != numbers)
        ):
            raise _mismatch(op, values, ranks, f"layer, {name}, num_shards")


def _agree_on_step(op: str, values: Sequence[Any], ranks: Sequence[int]) -> None:
    """Raise a CollectiveMismatchError unless all are weights, or optimizer states, of one layer and step."""
    first = values[0]
    kind, layer, step, num_shards = first.__class__, first.layer, first.step, first.num_shards
    for value in values:
        if value.__class__ is not kind or value.layer != layer or value.step != step or value.num_shards != num_shards:
            raise _mismatch(op, values, ranks, "layer, step, num_shards")


def _mismatch(op: str, values: Sequence[Any], ranks: Sequence[int], names: str) -> CollectiveMismatchError:
    """Return the error of members that do not agree in some fields."""
    return mismatch(op, values, ranks, f"must bring the same kind of tensor with the same {names}")


def mismatch(op: str, values: Sequence[Any], ranks: Sequence[int], rule: str) -> CollectiveMismatchError:
    """Return the error that lists what each rank brought, ranks with the same together."""
    brought: dict[str, list[int]] = {}
    for rank, value in zip(ranks, values, strict=True):
        brought.setdefault(describe(value), []).append(rank)
    listing = "; ".join(f"{_ranks(who)}: {what}" for what, who in brought.items())
    return CollectiveMismatchError(
        f"all ranks of {op} {rule}; {listing}", op=op, ranks=tuple(ranks), brought=brought, rule=rule
    )


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {_brief(frozenset(ranks))[1:-1]}"


def all_reduce(values: Sequence[Any], ranks: Sequence[int]) -> Results:
    """Return the sum of all values, once for each member."""
    first = values[0]
    if type(first) in _REDUCED_IN:
        found: Results = _REDUCED_IN[type(first)].all_reduce(values, ranks, mismatch)
        return found
    if type(first) is not WeightGrad:
        total = _sum("all_reduce", values)
        return [copy.copy(total) for _ in values]
    _agree_on("shards", "all_reduce", values, ranks)
    layer, layers, total_samples = first.layer, first.layers, first.total_samples
    samples = _union([value.samples for value in values])
    return [WeightGrad(layer, layers, samples, total_samples, first.shards, first.num_shards) for _ in values]


def reduce_scatter(values: Sequence[Any], ranks: Sequence[int]) -> Results:
    """Return to the k-th member the k-th shard of the sum of all values."""
    num_shards = len(values)
    first = values[0]
    if type(first) in _REDUCED_IN:
        found: Results = _REDUCED_IN[type(first)].reduce_scatter(values, ranks, mismatch)
        return found
    if type(first) is not WeightGrad:
        total = _sum("reduce_scatter", values)
        return [total.shard(index, num_shards) for index in range(num_shards)]
    _agree_on("shards", "reduce_scatter", values, ranks)
    if not first.is_complete():
        raise mismatch("reduce_scatter", values, ranks, "must bring complete gradients")
    layer, layers, total_samples = first.layer, first.layers, first.total_samples
    samples = _union([value.samples for value in values])
    return [
        WeightGrad(layer, layers, samples, total_samples, singleton(index), num_shards) for index in range(num_shards)
    ]


def _sum(op: str, values: Sequence[Any]) -> Any:
    """Return the sum in rank order."""
    try:
        return reduce(operator.add, values)
    except TypeError as error:
        raise TensorTypeError(
            f"{op} needs values that add (a WeightGrad), got {type(values[0]).__name__}", value=values[0]
        ) from error


def _union(sets: Sequence[frozenset[int]]) -> frozenset[int]:
    """Return the union of all sets."""
    return sets[0].union(*sets[1:])


def all_gather(values: Sequence[Any], ranks: Sequence[int]) -> Results:
    """Return what holds the shards of all values, once for each member."""
    first = values[0]
    kind = first.__class__
    if kind is WeightGrad:
        _agree_on("samples", "all_gather", values, ranks)
        shards = _union([value.shards for value in values])
        return [
            WeightGrad(first.layer, first.layers, first.samples, first.total_samples, shards, first.num_shards)
            for _ in values
        ]
    if kind is Weight or kind is OptState:
        _agree_on_step("all_gather", values, ranks)
        layer, layers, step, num_shards = first.layer, first.layers, first.step, first.num_shards
        shards = _union([value.shards for value in values])
        return [kind(layer, layers, step, shards, num_shards) for _ in values]
    if kind in _GATHERED_IN:
        found: Results = _GATHERED_IN[kind].all_gather(values, ranks, mismatch)
        return found
    whole = _combine(values)
    return [copy.copy(whole) for _ in values]


def _combine(values: Sequence[Any]) -> Any:
    """Return the combination in rank order."""
    if not hasattr(values[0], "combine"):
        raise TensorTypeError(
            f"all_gather needs values that combine (a Weight, WeightGrad or OptState), got {type(values[0]).__name__}",
            value=values[0],
        )
    return reduce(lambda left, right: left.combine(right), values)


def require_whole(results: Results, values: Sequence[Any], ranks: Sequence[int]) -> None:
    """Raise a LawError if what all ranks of the world gathered is not complete."""
    first = results[0]
    if isinstance(first, Sharded) and not first.is_complete():
        raise mismatch("all_gather", values, ranks, "must together bring every shard")


def broadcast(values: Sequence[Any], ranks: Sequence[int], root: int) -> Results:
    """Return the root's value, once for each member."""
    value = values[ranks.index(root)]
    return [_duplicate(value) for _ in values]


def _duplicate(value: Any) -> Any:
    """Return an equal value, an object of its own; so are the tensors of a bucket."""
    return [_duplicate(item) for item in value] if isinstance(value, list) else copy.copy(value)


def all_to_all(values: Sequence[Any], ranks: Sequence[int]) -> Results:
    """Return to the k-th member the k-th item of every member's list; or copies of tokens to experts, and back."""
    if any(value.__class__ in COPIES for value in values):
        return expert_exchange.exchange(values, ranks, mismatch)
    for rank, value in zip(ranks, values, strict=True):
        if len(value) != len(values):
            raise LawError(
                f"all_to_all needs one tensor for each of the {len(values)} ranks, rank {rank} brought {len(value)}",
                rank=rank,
            )
    return [[_duplicate(value[index]) for value in values] for index in range(len(values))]


_FUNCTIONS: Mapping[str, Callable[[Sequence[Any], Sequence[int]], Results]] = MappingProxyType(
    {
        "all_reduce": all_reduce,
        "reduce_scatter": reduce_scatter,
        "all_gather": all_gather,
        "all_to_all": all_to_all,
    }
)


def perform(op: str, values: Sequence[Any], ranks: Sequence[int], detail: Any, *, whole: bool) -> Results:
    """Return the members' results of a collective.

    Args:
        op: which collective.
        values: what the members brought, in rank order.
        ranks: the members.
        detail: the root of a broadcast.
        whole: whether a gather must give complete tensors (all ranks of the world take part).

    Raises:
        CollectiveMismatchError: the values do not belong together.
        TensorTypeError: the operation is not defined for such values.
    """
    if op == "barrier":
        return [None] * len(values)
    if op == "broadcast":
        return broadcast(values, ranks, detail)
    if op != "all_to_all" and any(map(_is_bucket, values)):
        return _bucket(op, values, ranks, whole=whole)
    results = _FUNCTIONS[op](values, ranks)
    if whole and op == "all_gather":
        require_whole(results, values, ranks)
    return results


def _is_bucket(value: Any) -> bool:
    """Return whether a value is a list of tensors; any other list is a value that may add like a number."""
    return isinstance(value, list) and all(isinstance(item, Tensor) or _is_bucket(item) for item in value)


def _bucket(op: str, values: Sequence[Any], ranks: Sequence[int], *, whole: bool) -> Results:
    """Perform a collective on lists of tensors, place by place."""
    lengths = {len(value) if isinstance(value, list) else None for value in values}
    if len(lengths) != 1:
        raise mismatch(op, values, ranks, "must bring buckets of the same length")
    places = [perform(op, place, ranks, None, whole=whole) for place in zip(*values, strict=True)]
    return [list(results) for results in zip(*places, strict=True)] if places else [[] for _ in values]
