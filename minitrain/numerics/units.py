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
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast, final

import numpy as np

from minitrain.numerics.arithmetic import Array
from minitrain.numerics.elementary import (
    activated,
    activated_backward,
    normalised,
    normalised_backward,
    outer_sum,
    over_tokens,
)
from minitrain.numerics.tokens import Tokens
from minitrain.numerics.unit_weights import UnitWeights
from minitrain.workloads.transformer import Transformer

Gradients = dict[str, Callable[[], Array]]
"""Gradients of weights by name, each to be computed when it is wanted."""


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


@final
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
