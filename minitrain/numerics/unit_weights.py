"""A unit's weights as one flat array, as ZeRO cuts it, and which elements of that array a part of the unit holds.

What a unit consists of, in which order and how it is cut, is what the workload says (`Unit.weights`). A part holds some
heads, columns, rows, rows of the vocabulary or experts, and all of what is not cut; its own flat array has these
elements in the order of the whole one. A vocabulary that does not divide is padded with rows of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from minitrain.numerics.arithmetic import Array
from minitrain.workloads.degrees import Degrees
from minitrain.workloads.shapes import WeightShape
from minitrain.workloads.unit import Unit

PADDING = -1


@final
@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a unit a rank computes.

    Args:
        index: which part of heads, columns, rows and vocabulary rows.
        count: into how many these are divided.
        expert_index: which part of the experts.
        num_expert_parts: into how many these are divided.
        piece: "router" for what all ranks hold of a unit with experts, "experts" for experts alone; "" for both.
    """

    index: int = 0
    count: int = 1
    expert_index: int = 0
    num_expert_parts: int = 1
    piece: Literal["", "router", "experts"] = ""

    def has(self, weight: WeightShape) -> bool:
        """Return whether a weight of the unit belongs to the piece."""
        return not self.piece or (weight.experts_per_token > 0) == (self.piece == "experts")

    @property
    def degrees(self) -> Degrees:
        """Return how the unit is divided."""
        return Degrees(tp=self.count, ep=self.num_expert_parts)


WHOLE = Part()


@final
@dataclass(frozen=True, slots=True, eq=False)
class UnitWeights:
    """The weights of a part of a unit by name, or their gradients.

    Args:
        arrays: each of the part's shape.
        part: which part.
    """

    arrays: Mapping[str, Array]
    part: Part = WHOLE

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def bias(self, name: str) -> Array | float:
        """Return a bias, or 0 where the model has none."""
        return self.arrays.get(name, 0.0)


@lru_cache(maxsize=1024)
def places(unit: Unit, part: Part = WHOLE) -> NDArray[np.int64]:
    """Return where the elements of a part's flat array are in the whole one; `PADDING` where there is none.

    Raises:
        UsageError: heads, columns or experts do not divide.
    """
    found, start = [], 0
    for weight in unit.weights:
        if part.has(weight):
            found.append(_places_of(weight, start, part).ravel())
        start += weight.num_parameters
    everything = np.concatenate(found)
    everything.flags.writeable = False
    return everything


def _places_of(weight: WeightShape, start: int, part: Part) -> NDArray[np.int64]:
    """Return the places of one weight, in the part's shape."""
    shape = weight.part(part.degrees)
    numbers = np.arange(start, start + weight.num_parameters).reshape(weight.shape)
    if weight.experts_per_token:
        numbers = _cut(numbers, 0, part.expert_index, shape[0])
    if weight.cut is not None:
        numbers = _cut(numbers, weight.cut_dim, part.index, shape[weight.cut_dim])
    return numbers


def _cut(numbers: NDArray[np.int64], dim: int, index: int, size: int) -> NDArray[np.int64]:
    """Return the index-th piece along a dimension, padded to `size`."""
    piece = np.moveaxis(numbers, dim, 0)[index * size : (index + 1) * size]
    padding = np.full((size - len(piece), *piece.shape[1:]), PADDING)
    return np.moveaxis(np.concatenate([piece, padding]), 0, dim)


@lru_cache(maxsize=1024)
def held_by_all(unit: Unit, part: Part) -> NDArray[np.bool_]:
    """Return which elements of a part's flat array all parts hold: norms, router, biases after a sum."""
    divided = {weight.name for weight in unit.weights if part.has(weight) and _is_divided(weight, part)}
    return np.concatenate([np.full(prod(shape), name not in divided) for name, shape, _ in _weights(unit, part)])


def _is_divided(weight: WeightShape, part: Part) -> bool:
    """Return whether parts hold different elements of a weight."""
    return (weight.cut is not None and part.count > 1) or (weight.experts_per_token > 0 and part.num_expert_parts > 1)


@lru_cache(maxsize=1024)
def _weights(unit: Unit, part: Part) -> tuple[tuple[str, tuple[int, ...], slice], ...]:
    """Return each weight's name, the part's shape of it, and which elements of the part's flat array it has."""
    found, start = [], 0
    for weight in unit.weights:
        if part.has(weight):
            shape = weight.part(part.degrees)
            found.append((weight.name, shape, slice(start, start + prod(shape))))
            start += prod(shape)
    return tuple(found)


def names_of(unit: Unit, part: Part = WHOLE) -> dict[str, slice]:
    """Return which elements of a part's flat array each weight has."""
    return {name: where for name, _, where in _weights(unit, part)}


def taken(flat: Array, unit: Unit, part: Part) -> Array:
    """Return a part of a whole flat array (its last dimension); zeros where it is padded."""
    where = places(unit, part)
    return np.where(where == PADDING, 0, flat[..., where])


def by_name(flat: Array, unit: Unit, part: Part = WHOLE) -> UnitWeights:
    """Return a part's flat array as weights, without copying."""
    return UnitWeights({name: flat[where].reshape(shape) for name, shape, where in _weights(unit, part)}, part)


def flattened(arrays: Mapping[str, Array], unit: Unit, part: Part) -> Array:
    """Return weights by name, or gradients, as one flat array; zeros where one is missing."""
    missing = np.zeros(())
    return np.concatenate(
        [
            arrays[name].reshape(-1) if name in arrays else np.broadcast_to(missing, shape).ravel()
            for name, shape, _ in _weights(unit, part)
        ]
    )
