"""The step on one device, written a second time: `jax.grad` of the whole model, and textbook optimizers.

It shares nothing with `minitrain.numerics.arithmetic` but the problem's data, so that an error in either shows. Only
proofs import it, since it imports JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from minitrain.numerics.arithmetic import Adam, Array
from minitrain.numerics.problem import Problem

_LAYERS, _SAMPLES = 16, 64  # sizes are padded to multiples of these, so that most proofs share one compilation


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Weights and optimizer states after one training step.

    Args:
        weights: by layer, one flat array after the step.
        states: by layer, the optimizer's state after the step, moments x elements.
    """

    weights: Sequence[Array]
    states: Sequence[Array]


@lru_cache(maxsize=256)
def reference(problem: Problem, num_layers: int, global_batch_size: int) -> Reference:
    """Return the outcome of one step on a single device over the whole batch."""
    layers, samples = _round_up(num_layers, _LAYERS), _round_up(global_batch_size, _SAMPLES)
    weights = np.zeros((layers, problem.width, problem.width))
    weights[:num_layers] = [problem.initial_weight(layer) for layer in range(num_layers)]
    inputs, targets = np.zeros((2, samples, problem.width))
    inputs[:global_batch_size] = problem.inputs(global_batch_size)
    targets[:global_batch_size] = problem.targets(global_batch_size)
    with jax.enable_x64(True):
        step = _gradient(
            weights, np.arange(layers) < num_layers, inputs, targets, np.arange(samples), global_batch_size
        )
        grads = np.asarray(step)[:num_layers].reshape(num_layers, -1)
    before = weights[:num_layers].reshape(num_layers, -1)
    steps = [after_step(problem.optimizer, *pair) for pair in zip(before, grads, strict=True)]
    return Reference([weight for weight, _ in steps], [state for _, state in steps])


def _round_up(count: int, multiple: int) -> int:
    """Return the next multiple."""
    return -(-count // multiple) * multiple


def _loss(weights: Any, present: Any, inputs: Any, targets: Any, samples: Any, batch_size: Any) -> Any:
    """Return the loss of a padded model on a padded batch: absent layers and samples change nothing."""

    def layer(x: Any, parameters: tuple[Any, Any]) -> tuple[Any, None]:
        weight, is_there = parameters
        return jnp.where(is_there, jnp.tanh(x) @ weight, x), None

    outputs, _ = jax.lax.scan(layer, inputs, (weights, present))
    losses = jnp.sum((outputs - targets) ** 2, axis=1) / 2
    return jnp.sum(jnp.where(samples < batch_size, losses, 0)) / batch_size


_gradient = jax.jit(jax.grad(_loss))


def after_step(optimizer: Any, weights: Array, grads: Array) -> tuple[Array, Array]:
    """Return weights and state after the optimizer's first step.

    Its state is zero before, so that each moment has one term.
    """
    if isinstance(optimizer, Adam):
        first, second = (1 - optimizer.beta1) * grads, (1 - optimizer.beta2) * grads * grads
        mean, variance = first / (1 - optimizer.beta1), second / (1 - optimizer.beta2)
        return weights - optimizer.rate * mean / (variance**0.5 + optimizer.epsilon), np.stack([first, second])
    return weights - optimizer.rate * grads, grads[None]
