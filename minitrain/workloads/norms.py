"""The norms of attention, MLP and experts, which all place them alike.

It is a file of its own, since the units and what prices them share it.
"""

from __future__ import annotations

from collections.abc import Iterator

from minitrain.workloads.architecture import Architecture
from minitrain.workloads.shapes import SavedTensor, WeightShape, norm_weights


def unit_norms(model: Architecture) -> Iterator[WeightShape]:
    """Yield the weights of a unit's norms: one, before it or behind it, or both."""
    weights = norm_weights(model.hidden_size, has_bias=model.norm_bias)
    yield from weights
    for weight in weights if has_second_norm(model) else ():
        yield WeightShape(f"second_{weight.name}", weight.shape, is_norm=True)


def has_second_norm(model: Architecture) -> bool:
    """Return whether units have a norm behind them beside that before them."""
    return model.norm_placement == "both"


def saved_by_second_norm(model: Architecture, module: str) -> Iterator[SavedTensor]:
    """Yield what the norm behind a unit saves, where there is one before it too: its input, made by a module."""
    if has_second_norm(model):
        yield SavedTensor("second norm input", model.hidden_size, model.precision.activation_bytes, None, (module,))
