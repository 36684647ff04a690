"""The arithmetic of a unit of a transformer, forward and backward, for the whole unit or one part of it.

A unit has three steps, so that parts of it and shards of the sequence add up to the whole:

- *before*: what all parts do with the unit's input, token by token: the norm, and an MoE's router;
- *inside*: what parts divide: heads, columns and rows, vocabulary rows, experts. The outputs of all parts add up;
- *after*: what is added once to that sum: biases, positions, and the residual connection.

Backward goes through them the other way round. A part can take the gradient as far as the border between *inside* and
*before*; only the sum over all parts goes through *before*, since norm and router need it whole. The gradient of a
weight is a function to be called when it is wanted: `backward_input` leaves it to `backward_weight`.

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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from minitrain.errors import LawError
from minitrain.proof.arithmetic import (
    Array,
    activated,
    activated_backward,
    normalised,
    normalised_backward,
    outer_sum,
    over_tokens,
)
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
    """Return a part's flat array as weights; a matrix with what its adapters add."""
    found = {name: flat[where].reshape(shape) for name, shape, where in _weights(unit, part)}
    for name in adapted(unit):
        if name in found:
            found[name] = found[name] + unit.adapter_scale * found[f"{name}.lora_a"] @ found[f"{name}.lora_b"]
    return UnitWeights(found, part)


@lru_cache(maxsize=1024)
def adapted(unit: Unit) -> frozenset[str]:
    """Return the matrices that have adapters."""
    return frozenset(weight.name.partition(ADAPTER)[0] for weight in unit.weights if ADAPTER in weight.name)


@lru_cache(maxsize=1024)
def trained(unit: Unit) -> frozenset[str]:
    """Return the weights that are trained, adapters aside."""
    return frozenset(weight.name for weight in unit.weights if weight.is_trained and ADAPTER not in weight.name)


def flattened(arrays: Mapping[str, Array], unit: Unit, part: Part) -> Array:
    """Return gradients by name as one flat array; zeros where one is missing."""
    missing = np.zeros(())
    return np.concatenate(
        [
            arrays[name].reshape(-1) if name in arrays else np.broadcast_to(missing, shape).ravel()
            for name, shape, _ in _weights(unit, part)
        ]
    )


Gradients = dict[str, Callable[[], Array]]
"""Gradients of weights by name, each to be computed when it is wanted."""


def of_trained(gradients: Gradients, weights: UnitWeights, unit: Unit) -> dict[str, Array]:
    """Return the gradients of what is trained: of a matrix with adapters, theirs (Hu et al. 2021, section 4.1)."""
    found = {name: gradient() for name, gradient in gradients.items() if name in trained(unit)}
    for name in adapted(unit).intersection(gradients):
        gradient = unit.adapter_scale * gradients[name]()
        found[f"{name}.lora_a"] = gradient @ weights[f"{name}.lora_b"].T
        found[f"{name}.lora_b"] = weights[f"{name}.lora_a"].T @ gradient
    return found


class UnitArithmetic(ABC):
    """What one kind of unit computes.

    Args:
        model: whose unit it is.
    """

    has_residual = True

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def before(self, weights: UnitWeights, x: Tokens) -> Tokens:
        """Return what *inside* works on, of the unit's input."""
        scaled = normalised(x.values, self.model.norm) * weights["norm.weight"]
        return x.with_values(scaled + weights.bias("norm.bias"))

    @abstractmethod
    def inside(self, weights: UnitWeights, inner: Tokens) -> Array:
        """Return a part's share of the output."""

    @abstractmethod
    def after(self, weights: UnitWeights, inner: Tokens) -> Array | float:
        """Return what is added once to the sum of all parts, beside the residual connection."""

    @abstractmethod
    def inside_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Return a part's share of the gradient of what *inside* worked on, and the gradients of its own weights."""

    @abstractmethod
    def after_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array | float, Gradients]:
        """Return what *after* adds to the gradient of what *inside* worked on, and the gradients of its weights."""

    def before_backward(self, weights: UnitWeights, x: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Return the gradient of the unit's input without the residual connection, and those of *before*'s weights."""
        kind = self.model.norm
        grads: Gradients = {"norm.weight": partial(over_tokens, grad * normalised(x.values, kind))}
        if "norm.bias" in weights.arrays:
            grads["norm.bias"] = partial(over_tokens, grad)
        return normalised_backward(grad * weights["norm.weight"], x.values, kind), grads


def bias_gradient(weights: UnitWeights, name: str, grad: Array) -> Gradients:
    """Return the gradient of a bias that is added to every token, if the model has one."""
    return {name: partial(over_tokens, grad)} if name in weights.arrays else {}


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

    def __call__(self, weights: UnitWeights, x: Array) -> Array:
        """Return the output, without the last matrix's bias."""
        return activated(self._inputs(weights, x), self.kind) @ self._own(weights[self._last])

    def backward(self, weights: UnitWeights, x: Array, grad: Array) -> tuple[Array, Gradients]:
        """Return the gradient of the input, and those of the weights; one expert's own have no dimension of experts."""
        inputs, grads = self._inputs(weights, x), Gradients()
        grads[self._last] = partial(outer_sum, activated(inputs, self.kind), grad)
        total = np.zeros_like(x)
        found = activated_backward(grad @ self._own(weights[self._last]).T, inputs, self.kind)
        for name, of_input in zip(self._first, found, strict=True):
            total += of_input @ self._own(weights[name]).T
            grads[name] = partial(outer_sum, x, of_input)
            grads.update(bias_gradient(weights, f"{name}.bias", of_input))
        return total, grads

    @property
    def _first(self) -> tuple[str, ...]:
        """Return the names of the first matrices."""
        names = ("gate", "up") if self.kind == "swiglu" else ("up",)
        return tuple(self.prefix + name for name in names)

    @property
    def _last(self) -> str:
        """Return the name of the last matrix."""
        return f"{self.prefix}down"

    def _inputs(self, weights: UnitWeights, x: Array) -> tuple[Array, ...]:
        """Return the inputs of the activation function."""
        biases = (np.asarray(weights.bias(f"{name}.bias")) for name in self._first)
        return tuple(
            x @ self._own(weights[name]) + self._own(bias) for name, bias in zip(self._first, biases, strict=True)
        )

    def _own(self, weight: Array) -> Array:
        """Return an expert's own of the weights of several."""
        return weight if self.expert is None or not weight.ndim else cast("Array", weight[self.expert])


class Mlp(UnitArithmetic):
    """Norm, and two or three matrices with an activation function between them."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        self._dense = FeedForward(model.mlp)

    def inside(self, weights: UnitWeights, inner: Tokens) -> Array:
        """Return the output of some columns of the first matrices and the same rows of the last."""
        return self._dense(weights, inner.values)

    def after(self, weights: UnitWeights, inner: Tokens) -> Array | float:  # noqa: ARG002  (an MoE's needs it)
        """Return the last matrix's bias."""
        return weights.bias("down.bias")

    def inside_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Take the gradient back through some columns and rows."""
        return self._dense.backward(weights, inner.values, grad)

    def after_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array | float, Gradients]:  # noqa: ARG002  (as in after)
        """Return the bias's gradient."""
        return 0.0, bias_gradient(weights, "down.bias", grad)


_LOWEST = np.finfo(np.float64).min  # the highest logit of a part that is all padding


class Embedding(UnitArithmetic):
    """The table of tokens, and that of learned positions; its input are the tokens' numbers."""

    has_residual = False

    def before(self, weights: UnitWeights, x: Tokens) -> Tokens:  # noqa: ARG002  (there is no norm)
        """Return the numbers as they are."""
        return x

    def inside(self, weights: UnitWeights, inner: Tokens) -> Array:
        """Return the rows of the tokens that a part of the vocabulary has, zeros for the others."""
        row, is_here = rows_of(inner.values, weights["tokens"].shape[0], weights.part.index)
        return np.where(is_here[..., None], weights["tokens"][row], 0)

    def after(self, weights: UnitWeights, inner: Tokens) -> Array | float:
        """Return the rows of the positions."""
        return weights["positions"][inner.where] if "positions" in weights.arrays else 0.0

    def inside_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Return the gradient of the table; that of the tokens' numbers is nothing."""
        row, is_here = rows_of(inner.values, weights["tokens"].shape[0], weights.part.index)
        return np.zeros(inner.values.shape), {"tokens": partial(_of_table, weights["tokens"], row, is_here, grad)}

    def after_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array | float, Gradients]:
        """Return the gradient of the table of positions."""
        if "positions" not in weights.arrays:
            return 0.0, {}
        table, where = weights["positions"], inner.where
        grad = grad.sum(axis=0) if where.ndim == 1 else grad
        return 0.0, {"positions": partial(_of_table, table, where, np.ones(where.shape, dtype=np.bool_), grad)}

    def before_backward(self, weights: UnitWeights, x: Tokens, grad: Array) -> tuple[Array, Gradients]:  # noqa: ARG002  (as in before)
        """Return nothing: numbers of tokens have no gradient."""
        return grad, {}


class Head(UnitArithmetic):
    """The final norm and the multiplication with the vocabulary."""

    has_residual = False

    def inside(self, weights: UnitWeights, inner: Tokens) -> Array:
        """Return the logits of some rows of the vocabulary."""
        return inner.values @ weights["tokens"]

    def after(self, weights: UnitWeights, inner: Tokens) -> Array | float:  # noqa: ARG002  (there is nothing)
        """Return nothing."""
        return 0.0

    def inside_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Take the gradient of some logits back."""
        return grad @ weights["tokens"].T, {"tokens": partial(outer_sum, inner.values, grad)}

    def after_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array | float, Gradients]:  # noqa: ARG002  (as in after)
        """Return nothing."""
        return 0.0, {}


def rows_of(numbers: Any, num_rows: int, part: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the row of each token within a part of a table, and whether it is there; row 0 where it is not."""
    row = np.asarray(numbers, dtype=np.int64) - part * num_rows
    is_here = (row >= 0) & (row < num_rows)
    return np.where(is_here, row, 0), is_here


def _of_table(table: Array, rows: Any, is_here: Any, grad: Array) -> Array:
    """Return the gradient of a table's rows, each summed over the tokens that looked it up."""
    total = np.zeros_like(table)
    np.add.at(total, rows[is_here], grad[is_here])
    return total


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
