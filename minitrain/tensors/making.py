"""Tensors as the engine makes them, by the thousand: whole layers, with their size.

Each function does what the class of its tensor does, in less time: calling a class looks for its `__init__`, which in a
strict run also looks at who calls. The size goes into the slot that measuring would fill. tests/tensors/test_tensors.py
checks that results are the same.
"""

from __future__ import annotations

from minitrain.tensors.kinds import Activation, ActivationGrad, OptState, Weight, WeightGrad

_new = object.__new__
_WHOLE = frozenset([0])


def make_weight(layer: int, layers: int, step: int, shards: frozenset[int], num_shards: int, units: int) -> Weight:
    """Return a weight that takes so many units of memory."""
    weight = _new(Weight)
    weight.layer = layer
    weight.layers = layers
    weight.step = step
    weight.shards = shards
    weight.num_shards = num_shards
    weight._units = units  # type: ignore[misc]  # a slot of the base, as those below
    return weight


def make_opt_state(layer: int, layers: int, step: int, shards: frozenset[int], num_shards: int, units: int) -> OptState:
    """Return an optimizer state that takes so many units of memory."""
    state = _new(OptState)
    state.layer = layer
    state.layers = layers
    state.step = step
    state.shards = shards
    state.num_shards = num_shards
    state._units = units  # type: ignore[misc]
    return state


def make_weight_grad(layer: int, layers: int, samples: frozenset[int], total_samples: int, units: int) -> WeightGrad:
    """Return a whole weight gradient that takes so many units of memory."""
    grad = _new(WeightGrad)
    grad.layer = layer
    grad.layers = layers
    grad.samples = samples
    grad.total_samples = total_samples
    grad.shards = _WHOLE
    grad.num_shards = 1
    grad._units = units  # type: ignore[misc]
    return grad


def make_activation(layer: int, layers: int, samples: frozenset[int], total_samples: int, units: int) -> Activation:
    """Return an activation that takes so many units of memory."""
    activation = _new(Activation)
    activation.layer = layer
    activation.layers = layers
    activation.samples = samples
    activation.total_samples = total_samples
    activation._units = units  # type: ignore[misc]
    return activation


def make_activation_grad(
    layer: int, layers: int, samples: frozenset[int], total_samples: int, units: int
) -> ActivationGrad:
    """Return an activation gradient that takes so many units of memory."""
    grad = _new(ActivationGrad)
    grad.layer = layer
    grad.layers = layers
    grad.samples = samples
    grad.total_samples = total_samples
    grad._units = units  # type: ignore[misc]
    return grad
