"""The results of collectives whose groups lie within a class of ranks: by symmetry, from one value for all of them.

The laws are those of `minitrain.operations.collectives`, which here ask one value that stands for those of all ranks.

The part of a class of ranks in a collective with other classes, which is completed when the last one is there.

Classes meet through the transport, as the ranks of a full run do. Each of them then takes the union over the ranks of
the class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, final

from minitrain.engine.operations import Operation
from minitrain.errors import CollectiveMismatchError
from minitrain.operations.collectives import COLLECTIVES, describe
from minitrain.run.folding.attempt import FoldAttempt
from minitrain.run.folding.mesh import FoldedGroup
from minitrain.run.folding.per_rank_values import PerRankSet
from minitrain.tensors import Sharded, WeightGrad
from minitrain.tensors.kinds import altered
from minitrain.tensors.placed import PARTIAL, KeysValues, KeysValuesGrad
from minitrain.tensors.sequence_parts import SequencePart

_OF_CLASSES = (KeysValues, KeysValuesGrad)


@final
class Symmetric:
    """What the ranks of a group bring, each its own of one value that stands for all of them.

    Args:
        op: the collective.
        value: what each rank brings.
        group: the group of each rank.
    """

    def __init__(self, op: str, value: Any, group: FoldedGroup) -> None:
        self.op, self.first, self.size, self.detail = op, value, group.size, None
        self._group = group

    def mismatch(self, rule: str) -> Exception:
        """Return the error of ranks that do not keep a rule."""
        return CollectiveMismatchError(
            f"all ranks of {self.op} {rule}, got {describe(self.first)} from all of them", op=self.op
        )

    def agree(self, *names: str) -> None:
        """Require tensors that agree in some fields."""
        for name in names:
            if not self.is_one(name):
                raise CollectiveMismatchError(
                    f"all ranks of {self.op} must bring the same kind of tensor with the same {name}, which differ "
                    f"between the ranks of a group: {describe(self.first)}",
                    op=self.op,
                )

    def is_one(self, name: str) -> bool:
        """Return whether all bring the same in a field."""
        field = attrgetter(name)(self.first)
        fields = (field.shards, field.pieces) if isinstance(field, SequencePart) else (field,)
        return not any(isinstance(each, PerRankSet) and self._group.axes & each.slopes.keys() for each in fields)

    def union(self, name: str) -> Any:
        """Return the union of a set that each brings."""
        values = attrgetter(name)(self.first)
        return values.union_over(self._group.axes) if isinstance(values, PerRankSet) else values

    def total(self, count: Callable[[Any], int]) -> int:
        """Return the sum of a number over what each brings."""
        return count(self.first) * self.size


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
    record = COLLECTIVES[op]
    result = record.law(Symmetric(op, value, group))(value, group.index)
    if (
        record.gives == "union"
        and group.communicator.is_world
        and isinstance(value, Sharded)
        and not result.is_complete()
    ):
        raise CollectiveMismatchError(
            f"all ranks of all_gather must together bring every shard, got {describe(result)}"
        )
    return result


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
    if COLLECTIVES[op].gives == "exchange":  # of kept axes alone
        return result
    if COLLECTIVES[op].scatters:  # its shards are those of the group's ranks, not of its classes
        result = altered(result, shards=value.shards, num_shards=value.num_shards)
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
    if COLLECTIVES[op].gives != "sum" or value.__class__ is not WeightGrad:
        return value
    samples = Symmetric(op, value, group).union("samples")
    return value if samples is value.samples else altered(value, samples=samples)


def _is_symmetric(op: str, value: Any) -> bool:
    """Return whether a collective of a tensor, or of a bucket of them, is known."""
    record = COLLECTIVES[op]
    if isinstance(value, list):
        return record.takes_buckets and all(_is_symmetric(op, item) for item in value)
    return record.gives == "nothing" or isinstance(value, record.kinds)


class ClassOperation(Operation):
    """The part of a class in a collective whose groups have members of several classes.

    Attributes:
        own_value: what the lowest rank of the class gave; its `value` may have the samples of all ranks of the class.
    """

    __slots__ = ("own_value",)
    own_value: Any

    @property
    def given(self) -> Any:
        """What the lowest rank gave, whose memory counts."""
        return self.own_value

    @staticmethod
    def settle_all(
        calls: Sequence[Any],
        results: Sequence[Any],
        clocks: Sequence[float],
        start: float,
        last: int,
        largest_bytes: int,
    ) -> None:
        """Complete the collective of all classes; `results` are those of their lowest ranks among themselves."""
        found = [
            perform_of_classes(call.model.attempt, call.op, call.value, result, call.owner)
            for call, result in zip(calls, results, strict=True)
        ]
        Operation.settle_all(calls, found, clocks, start, last, largest_bytes)
        calls[0].model.require_same_price(calls[0])
