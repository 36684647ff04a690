"""Parts of a layer, and the sums and shards that they make: tensor and sequence parallelism in the tensors' algebra.

A *shard* of a weight is storage: it must be gathered before it computes. A *part* computes: some heads of an attention,
some columns and rows of an MLP, some rows of a vocabulary. What a part makes is a *partial sum*, which says which parts
it holds. Partial sums of different parts add; the sum of all parts is a plain activation, or a plain gradient of one,
and only that goes on. So Megatron's figure (Shoeybi et al. 2019, figure 3) reads:

    out = model.forward(layer, x, weight_part)                  # parts {0} of 4
    x = await model.all_reduce(out, layer, group=tp)            # an Activation

An activation may also be cut along the sequence (Korthikanti et al. 2022, figure 5). `reduce_scatter` makes shards of
the sequence of partial sums, and `all_gather` puts them together.

Weights that parts do not divide (norms, biases after a sum) are held by all of them. Where the sequence is cut between
parts, each part's gradient covers some shards of the sequence for these, and `all_reduce` over the parts adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from minitrain.errors import LawError
from minitrain.tensors.annotations import combined, sharded, summed
from minitrain.tensors.index_sets import ranges, singleton, union
from minitrain.tensors.kinds import (
    Activation,
    ActivationGrad,
    OptState,
    Weight,
    WeightGrad,
    require_same,
)

_ALL = frozenset([0])
_FIELDS_OF_A_SUM: tuple[str, ...] = ("layer", "samples", "num_parts")


@dataclass(slots=True)
class WeightPart(Weight):
    """One part of a layer's weight, whole or in shards.

    Args:
        parts: which part, as a set of one.
        num_parts: number of parts that the layer is divided into.
    """

    parts: frozenset[int] = _ALL
    num_parts: int = 1

    _must_agree = (*Weight._must_agree, "parts", "num_parts")  # type: ignore[assignment]  # more names than those of the whole

    def with_shards(self, shards: frozenset[int], num_shards: int) -> WeightPart:
        """Return the same part of other shards."""
        return WeightPart(self.layer, self.layers, self.step, shards, num_shards, self.parts, self.num_parts)

    def memory(self) -> float:
        """Return the size in elements: the part's share of the whole."""
        return Weight.memory(self) / self.num_parts


@dataclass(slots=True)
class OptStatePart(OptState):
    """The optimizer state of one part of a layer's weight; its fields are as those of `WeightPart`."""

    parts: frozenset[int] = _ALL
    num_parts: int = 1

    _must_agree = (*OptState._must_agree, "parts", "num_parts")  # type: ignore[assignment]  # more names than those of the whole

    def with_shards(self, shards: frozenset[int], num_shards: int) -> OptStatePart:
        """Return the same part of other shards."""
        return OptStatePart(self.layer, self.layers, self.step, shards, num_shards, self.parts, self.num_parts)

    def memory(self) -> float:
        """Return the size in elements: the part's share of the whole."""
        return OptState.memory(self) / self.num_parts


@dataclass(slots=True)
class WeightGradPart(WeightGrad):
    """The gradient of one part of a layer's weight.

    Args:
        parts: which part, as a set of one.
        num_parts: number of parts that the layer is divided into.
        sequence_shards: the shards of the sequence that are summed into the gradients of what all parts hold.
        num_sequence_shards: number of shards of the sequence; 1 where each part has seen all of it.
    """

    parts: frozenset[int] = _ALL
    num_parts: int = 1
    sequence_shards: frozenset[int] = _ALL
    num_sequence_shards: int = 1

    _must_agree = (*WeightGrad._must_agree, "parts", "num_parts", "sequence_shards", "num_sequence_shards")  # type: ignore[assignment]  # more names than those of the whole

    def with_shards(self, shards: frozenset[int], num_shards: int) -> WeightGradPart:
        """Return the same gradient of other shards."""
        return self.with_sums(self.samples, self.sequence_shards, shards, num_shards)

    def with_sums(
        self,
        samples: frozenset[int],
        sequence_shards: frozenset[int],
        shards: frozenset[int] | None = None,
        num_shards: int | None = None,
    ) -> WeightGradPart:
        """Return a gradient of the same part that covers other samples or other shards of the sequence."""
        return WeightGradPart(
            self.layer,
            self.layers,
            samples,
            self.total_samples,
            self.shards if shards is None else shards,
            num_shards or self.num_shards,
            self.parts,
            self.num_parts,
            sequence_shards,
            self.num_sequence_shards,
        )

    def __add__(self, other: WeightGrad) -> WeightGradPart:
        """Return the sum, which covers the samples of both; all but the samples must agree."""
        if not (other.__class__ is WeightGradPart and _BESIDE_SAMPLES(self) == _BESIDE_SAMPLES(other)):
            names = (name for name in self._must_agree if name != "samples")
            require_same("gradients that add", self, other, *names, "shards")
        total = self.with_sums(union(self.samples, other.samples), self.sequence_shards)
        if hasattr(self, "_units"):
            total._units = self._units  # type: ignore[misc]  # a slot of the base
        return summed(total, self, other)

    def covers_sequence(self) -> bool:
        """Return whether what all parts hold has its gradient summed over the whole sequence."""
        return len(self.sequence_shards) == self.num_sequence_shards

    def memory(self) -> float:
        """Return the size in elements: the part's share of the whole."""
        return WeightGrad.memory(self) / self.num_parts


_BESIDE_SAMPLES = attrgetter(*(name for name in WeightGradPart._must_agree if name != "samples"), "shards")


@dataclass(slots=True)
class PartialActivation(Activation):
    """What some parts of a layer have made of its input: it counts once all parts are added.

    Args:
        parts: the parts summed into it.
        num_parts: number of parts that the layer before is divided into.
    """

    parts: frozenset[int] = _ALL
    num_parts: int = 1

    _must_agree = _FIELDS_OF_A_SUM

    def __add__(self, other: PartialActivation) -> Any:
        """Return the sum: an `Activation` if it has all parts; the parts must differ."""
        return sum_of_parts(self, other)

    def whole(self) -> Activation:
        """Return the sum over all parts."""
        return Activation(self.layer, self.layers, self.samples, self.total_samples)

    def with_parts(self, parts: frozenset[int]) -> PartialActivation:
        """Return the same sum over other parts."""
        return PartialActivation(self.layer, self.layers, self.samples, self.total_samples, parts, self.num_parts)


@dataclass(slots=True)
class PartialActivationGrad(ActivationGrad):
    """The gradient of a layer's input as some parts of the layer have made it: it counts once all parts are added.

    Args:
        parts: the parts summed into it.
        num_parts: number of parts that the layer after it is divided into.
    """

    parts: frozenset[int] = _ALL
    num_parts: int = 1

    _must_agree = _FIELDS_OF_A_SUM

    def __add__(self, other: PartialActivationGrad) -> Any:
        """Return the sum: an `ActivationGrad` if it has all parts; the parts must differ."""
        return sum_of_parts(self, other)

    def whole(self) -> ActivationGrad:
        """Return the sum over all parts."""
        return ActivationGrad(self.layer, self.layers, self.samples, self.total_samples)

    def with_parts(self, parts: frozenset[int]) -> PartialActivationGrad:
        """Return the same sum over other parts."""
        return PartialActivationGrad(self.layer, self.layers, self.samples, self.total_samples, parts, self.num_parts)


@dataclass(slots=True)
class ActivationShard(Activation):
    """Some shards of an activation, cut along the sequence.

    Args:
        shards: indices of the shards held here.
        num_shards: number of shards that the sequence is cut into.
    """

    shards: frozenset[int] = _ALL
    num_shards: int = 1

    def combine(self, other: ActivationShard) -> Any:
        """Return what holds the shards of both: an `Activation` if it has all."""
        return union_of_shards(self, other)

    def with_shards(self, shards: frozenset[int]) -> ActivationShard:
        """Return other shards of the same sequence."""
        return replace(self, shards=shards)

    def memory(self) -> int:
        """Return the size in elements: the shards' share of the activation's."""
        return self.whole().memory() * len(self.shards) // self.num_shards

    def whole(self) -> Activation:
        """Return the activation that it is cut from."""
        return Activation(self.layer, self.layers, self.samples, self.total_samples)


@dataclass(slots=True)
class ActivationGradShard(ActivationGrad):
    """Some shards of an activation's gradient, cut along the sequence; its fields are those of `ActivationShard`."""

    shards: frozenset[int] = _ALL
    num_shards: int = 1

    def combine(self, other: ActivationGradShard) -> Any:
        """Return what holds the shards of both: an `ActivationGrad` if it has all."""
        return union_of_shards(self, other)

    def with_shards(self, shards: frozenset[int]) -> ActivationGradShard:
        """Return other shards of the same sequence."""
        return replace(self, shards=shards)

    def memory(self) -> int:
        """Return the size in elements: the shards' share of the gradient's."""
        return self.whole().memory() * len(self.shards) // self.num_shards

    def whole(self) -> ActivationGrad:
        """Return the gradient that it is cut from."""
        return ActivationGrad(self.layer, self.layers, self.samples, self.total_samples)


PARTIAL = (PartialActivation, PartialActivationGrad)
"""Sums that lack parts, or may."""

SHARDS_OF_SEQUENCE = (ActivationShard, ActivationGradShard)
"""The kinds of tensor that are cut along the sequence."""

WEIGHT_PARTS = (WeightPart, OptStatePart, WeightGradPart)
"""The kinds of tensor that a rank holds of one part of a layer."""

PARTED_KINDS: tuple[type[Any], ...] = (*WEIGHT_PARTS, *PARTIAL, *SHARDS_OF_SEQUENCE)
"""The kinds of tensor that know parts or shards of the sequence, each a kind of one of the five."""

_SHARD_OF: Mapping[type[Any], type[Any]] = MappingProxyType(
    {Activation: ActivationShard, ActivationGrad: ActivationGradShard}
)


def shard_of_sequence(value: Activation | ActivationGrad, shard: int, num_shards: int) -> Any:
    """Return one of `num_shards` shards of an activation or of its gradient.

    Raises:
        LawError: it is no complete one, or there is no such shard.
    """
    kind = _SHARD_OF.get(type(value))
    is_of_context = hasattr(value, "piece")  # some shards of a sequence, which are cut further
    if kind is None and not is_of_context:
        raise LawError(f"only a complete activation or gradient is cut along the sequence, got {value!r}", value=value)
    if not 0 <= shard < num_shards:
        raise LawError(f"shard must lie in 0..num_shards-1, got shard {shard} of {num_shards}", layer=value.layer)
    if kind is None:
        return value.piece(singleton(shard), num_shards)  # type: ignore[union-attr]  # as asked above
    return kind(value.layer, value.layers, value.samples, value.total_samples, singleton(shard), num_shards)


def share_of_sequence(value: Activation | ActivationGrad, shard: int, num_shards: int) -> Any:
    """Return one of `num_shards` shards of an activation that a rank has whole, to be sent in its place.

    Raises:
        LawError: as for `shard_of_sequence`.
    """
    return sharded(shard_of_sequence(value, shard, num_shards), value, shard, num_shards)


def kept_whole(value: Any) -> Any:
    """Return an activation that was gathered, as one that stays whole: the shard is not what its layer keeps."""
    if hasattr(value, "_passage"):
        value._passage.gathered_from = None
    return value


def sum_of_parts(left: Any, right: Any) -> Any:
    """Return the sum of two partial sums.

    Raises:
        LawError: they are of different kinds, layers, samples or divisions, or a part is in both.
    """
    require_same("partial sums that add", left, right, *left._must_agree)
    twice = left.parts & right.parts
    if twice:
        raise LawError(
            f"partial sums that add: part {ranges(twice)} of {left.num_parts} is in both (layer {left.layer}); add "
            "each part once",
            left=left,
            right=right,
            layer=left.layer,
        )
    return summed(with_parts(left, left.parts | right.parts), left, right)


def with_parts(value: Any, parts: frozenset[int]) -> Any:
    """Return a partial sum of other parts, and the sum itself where these are all."""
    return value.whole() if len(parts) == value.num_parts else value.with_parts(parts)


def union_of_shards(left: Any, right: Any) -> Any:
    """Return what holds the shards of the sequence of both.

    Raises:
        LawError: they are of different kinds, layers, samples or cuts.
    """
    require_same("shards of a sequence that combine", left, right, "layer", "samples", "num_shards")
    return combined(with_sequence_shards(left, left.shards | right.shards), left, right)


def with_sequence_shards(value: Any, shards: frozenset[int]) -> Any:
    """Return other shards of the same sequence, and the whole where these are all."""
    if len(shards) == value.num_shards:
        return value.whole()
    return value.with_shards(shards)
