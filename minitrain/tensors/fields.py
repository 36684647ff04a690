"""The fields of tensors, and copies of them.

The functions of the five kinds are written out and each has a code object of its own, since Python reads the slots of
one class at one place in half the time of `attrgetter`. A strict run asks for fields at every operation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from minitrain.tensors.compressed import COMPRESSED_KINDS
from minitrain.tensors.kinds import Activation, ActivationGrad, OptState, Tensor, Weight, WeightGrad
from minitrain.tensors.local import LOCAL_KINDS
from minitrain.tensors.placed import PLACED_KINDS
from minitrain.tensors.tied import TableGrad

T = TypeVar("T")


def fields_of_weight(weight: Weight) -> tuple[Any, ...]:
    """Return the values of a weight's fields in order."""
    return weight.layer, weight.layers, weight.step, weight.shards, weight.num_shards


def fields_of_opt_state(state: OptState) -> tuple[Any, ...]:
    """Return the values of an optimizer state's fields in order."""
    return state.layer, state.layers, state.step, state.shards, state.num_shards


def fields_of_weight_grad(grad: WeightGrad) -> tuple[Any, ...]:
    """Return the values of a weight gradient's fields in order."""
    return grad.layer, grad.layers, grad.samples, grad.total_samples, grad.shards, grad.num_shards


def fields_of_activation(activation: Activation) -> tuple[Any, ...]:
    """Return the values of an activation's fields in order."""
    return activation.layer, activation.layers, activation.samples, activation.total_samples


def fields_of_activation_grad(grad: ActivationGrad) -> tuple[Any, ...]:
    """Return the values of an activation gradient's fields in order."""
    return grad.layer, grad.layers, grad.samples, grad.total_samples


FIELDS: Mapping[type[Any], Callable[[Any], tuple[Any, ...]]] = {
    Weight: fields_of_weight,
    OptState: fields_of_opt_state,
    Activation: fields_of_activation,
    ActivationGrad: fields_of_activation_grad,
    WeightGrad: fields_of_weight_grad,
    **{
        kind: attrgetter(*kind.__dataclass_fields__)
        for kind in (*PLACED_KINDS, *LOCAL_KINDS, *COMPRESSED_KINDS, TableGrad)
    },
}
"""What returns the values of all fields of a tensor in order, by kind."""


def fields_of(tensor: Any) -> tuple[Any, ...]:
    """Return the values of all fields of a tensor in order."""
    kind = tensor.__class__
    read = FIELDS.get(kind) or attrgetter(*kind.__dataclass_fields__)  # a subclass of a user's
    return read(tensor)


def clone(value: T) -> T:
    """Return an equal tensor, an object of its own; anything else as it is."""
    kind = value.__class__
    try:
        return kind(*FIELDS[kind](value))
    except KeyError:  # a subclass, or no tensor
        return copy.copy(value) if isinstance(value, Tensor) else value
