"""The results of collectives whose groups lie within a class of ranks: by symmetry, from one value for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minitrain.errors import CollectiveMismatchError
from minitrain.folding.attempt import FoldAttempt
from minitrain.folding.mesh import FoldedGroup
from minitrain.folding.per_rank_sets import PerRankSet
from minitrain.tensors import Sharded, WeightGrad
from minitrain.tensors.index_sets import singleton
from minitrain.transport.collectives import describe


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
    if op == "reduce_scatter":  # its shards are those of the group's ranks, not of its classes
        result = WeightGrad(
            value.layer, value.layers, result.samples, value.total_samples, value.shards, value.num_shards
        )
    return perform(attempt, op, result, group)


def require_symmetric(attempt: FoldAttempt, op: str, value: Any, group: FoldedGroup) -> None:
    """Require a collective that all ranks of a group take part in alike, and tensors that `perform` knows.

    Raises:
        DivergesError: it is none, or they are not.
    """
    if not _is_symmetric(op, value):
        attempt.diverge(f"{op} of {describe(value)}, which cannot be folded,", group.axes)


def _is_symmetric(op: str, value: Any) -> bool:
    """Return whether a collective of a tensor, or of a bucket of them, is known."""
    if isinstance(value, list):
        return op in _KINDS and all(_is_symmetric(op, item) for item in value)
    return op == "barrier" or isinstance(value, _KINDS.get(op, ()))


_KINDS: Mapping[str, tuple[type, ...]] = {
    "all_gather": (Sharded,),
    "all_reduce": (WeightGrad,),
    "reduce_scatter": (WeightGrad,),
}


def _reduce(op: str, value: WeightGrad, group: FoldedGroup) -> WeightGrad:
    """Return the sum over a group, or each rank's shard of it."""
    _require_same(op, "shards", value, value.shards, group)
    samples = _over(value.samples, group)
    if op == "all_reduce":
        return WeightGrad(value.layer, value.layers, samples, value.total_samples, value.shards, value.num_shards)
    if not value.is_complete():
        raise CollectiveMismatchError(f"all ranks of {op} must bring complete gradients, got {describe(value)}", op=op)
    return WeightGrad(value.layer, value.layers, samples, value.total_samples, singleton(group.index), group.size)


def _all_gather(value: Any, group: FoldedGroup) -> Any:
    """Return what holds the shards of a group's ranks."""
    shards = _over(value.shards, group)
    if type(value) is WeightGrad:
        _require_same("all_gather", "samples", value, value.samples, group)
    whole = value.with_shards(shards, value.num_shards)
    if group.communicator.is_world and not whole.is_complete():
        raise CollectiveMismatchError(f"all ranks of all_gather must together bring every shard, got {describe(whole)}")
    return whole


def _over(values: Any, group: FoldedGroup) -> Any:
    """Return the union of the sets of a group's ranks."""
    return values.union_over(group.axes) if isinstance(values, PerRankSet) else values


def _require_same(op: str, name: str, value: Any, values: Any, group: FoldedGroup) -> None:
    """Raise unless a set is the same on all ranks of a group."""
    if isinstance(values, PerRankSet) and not group.axes.isdisjoint(values.slopes):
        raise CollectiveMismatchError(
            f"all ranks of {op} must bring the same kind of tensor with the same {name}, which differ between the "
            f"ranks of a group: {describe(value)}",
            op=op,
        )
