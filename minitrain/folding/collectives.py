"""The results of collectives whose groups lie within a class of ranks: by symmetry, from one value for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from minitrain.errors import CollectiveMismatchError
from minitrain.folding.attempt import FoldAttempt
from minitrain.folding.mesh import FoldedGroup
from minitrain.folding.per_rank_sets import PerRankSet
from minitrain.tensors import OptState, Sharded, Weight, WeightGrad
from minitrain.tensors.attention import KeysValues, KeysValuesGrad
from minitrain.tensors.context import ContextWeightGrad
from minitrain.tensors.experts import COPIES, PIECES, ExpertGrad, moved
from minitrain.tensors.index_sets import singleton
from minitrain.tensors.parts import (
    PARTIAL,
    SHARDS_OF_SEQUENCE,
    WeightGradPart,
    shard_of_sequence,
    with_parts,
    with_sequence_shards,
)
from minitrain.tensors.sequence_parts import SequencePart
from minitrain.transport.collectives import describe
from minitrain.transport.partial_sums import gathered, remember

_OF_CLASSES = (KeysValues, KeysValuesGrad)


def perform(attempt: FoldAttempt, op: str, value: Any, group: FoldedGroup) -> Any:
    """Return each rank's result of a collective.

    Args:
        attempt: how ranks are folded.
        op: which collective.
        value: what each rank brings.
        group: the group of each rank.

    Raises:
        CollectiveMismatchError: the values of a group's ranks do not belong together.
        DivergesError: the operation cannot be completed by symmetry.
    """
    require_symmetric(attempt, op, value, group)
    if op == "barrier":
        return value  # None
    if isinstance(value, list):
        return [perform(attempt, op, item, group) for item in value]
    if op == "all_to_all":
        return _exchange(value, group)
    return _all_gather(value, group) if op == "all_gather" else _reduce(op, value, group)


def perform_of_classes(attempt: FoldAttempt, op: str, value: Any, result: Any, group: FoldedGroup) -> Any:
    """Return each rank's result of a collective whose groups have members of several classes.

    Args:
        attempt: how ranks are folded.
        op: which collective.
        value: what each rank of the class brings.
        result: what the lowest ranks of all those classes get among themselves; unions over classes and within a class
            may be made in any order.
        group: the group of each rank.

    Raises:
        CollectiveMismatchError: the values of a group's ranks do not belong together.
    """
    if isinstance(result, list):
        return [
            perform_of_classes(attempt, op, item, of_item, group) for item, of_item in zip(value, result, strict=True)
        ]
    if isinstance(value, _OF_CLASSES) or (type(result) is not type(value) and isinstance(value, PARTIAL)):
        return result  # all came together among classes
    if op == "all_to_all":  # of kept axes alone
        return result
    if op == "reduce_scatter":  # its shards are those of the group's ranks, not of its classes
        result = _with_samples(result, result.samples, value.shards, value.num_shards)
    return perform(attempt, op, result, group)


def require_symmetric(attempt: FoldAttempt, op: str, value: Any, group: FoldedGroup) -> None:
    """Require a collective that all ranks of a group take part in alike, and tensors that `perform` knows.

    Raises:
        DivergesError: it is none, or they are not.
    """
    if not _is_symmetric(op, value):
        attempt.diverge(f"{op} of {describe(value)}, which cannot be folded,", group.axes)


def united_within(op: str, value: Any, group: FoldedGroup) -> Any:
    """Return what a class brings to a sum with other classes: with the samples of all its ranks in the group.

    Classes whose ranks have different numbers of samples move differently between ranks, and so their sets are united
    within each class first.
    """
    if isinstance(value, list):
        return [united_within(op, item, group) for item in value]
    if op not in ("all_reduce", "reduce_scatter") or value.__class__ is not WeightGrad:
        return value
    samples = _over(value.samples, group)
    return value if samples is value.samples else _with_samples(value, samples, value.shards, value.num_shards)


def _is_symmetric(op: str, value: Any) -> bool:
    """Return whether a collective of a tensor, or of a bucket of them, is known."""
    if isinstance(value, list):
        return op in _KINDS and op != "all_to_all" and all(_is_symmetric(op, item) for item in value)
    return op == "barrier" or _is_known(op, value.__class__)


@lru_cache(maxsize=256)
def _is_known(op: str, kind: type) -> bool:
    """Return whether a collective of a kind of tensor is known; each layer asks again."""
    return issubclass(kind, _KINDS.get(op, ()))


_KINDS: Mapping[str, tuple[type, ...]] = {
    "all_gather": (Sharded, *SHARDS_OF_SEQUENCE, KeysValues),
    "all_reduce": (WeightGrad, *PARTIAL, KeysValuesGrad),
    "reduce_scatter": (WeightGrad, *PARTIAL, KeysValuesGrad),
    "all_to_all": tuple(COPIES),
}


def _reduce(op: str, value: Any, group: FoldedGroup) -> Any:
    """Return the sum over a group, or each rank's shard of it."""
    if isinstance(value, PARTIAL):
        return _sum_of_parts(op, value, group)
    _require_same(op, "shards", value, value.shards, group)
    if value.__class__ is not WeightGrad and isinstance(value, WeightGradPart) and _differs(value.parts, group):
        return _sum_of_common(op, value, group)
    if value.__class__ is ExpertGrad:
        _require_same(op, "parts", value, value.parts, group)
    samples = _over(value.samples, group)
    if value.__class__ in PIECES:
        value = replace(value, sequence=_sequence_over(value.sequence, group))
    if op == "all_reduce":
        return _with_samples(value, samples, value.shards, value.num_shards)
    if not value.is_complete():
        raise CollectiveMismatchError(f"all ranks of {op} must bring complete gradients, got {describe(value)}", op=op)
    return _with_samples(value, samples, singleton(group.index), group.size)


def _with_samples(value: WeightGrad, samples: Any, shards: Any, num_shards: int) -> WeightGrad:
    """Return a gradient of other samples and shards."""
    if value.__class__ is not WeightGrad and isinstance(value, WeightGradPart):
        return value.with_sums(samples, value.sequence_shards, shards, num_shards)
    if value.__class__ in PIECES:
        return replace(value, samples=samples, shards=shards, num_shards=num_shards)
    return WeightGrad(value.layer, value.layers, samples, value.total_samples, shards, num_shards)


def _sum_of_parts(op: str, value: Any, group: FoldedGroup) -> Any:
    """Return the sum of partial sums over a group, or each rank's shard of it along the sequence."""
    _require_same(op, "samples", value, value.samples, group)
    parts = _over(value.parts, group)
    if len(parts) != len(value.parts) * group.size:
        raise CollectiveMismatchError(
            f"all ranks of {op} must bring different parts of one sum, so that each is added once, got "
            f"{describe(value)} from all of them",
            op=op,
        )
    total = with_parts(value, parts)
    if op == "reduce_scatter":
        if isinstance(total, PARTIAL):
            raise CollectiveMismatchError(f"all ranks of {op} must together bring every part, got {describe(total)}")
        total = shard_of_sequence(total, group.index, group.size)
    return remember(total, value)


def _sum_of_common(op: str, value: WeightGradPart, group: FoldedGroup) -> WeightGradPart:
    """Return the gradient of each rank's part, with what all parts hold summed over the sequence."""
    _require_same(op, "samples", value, value.samples, group)
    seen = value.pieces if isinstance(value, ContextWeightGrad) else value.sequence_shards
    covered = _over(seen, group)
    if op != "all_reduce" or len(covered) != len(seen) * group.size:
        raise CollectiveMismatchError(
            f"all ranks of {op} must bring gradients of one part, or (all_reduce) of parts that have each seen other "
            f"shards of the sequence, got {describe(value)}",
            op=op,
        )
    if isinstance(value, ContextWeightGrad):
        return value.with_pieces(covered)
    return value.with_sums(value.samples, covered)


def _exchange(value: Any, group: FoldedGroup) -> Any:
    """Return the copies of tokens of all samples for each rank's part of the experts; or those of its own, back."""
    samples, parts = _over(value.samples, group), _over(value.parts, group)
    sequence = _sequence_over(value.sequence, group)
    if value.num_parts == group.size:
        is_going, num_brought = len(value.parts) == group.size, len(value.samples) * value.sequence.count
        if is_going and len(samples) * sequence.count == num_brought * group.size:
            return moved(value, samples, singleton(group.index), sequence)
        if not is_going and len(parts) == group.size and not _differs(value.samples, group):
            return moved(value, value.own, parts, value.own_sequence)
    raise CollectiveMismatchError(
        "all ranks of all_to_all must bring copies of different samples for all parts of the experts, or copies of the "
        f"same samples for another part each, and be as many as there are parts; got {describe(value)} from all "
        f"{group.size} of them",
        op="all_to_all",
    )


def _all_gather(value: Any, group: FoldedGroup) -> Any:
    """Return what holds the shards of a group's ranks."""
    shards = _over(value.shards, group)
    if isinstance(value, SHARDS_OF_SEQUENCE):
        _require_same("all_gather", "samples", value, value.samples, group)
        return gathered(with_sequence_shards(value, shards), value)
    if value.__class__ not in (Weight, OptState) and isinstance(value, WeightGrad):
        _require_same("all_gather", "samples", value, value.samples, group)
    whole = value.with_shards(shards, value.num_shards)
    if group.communicator.is_world and not whole.is_complete():
        raise CollectiveMismatchError(f"all ranks of all_gather must together bring every shard, got {describe(whole)}")
    return whole


def _over(values: Any, group: FoldedGroup) -> Any:
    """Return the union of the sets of a group's ranks."""
    return values.union_over(group.axes) if isinstance(values, PerRankSet) else values


def _sequence_over(part: SequencePart, group: FoldedGroup) -> SequencePart:
    """Return the union of the parts of sequences of a group's ranks."""
    return part.with_pieces_of(_over(part.shards, group), _over(part.pieces, group))


def _differs(values: Any, group: FoldedGroup) -> bool:
    """Return whether a set differs between the ranks of a group."""
    return isinstance(values, PerRankSet) and not group.axes.isdisjoint(values.slopes)


def _require_same(op: str, name: str, value: Any, values: Any, group: FoldedGroup) -> None:
    """Raise unless a set is the same on all ranks of a group."""
    if _differs(values, group):
        raise CollectiveMismatchError(
            f"all ranks of {op} must bring the same kind of tensor with the same {name}, which differ between the "
            f"ranks of a group: {describe(value)}",
            op=op,
        )
