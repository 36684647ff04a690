"""The five kinds of tensor that a training step handles, as symbols: which layer, which samples, which shards.

A tensor here holds no numbers. It says what part of the model or of the batch a real tensor would hold, so that the
laws of training can be checked and its size accounted for. Sizes are those of the default H x H matmul layer: a
weight has `HIDDEN_SIZE ** 2` elements, an activation `HIDDEN_SIZE * BLOCK_SIZE` elements a sample.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from minitrain.errors import LawError
from minitrain.tensors.annotations import Content, combined, sharded, summed
from minitrain.tensors.index_sets import alone, union

HIDDEN_SIZE = 4096
BLOCK_SIZE = 1024
DATATYPE = "float16"
BYTES_PER_ELEMENT = 2

T = TypeVar("T")
O = TypeVar("O")  # noqa: E741  (the specification's own name)
TO = TypeVar("TO")

_UNSHARDED = frozenset([0])


class Reduceable(Protocol[T]):
    """What can be summed over ranks or microbatches, element by element."""

    __slots__ = ()

    def __add__(self, other: T) -> T:
        """Return the element-wise sum."""
        ...


class Gatherable(Protocol[O]):
    """What can be cut into shards and put together again."""

    __slots__ = ()

    def shard(self, shard: int, num_shards: int) -> O:
        """Return one of `num_shards` equal parts."""
        ...

    def is_complete(self) -> bool:
        """Return whether every shard is held."""
        ...

    def combine(self, other: O) -> O:
        """Return a tensor that holds the shards of both."""
        ...


class ReduceableGatherable(Reduceable[TO], Gatherable[TO], Protocol[TO]):
    """What can be both summed and cut into shards: a weight gradient."""

    __slots__ = ()


class Tensor:
    """The common root of the five kinds.

    Its slots take no part in equality, repr, copies or pickles. `_home` and `_units` belong to the rank that stores
    the tensor (see `minitrain.rank.stores`), and are unset until it enters a store. `_content` is what whoever follows
    tensors makes of this one (numbers, in `minitrain.numerics`), and is unset where nobody does; `_origin` is where it
    came from, in a strict run (see `minitrain.accounting.strict`). Both are passed on by
    `minitrain.tensors.annotations`.
    """

    __slots__ = ("__weakref__", "_content", "_home", "_origin", "_units")

    _content: Content
    _home: Any
    _origin: Any
    _units: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the fields alone."""
        fields = self.__dataclass_fields__  # type: ignore[attr-defined]  # every subclass is a dataclass
        return type(self), tuple(getattr(self, name) for name in fields)

    def _repr_html_(self) -> str:
        """Draw in a notebook which layer, samples and shards this is."""
        from minitrain.tensors.drawing import tensor_html  # noqa: PLC0415  (only when somebody looks)

        return tensor_html(self)


def clone(value: T) -> T:
    """Return an equal tensor, an object of its own; anything else as it is."""
    kind = value.__class__
    if kind is Activation or kind is ActivationGrad:
        return kind(value.layer, value.layers, value.samples, value.total_samples)  # type: ignore[call-arg,attr-defined]
    return copy.copy(value) if isinstance(value, Tensor) else value


def _require_same(rule: str, left: Any, right: Any, *names: str) -> None:
    """Raise a LawError unless two tensors are of one kind and agree in the named fields."""
    if type(left) is not type(right):
        raise LawError(f"{rule}: both must be {type(left).__name__}, got {right!r}", left=left, right=right)
    for name in names:
        if getattr(left, name) != getattr(right, name):
            raise LawError(
                f"{rule}: {name} must be equal, got {getattr(left, name)} and {getattr(right, name)} "
                f"(layers {left.layer} and {right.layer})",
                left=left,
                right=right,
                layer=left.layer,
            )


def _require_shardable(value: Any, shard: int, num_shards: int) -> None:
    """Raise a LawError unless `value` is whole and `shard` is one of `num_shards`."""
    if not value.is_complete():
        raise LawError(
            f"only a complete tensor can be sharded: layer {value.layer} holds shards {sorted(value.shards)} of "
            f"{value.num_shards}; all_gather it first",
            layer=value.layer,
        )
    if not 0 <= shard < num_shards:
        raise LawError(
            f"shard must lie in 0..num_shards-1, got shard {shard} of {num_shards} (layer {value.layer})",
            layer=value.layer,
        )


@dataclass(slots=True)
class Weight(Tensor, Gatherable["Weight"]):
    """The parameters of one layer, whole or in shards.

    Args:
        layer: which layer, 0 to layers - 1.
        layers: number of layers of the model.
        step: how many updates they have seen.
        shards: indices of the shards held here.
        num_shards: number of shards that the whole is cut into.
    """

    layer: int
    layers: int
    step: int
    shards: frozenset[int] = _UNSHARDED
    num_shards: int = 1

    def combine(self, other: Weight) -> Weight:
        """Return the weight that holds the shards of both; layer, step and num_shards must agree."""
        _require_same("weights that combine", self, other, "layer", "step", "num_shards")
        shards = self.shards | other.shards
        return combined(Weight(self.layer, self.layers, self.step, shards, self.num_shards), self, other)

    def memory(self) -> float:
        """Return the size in elements: the share of shards held times H x H."""
        return (len(self.shards) / self.num_shards) * HIDDEN_SIZE * HIDDEN_SIZE

    def shard(self, shard: int, num_shards: int) -> Weight:
        """Return one of `num_shards` parts of a complete weight."""
        _require_shardable(self, shard, num_shards)
        part = Weight(self.layer, self.layers, self.step, alone(shard), num_shards)
        return sharded(part, self, shard, num_shards)

    def is_complete(self) -> bool:
        """Return whether every shard is held."""
        return len(self.shards) == self.num_shards


@dataclass(slots=True)
class Activation(Tensor):
    """The input of one layer for some samples; that of layer `layers` is the model's output.

    Args:
        layer: the layer it is an input of, 0 to layers.
        layers: number of layers of the model.
        samples: indices into the global batch.
        total_samples: size of the global batch.
    """

    layer: int
    layers: int
    samples: frozenset[int]
    total_samples: int

    def memory(self) -> int:
        """Return the size in elements: samples x H x BLOCK_SIZE."""
        return len(self.samples) * HIDDEN_SIZE * BLOCK_SIZE


@dataclass(slots=True)
class WeightGrad(Tensor, ReduceableGatherable["WeightGrad"]):
    """The gradient of one layer's weight, summed over some samples, whole or in shards.

    Args:
        layer: which layer.
        layers: number of layers of the model.
        samples: the samples summed into it.
        total_samples: size of the global batch.
        shards: indices of the shards held here.
        num_shards: number of shards that the whole is cut into.
    """

    layer: int
    layers: int
    samples: frozenset[int]
    total_samples: int
    shards: frozenset[int] = _UNSHARDED
    num_shards: int = 1

    def __add__(self, other: WeightGrad) -> WeightGrad:
        """Return the sum, which covers the samples of both; layer and shards must agree."""
        layer, shards, num_shards = self.layer, self.shards, self.num_shards
        if not (
            self.__class__ is other.__class__ is WeightGrad
            and other.layer == layer
            and other.num_shards == num_shards
            and (other.shards is shards or other.shards == shards)
        ):
            _require_same("gradients that add", self, other, "layer", "shards", "num_shards")
        total = WeightGrad(
            layer, self.layers, union(self.samples, other.samples), self.total_samples, shards, num_shards
        )
        if hasattr(self, "_units"):  # a sum is as large as its parts; measuring it would take longer
            total._units = self._units  # type: ignore[misc]  # a slot of the base
        return summed(total, self, other)

    def combine(self, other: WeightGrad) -> WeightGrad:
        """Return the gradient that holds the shards of both; layer, samples and num_shards must agree."""
        _require_same("gradients that combine", self, other, "layer", "samples", "num_shards")
        shards = self.shards | other.shards
        grad = WeightGrad(self.layer, self.layers, self.samples, self.total_samples, shards, self.num_shards)
        return combined(grad, self, other)

    def shard(self, shard: int, num_shards: int) -> WeightGrad:
        """Return one of `num_shards` parts of a complete gradient."""
        _require_shardable(self, shard, num_shards)
        shards = alone(shard)
        part = WeightGrad(self.layer, self.layers, self.samples, self.total_samples, shards, num_shards)
        return sharded(part, self, shard, num_shards)

    def is_complete(self) -> bool:
        """Return whether every shard is held."""
        return len(self.shards) == self.num_shards

    def memory(self) -> float:
        """Return the size in elements: the share of shards held times H x H."""
        return (len(self.shards) / self.num_shards) * HIDDEN_SIZE * HIDDEN_SIZE


@dataclass(slots=True)
class OptState(Tensor, Gatherable["OptState"]):
    """The optimizer state of one layer, whole or in shards.

    Args:
        layer: which layer.
        layers: number of layers of the model.
        step: how many updates it has seen.
        shards: indices of the shards held here.
        num_shards: number of shards that the whole is cut into.
    """

    layer: int
    layers: int
    step: int
    shards: frozenset[int] = _UNSHARDED
    num_shards: int = 1

    def combine(self, other: OptState) -> OptState:
        """Return the state that holds the shards of both; layer, step and num_shards must agree."""
        _require_same("optimizer states that combine", self, other, "layer", "step", "num_shards")
        shards = self.shards | other.shards
        return combined(OptState(self.layer, self.layers, self.step, shards, self.num_shards), self, other)

    def memory(self) -> float:
        """Return the size in elements: H x H times the share of shards held."""
        return HIDDEN_SIZE * HIDDEN_SIZE * (len(self.shards) / self.num_shards)

    def shard(self, shard: int, num_shards: int) -> OptState:
        """Return one of `num_shards` parts of a complete state."""
        _require_shardable(self, shard, num_shards)
        part = OptState(self.layer, self.layers, self.step, alone(shard), num_shards)
        return sharded(part, self, shard, num_shards)

    def is_complete(self) -> bool:
        """Return whether every shard is held."""
        return len(self.shards) == self.num_shards


@dataclass(slots=True)
class ActivationGrad(Tensor):
    """The gradient of the loss with respect to the output of one layer, for some samples.

    Args:
        layer: the layer whose output it belongs to, -1 (the model's input) to layers - 1.
        layers: number of layers of the model.
        samples: indices into the global batch.
        total_samples: size of the global batch.
    """

    layer: int
    layers: int
    samples: frozenset[int]
    total_samples: int

    def memory(self) -> int:
        """Return the size in elements: samples x H x BLOCK_SIZE."""
        return len(self.samples) * HIDDEN_SIZE * BLOCK_SIZE
