"""Loading layers whose experts are divided among ranks."""

from collections.abc import Iterable
from typing import Any

from minitrain.engine.protocol import Group
from minitrain.lib import Model, OptState, Weight

Held = dict[Any, tuple[int, Group]]
"""By key of the stores: the layer, and the ranks that hold the same."""


def without_travel(recompute: str) -> str:
    """Return what backward computes again of layers with experts where no token is to travel again for that."""
    return "+".join(module for module in recompute.split("+") if module not in ("full", "moe")) or "none"


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
    held: Held = {}

    def keep(key: Any, group: Group, loaded: tuple[Weight, OptState]) -> None:
        model.weights[key], opt_state = loaded
        model.opt_states[key] = opt_state.shard(group.index, group.size) if shard_states else opt_state
        held[key] = opt_state.layer, group

    for layer in layers:
        if model.has_experts(layer):
            keep(layer, everyone, model.load_router(layer))
            experts = model.load_experts(layer, part=parts.index, num_parts=parts.size)
            keep(("experts", layer), replicas, experts)
        else:
            keep(layer, everyone, model.load_weights(layer))
    return held
