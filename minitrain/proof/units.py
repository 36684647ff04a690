"""The arithmetic of a unit of a transformer, for the whole unit or one part of it.

A unit has two steps, so that parts of it and shards of the sequence add up to the whole:

- its *border*: what all parts do with the unit's input, token by token (norm, router, latents), and what is added once
  to the sum of all parts (biases, positions, the residual connection);
- *inside*: what parts divide: heads, columns and rows, vocabulary rows, experts. The outputs of all parts add up.

They are written forward alone, with autograd's NumPy, and gradients go back through each by itself (`gradients`). A
part can take the gradient as far as the border; only the sum over all parts goes through it, since norm and router need
it whole.

Sources: Vaswani et al. (2017); Shoeybi et al. (2019), figure 3, and Korthikanti et al. (2022), figure 5, for where
the sums are. Left out: dropout, ALiBi.

A unit's weights as one flat array, as ZeRO cuts it, and which elements of that array a part of the unit holds.

What a unit consists of, in which order and how it is cut, is what the workload says (`Unit.weights`). A part holds some
heads, columns, rows, rows of the vocabulary or experts, and all of what is not cut; its own flat array has these
elements in the order of the whole one. A vocabulary that does not divide is padded with rows of zeros.

The arithmetic of embedding and head, and of the loss over a vocabulary that parts may divide.

The loss is the mean over all tokens of the global batch of the cross-entropy with the next token. Each part of the head
makes the logits of some rows of the vocabulary. What parts exchange is, for every token, the highest of their logits,
the sum of exponentials relative to it, and the logit of the target where a part has it (Shoeybi et al. 2019, section
3). With these, each can make the gradient of its own logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, Literal

import autograd.numpy as anp  # type: ignore[import-untyped]  # NumPy's functions, whose operations are followed
import numpy as np
from numpy.typing import NDArray

from minitrain.errors import LawError
from minitrain.proof import arithmetic
from minitrain.proof.arithmetic import Array, activated, normalised
from minitrain.proof.attention_core import Positions, Tokens
from minitrain.workloads.shapes import ADAPTER, Degrees, WeightShape
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.unit import Unit

PADDING = -1


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


@dataclass(frozen=True, slots=True, eq=False)
class UnitWeights:
    """The weights of a part of a unit by name.

    Args:
        arrays: each of the part's shape.
        part: which part.
    """

    arrays: Mapping[str, Any]
    part: Part = WHOLE

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def bias(self, name: str) -> Any:
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
    """Return a part's flat array as weights; a matrix with what its adapters add."""
    return _adapted(_arrays(flat, unit, part), unit, part)


def _arrays(flat: Array, unit: Unit, part: Part) -> list[Array]:
    """Return a part's flat array as those that it consists of."""
    return [flat[where].reshape(shape) for _, shape, where in _weights(unit, part)]


def _adapted(arrays: Sequence[Any], unit: Unit, part: Part) -> UnitWeights:
    """Return the arrays of a part by name; to a matrix with adapters, their product is added (Hu et al. 2021)."""
    found = dict(zip((name for name, _, _ in _weights(unit, part)), arrays, strict=True))
    for name in {weight.name.partition(ADAPTER)[0] for weight in unit.weights if ADAPTER in weight.name}:
        if name in found:
            found[name] = found[name] + unit.adapter_scale * found[f"{name}.lora_a"] @ found[f"{name}.lora_b"]
    return UnitWeights(found, part)


def gradients(
    step: Callable[..., Any], flat: Array, unit: Unit, part: Part, given: Sequence[Any], *grads: Any
) -> tuple[Array, list[Array]]:
    """Return the gradients of a part's weights, as one flat array with zeros where nothing is trained, and of others.

    Args:
        step: what is computed of the part's weights and of arrays.
        flat: the part's weights.
        unit: whose.
        part: which.
        given: these arrays.
        grads: the gradient of each result.
    """
    arrays = _arrays(flat, unit, part)

    def made(*values: Any) -> Any:
        return step(_adapted(values[: len(arrays)], unit, part), *values[len(arrays) :])

    found = arithmetic.gradients(made, [*arrays, *given], *grads)
    of_weights = np.concatenate([each.reshape(-1) for each in found[: len(arrays)]])
    is_trained = trained(unit, part)
    return of_weights if is_trained.all() else np.where(is_trained, of_weights, 0), found[len(arrays) :]


@lru_cache(maxsize=1024)
def trained(unit: Unit, part: Part) -> NDArray[np.bool_]:
    """Return which elements of a part's flat array are trained."""
    known = {weight.name: weight.is_trained for weight in unit.weights}
    return np.concatenate([np.full(prod(shape), known[name]) for name, shape, _ in _weights(unit, part)])


class UnitArithmetic(ABC):
    """What one kind of unit computes.

    Args:
        model: whose unit it is.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def normed(self, weights: UnitWeights, x: Any, prefix: str = "") -> Any:
        """Return tokens behind a norm."""
        scaled = normalised(x, self.model.norm) * weights[f"{prefix}norm.weight"]
        return scaled + weights.bias(f"{prefix}norm.bias")

    @abstractmethod
    def border(self, weights: UnitWeights, x: Tokens) -> tuple[Any, Any]:
        """Return what *inside* works on, of the unit's input, and what is added once to the sum of all parts."""

    @abstractmethod
    def inside(self, weights: UnitWeights, inner: Tokens) -> Any:
        """Return a part's share of the output."""


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The matrices of an MLP with an activation function between them: a unit's own, shared ones, or one expert.

    Args:
        kind: the activation function.
        prefix: of the names of the weights.
        expert: which expert's, of those held; None where the weights are not of experts.
    """

    kind: str
    prefix: str = ""
    expert: int | None = None

    def __call__(self, weights: UnitWeights, x: Any) -> Any:
        """Return the output, without the last matrix's bias."""
        names = ("gate", "up") if self.kind == "swiglu" else ("up",)
        inputs = [x @ self._own(weights, name) + self._own(weights, f"{name}.bias") for name in names]
        return activated(inputs, self.kind) @ self._own(weights, "down")

    def _own(self, weights: UnitWeights, name: str) -> Any:
        """Return a weight; an expert's own of those of several; 0 for a bias that is not there."""
        weight = weights.bias(self.prefix + name)
        return weight if self.expert is None or isinstance(weight, float) else weight[self.expert]


class Mlp(UnitArithmetic):
    """Norm, and two or three matrices with an activation function between them."""

    def border(self, weights: UnitWeights, x: Tokens) -> tuple[Any, Any]:
        """Return the normed tokens; the last matrix's bias and the input are added once."""
        return self.normed(weights, x.values), x.values + weights.bias("down.bias")

    def inside(self, weights: UnitWeights, inner: Tokens) -> Any:
        """Return the output of some columns of the first matrices and the same rows of the last."""
        return FeedForward(self.model.mlp)(weights, inner.values)


_LOWEST = np.finfo(np.float64).min  # the highest logit of a part that is all padding


class Embedding(UnitArithmetic):
    """The table of tokens, and that of learned positions; its input are the tokens' numbers."""

    def border(self, weights: UnitWeights, x: Tokens) -> tuple[Any, Any]:
        """Return the numbers as they are; the rows of the positions are added once."""
        return x.values, weights["positions"][x.where] if "positions" in weights.arrays else 0.0

    def inside(self, weights: UnitWeights, inner: Tokens) -> Any:
        """Return the rows of the tokens that a part of the vocabulary has, zeros for the others."""
        row, is_here = rows_of(inner.values, weights["tokens"].shape[0], weights.part.index)
        return anp.where(is_here[..., None], weights["tokens"][row], 0)


class Head(UnitArithmetic):
    """The final norm and the multiplication with the vocabulary."""

    def border(self, weights: UnitWeights, x: Tokens) -> tuple[Any, Any]:
        """Return the normed tokens; nothing is added."""
        return self.normed(weights, x.values), 0.0

    def inside(self, weights: UnitWeights, inner: Tokens) -> Any:
        """Return the logits of some rows of the vocabulary."""
        return inner.values @ weights["tokens"]


def rows_of(numbers: Any, num_rows: int, part: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the row of each token within a part of a table, and whether it is there; row 0 where it is not."""
    row = np.asarray(numbers, dtype=np.int64) - part * num_rows
    is_here = (row >= 0) & (row < num_rows)
    return np.where(is_here, row, 0), is_here


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """What the loss needs of all logits of each token, samples x positions each.

    Args:
        highest: the highest logit.
        total: the sum of exponentials of the logits minus the highest.
        target: the logit of the target; 0 where no part seen so far has it.
    """

    highest: Array
    total: Array
    target: Array

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics of the logits of both."""
        highest = np.maximum(self.highest, other.highest)
        total = self.total * np.exp(self.highest - highest) + other.total * np.exp(other.highest - highest)
        return Statistics(highest, total, self.target + other.target)

    def losses(self) -> Array:
        """Return the cross-entropy of each token."""
        return self.highest + np.log(self.total) - self.target


@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """The model's output on a rank: the logits that it has made, and what it knows of all.

    Args:
        pieces: the logits by part of the vocabulary, samples x positions x rows of the part.
        num_parts: parts of the vocabulary.
        num_rows: rows of the vocabulary, which may be less than those of all parts.
        positions: of the tokens.
        targets: the next tokens, samples x positions.
        statistics: of the logits of all parts that were added up.
    """

    pieces: Mapping[int, Array]
    num_parts: int
    num_rows: int
    positions: Positions
    targets: NDArray[np.int64]
    statistics: Statistics

    def add(self, other: Logits) -> Logits:
        """Return the logits of both, with the statistics of all."""
        pieces = {**self.pieces, **other.pieces}
        return replace(self, pieces=pieces, statistics=self.statistics.merge(other.statistics))

    def mine(self, total: Logits) -> Logits:
        """Return these logits with the statistics of a sum over ranks: the logits of others were not sent."""
        return replace(self, statistics=total.statistics)

    def gradient(self, num_tokens: int) -> LogitsGrad:
        """Return the gradient of the mean loss over `num_tokens` tokens with respect to these logits."""
        found = {}
        for part, logits in self.pieces.items():
            shares = np.exp(logits - self.statistics.highest[..., None]) / self.statistics.total[..., None]
            row, is_here = rows_of(self.targets, logits.shape[-1], part)
            here = np.zeros(logits.shape)
            np.put_along_axis(here, row[..., None], is_here[..., None], axis=-1)
            found[part] = np.where(_exists(part, logits.shape[-1], self.num_rows), (shares - here) / num_tokens, 0)
        return LogitsGrad(found, self.num_parts, self.positions)


@dataclass(frozen=True, slots=True, eq=False)
class LogitsGrad:
    """The gradient of the logits that a rank has made; its fields are as those of `Logits`."""

    pieces: Mapping[int, Array]
    num_parts: int
    positions: Positions

    def of_part(self, part: int, num_parts: int) -> Tokens:
        """Return the gradient of one part's logits.

        Raises:
            LawError: these logits were made by another rank.
        """
        return Tokens(made_here(self, part, num_parts), self.positions)


def made_here(logits: Any, part: int, num_parts: int) -> Any:
    """Return what a rank has of one part of logits, or of their gradient.

    Raises:
        LawError: another rank has made it.
    """
    if num_parts != logits.num_parts or part not in logits.pieces:
        known = ", ".join(str(piece) for piece in logits.pieces)
        raise LawError(
            f"the gradient of part {part} of {num_parts} of the logits is on the ranks that made them; here are "
            f"those of part {known} of {logits.num_parts}: call loss on every rank that holds a part of the head"
        )
    return logits.pieces[part]


def logits_of(made: Tokens, weights: UnitWeights, num_rows: int, targets: NDArray[np.int64]) -> Logits:
    """Return what a part of the head has made, with its share of the statistics."""
    part = weights.part
    seen = np.where(_exists(part.index, made.values.shape[-1], num_rows), made.values, -np.inf)
    highest = np.maximum(seen.max(axis=-1), _LOWEST)
    row, is_here = rows_of(targets, made.values.shape[-1], part.index)
    target = np.where(is_here, np.take_along_axis(made.values, row[..., None], axis=-1)[..., 0], 0)
    statistics = Statistics(highest, np.exp(seen - highest[..., None]).sum(axis=-1), target)
    return Logits({part.index: made.values}, part.count, num_rows, made.positions, targets, statistics)


def _exists(part: int, num_rows: int, num_all: int) -> NDArray[np.bool_]:
    """Return which rows of a part of the vocabulary are no padding."""
    return part * num_rows + np.arange(num_rows) < num_all


def rows_at(numbers: NDArray[np.int64], samples: Iterable[int], positions: Positions) -> NDArray[np.int64]:
    """Return the numbers of some samples' tokens at some positions, the same for all samples or those of each."""
    found = numbers[np.array(sorted(samples), dtype=np.int64)]
    return np.asarray(found[:, positions] if positions.ndim == 1 else np.take_along_axis(found, positions, axis=1))
