"""The trained model: y = tanh(x) W layer after layer, and a quadratic loss.

The tanh stands before the matrix, so that the gradient of the weight needs no weight, as `Model.backward_weight` has
it: with x the inputs of some samples (one row each) and g the loss's gradient with respect to y, that of W is
tanh(x)^T g, and that of x is (g W^T) (1 - tanh(x)^2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def forward(x: Array, weight: Array) -> Array:
    """Return a layer's output."""
    return np.asarray(np.tanh(x) @ weight)


def backward_input(x: Array, grad: Array, weight: Array) -> Array:
    """Return the gradient with respect to a layer's input."""
    return np.asarray((grad @ weight.T) * (1 - np.tanh(x) ** 2))


def backward_weight(x: Array, grad: Array) -> Array:
    """Return the gradient with respect to a layer's weight, summed over the rows of x."""
    return np.tanh(x).T @ grad


def loss_gradient(output: Array, target: Array, global_batch_size: int) -> Array:
    """Return the gradient of the mean over the global batch of |output - target|^2 / 2, for some of its samples."""
    return np.asarray((output - target) / global_batch_size)
