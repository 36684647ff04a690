"""Loading layers whose experts are divided among ranks."""

from collections.abc import Iterable
from typing import Any

from minitrain.lib import Model
from minitrain.transport.groups import Group

Held = dict[Any, tuple[int, Group]]
"""By key of the stores: the layer, and the ranks that hold the same."""


def load_layers(
    model: Model, layers: Iterable[int], everyone: Group, parts: Group, replicas: Group, shard_states: bool
) -> Held:
    """Load layers, and this rank's part of the experts of those that have some.

    Args:
        model: the rank. Experts are in its stores by the keys ("experts", layer), all else by the layer.
        layers: which layers.
        everyone: the ranks that train them; all hold the same but for experts.
        parts: the ranks among which experts are divided.
        replicas: the ranks that hold the same experts.
        shard_states: whether optimizer states are divided among the ranks that hold the same (ZeRO-1).

    Returns:
        What was loaded: for each key of the stores the layer, and the ranks that hold the same.
    """
    weights, opt_states = model.weights, model.opt_states
    held: Held = {}
    for layer in layers:
        held[layer] = layer, everyone
        if model.has_experts(layer):
            held["experts", layer] = layer, replicas
            weights[layer], opt_states[layer] = model.load_router(layer)
            weights["experts", layer], opt_states["experts", layer] = model.load_experts(
                layer, part=parts.index, num_parts=parts.size
            )
        else:
            weights[layer], opt_states[layer] = model.load_weights(layer)
    if shard_states:
        for key, (_, group) in held.items():
            opt_states[key] = opt_states[key].shard(group.index, group.size)
    return held
