"""Steps of layers whose experts are shared: how they are recorded, and how they are replayed.

`forward`, `backward` and `all_to_all` of copies of tokens are steps like those of other tensors (`recorder`, `replay`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minitrain.grading.recorded_attention import RecordedAttention
from minitrain.rank.model import Model
from minitrain.tensors import Activation, ActivationGrad, Weight
from minitrain.tensors.expert_load import as_imbalance
from minitrain.tensors.placed import (
    ExpertOptState,
    ExpertOutputsGrad,
    ExpertWeight,
    RoutedTokens,
    RouterGrad,
    RouterOptState,
    RouterWeight,
)

_ROUTED_BY_DEFAULT: dict[str, Any] = {"imbalance": 1, "capacity_factor": None, "drop_tokens": True}
"""What `Model.route` takes where a strategy says nothing of it."""


class RecordedExperts(RecordedAttention):
    """The operations around experts of a rank that records; see `minitrain.grading.recorder.RecordingModel`."""

    def load_router(self, layer: int, shard: int = 0, num_shards: int = 1) -> tuple[RouterWeight, RouterOptState]:
        """Record the load of a router piece."""
        made = super().load_router(layer, shard, num_shards)
        self._write("load_router", layer, shard, num_shards, made=made)
        return made

    def load_experts(
        self, layer: int, shard: int = 0, num_shards: int = 1, *, part: int = 0, num_parts: int = 1
    ) -> tuple[ExpertWeight, ExpertOptState]:
        """Record the load of a part of the experts."""
        made = super().load_experts(layer, shard, num_shards, part=part, num_parts=num_parts)
        self._write("load_experts", layer, shard, num_shards, part, num_parts, made=made)
        return made

    def route(self, layer: int, inp: Activation, weight: Weight, num_parts: int, **how: Any) -> RoutedTokens:
        """Record where tokens are sent."""
        made = super().route(layer, inp, weight, num_parts, **how)
        known = _ROUTED_BY_DEFAULT | how
        known["imbalance"] = as_imbalance(known["imbalance"])
        self._write("route", layer, inp, weight, num_parts, known, made=[made])
        return made

    def combine(self, layer: int, inp: Activation, outputs: Activation, weight: Weight) -> Activation:
        """Record that outputs are added up."""
        made = super().combine(layer, inp, outputs, weight)
        self._write("combine_outputs", layer, inp, outputs, weight, made=[made])
        return made

    def backward_combine(
        self, layer: int, inp: Activation, outputs: Activation, grad: ActivationGrad
    ) -> ExpertOutputsGrad:
        """Record the first step back."""
        made = super().backward_combine(layer, inp, outputs, grad)
        self._write("backward_combine", layer, inp, outputs, grad, made=[made])
        return made

    def backward_route(
        self, layer: int, inp: Activation, grad: ActivationGrad, tokens_grad: ActivationGrad, weight: Weight
    ) -> tuple[RouterGrad, ActivationGrad]:
        """Record the last step back."""
        made = super().backward_route(layer, inp, grad, tokens_grad, weight)
        self._write("backward_route", layer, inp, grad, tokens_grad, weight, made=made)
        return made


PLAYED = frozenset({"load_router", "load_experts", "route", "combine_outputs", "backward_combine", "backward_route"})
"""The steps that `play` does."""


def play(model: Model, kind: str, what: Sequence[Any], value: Callable[[Any], Any]) -> Any:
    """Do a step again.

    Args:
        model: the rank of the replay.
        kind: one of `PLAYED`.
        what: the rest of the step.
        value: returns the tensor that a step names.

    Returns:
        The results.
    """
    layer, *names = what
    if kind == "load_router":
        return model.load_router(layer, *names)
    if kind == "load_experts":
        shard, num_shards, part, num_parts = names
        return model.load_experts(layer, shard, num_shards, part=part, num_parts=num_parts)
    if kind == "route":
        inp, weight, num_parts, how = names
        known = {name: how[name] for name in _ROUTED_BY_DEFAULT}
        return model.route(layer, value(inp), value(weight), num_parts, **known)
    operation = model.combine if kind == "combine_outputs" else getattr(model, kind)
    return operation(layer, *map(value, names))
