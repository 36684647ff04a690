"""The elementary functions of a transformer's units, with their backwards: norms, activation functions, softmax.

All functions take tokens along any leading dimensions and work on the last one. A backward takes the gradient of the
output first. Left out: dropout.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from minitrain.proof.arithmetic import Array

EPSILON = 1e-5
"""What norms add to variance and mean square."""

_GELU = math.sqrt(2 / math.pi), 0.044715
"""The constants of the tanh form (Hendrycks and Gimpel 2016, section 2), which GPT-2 and Megatron-LM use."""


def normalised(x: Array, kind: str) -> Array:
    """Return tokens without their scale, and for "layernorm" without their mean (Ba et al. 2016; Zhang 2019)."""
    centred = _centred(x, kind)
    return centred / _scale(centred)


def normalised_backward(grad: Array, x: Array, kind: str) -> Array:
    """Return the gradient of a norm's input."""
    centred = _centred(x, kind)
    scale = _scale(centred)
    found = centred / scale
    along = (grad * found).mean(axis=-1, keepdims=True)
    return _centred(grad - found * along, kind) / scale


def _centred(x: Array, kind: str) -> Array:
    """Return tokens without their mean if the norm takes it away."""
    return x - x.mean(axis=-1, keepdims=True) if kind == "layernorm" else x


def _scale(centred: Array) -> Array:
    """Return what a norm divides by."""
    return cast("Array", np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON))


def activated(inputs: tuple[Array, ...], kind: str) -> Array:
    """Return an activation function of one input, or "swiglu" of a gate and another (Shazeer 2020)."""
    if kind == "swiglu":
        gate, up = inputs
        return gate * _sigmoid(gate) * up
    (x,) = inputs
    if kind == "relu":
        return np.maximum(x, 0)
    return cast("Array", x * (1 + np.tanh(_GELU[0] * (x + _GELU[1] * x**3))) / 2)


def activated_backward(grad: Array, inputs: tuple[Array, ...], kind: str) -> tuple[Array, ...]:
    """Return the gradients of an activation function's inputs."""
    if kind == "swiglu":
        gate, up = inputs
        share = _sigmoid(gate)
        return grad * up * share * (1 + gate * (1 - share)), grad * gate * share
    (x,) = inputs
    if kind == "relu":
        return (grad * (x > 0),)
    bend = np.tanh(_GELU[0] * (x + _GELU[1] * x**3))
    slope = _GELU[0] * (1 + 3 * _GELU[1] * x**2)
    return (grad * ((1 + bend) + x * (1 - bend**2) * slope) / 2,)


def _sigmoid(x: Array) -> Array:
    """Return the logistic function."""
    return (1 + np.tanh(x / 2)) / 2


def softmax(x: Array) -> Array:
    """Return probabilities."""
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return cast("Array", weights / weights.sum(axis=-1, keepdims=True))


def outer_sum(x: Array, grad: Array) -> Array:
    """Return the gradient of a matrix that multiplies tokens: their outer products with a gradient, summed."""
    return x.reshape(-1, x.shape[-1]).T @ grad.reshape(-1, grad.shape[-1])


def over_tokens(grad: Array) -> Array:
    """Return the gradient of what is added to every token: the sum over all of them."""
    return cast("Array", grad.reshape(-1, grad.shape[-1]).sum(axis=0))
