"""Passes through layers whose experts are divided among ranks: tokens travel to experts and back, forward and backward.

In pairs of passes, one computes while tokens of the other travel, as in DeepSeek-V3 (DeepSeek-AI 2024, figure 4).
"""

from __future__ import annotations

from collections.abc import Generator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from minitrain.rank.model import Model
from minitrain.rank.operations import Launched
from minitrain.schedules.held_layers import HeldLayers, Steps
from minitrain.source_lines import count_as_strategy
from minitrain.transport.groups import Group
from minitrain.workloads.workload import takes_again

count_as_strategy(__file__)


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens are sent to experts: see `Model.route`."""

    imbalance: float | Sequence[float] = 1
    capacity_factor: float | None = None


@dataclass(frozen=True, slots=True)
class Travelling:
    """An exchange of tokens that was launched; another pass may go on until it is done."""

    launched: Launched[Any]

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.launched.__await__()


class ExpertPasses:
    """The passes of a rank through such layers.

    Args:
        model: the rank.
        group: the ranks that exchange tokens.
        held: what the rank holds.
        routing: how tokens are sent.
        in_pairs: whether another pass may go on while tokens travel.
    """

    def __init__(self, model: Model, group: Group, held: HeldLayers, routing: Routing, in_pairs: bool) -> None:
        self._model, self._group, self._held = model, group, held
        self._routing, self._in_pairs = routing, in_pairs

    def forward(self, layer: int, i: int) -> Steps:
        """Take a microbatch forward through a layer."""
        model, activations = self._model, self._model.activations
        activations[layer + 1, i] = yield from self._forward(layer, i, model.recompute)
        if takes_again(model.recompute, "moe"):  # tokens will travel again
            del activations["tokens", layer, i], activations["made", layer, i]

    def _forward(self, layer: int, i: int, recompute: str) -> Steps:
        """Return what a layer makes of a microbatch."""
        model, activations, routing = self._model, self._model.activations, self._routing
        tokens, made = ("tokens", layer, i), ("made", layer, i)
        router = yield from self._held.whole(layer)
        activations[tokens] = model.route(
            layer,
            activations[layer, i],
            router,
            self._group.size,
            imbalance=routing.imbalance,
            capacity_factor=routing.capacity_factor,
            recompute=recompute,
        )
        yield from self._exchange(activations, tokens, layer)
        experts = yield from self._held.whole(("experts", layer))
        activations[made] = model.forward(layer, activations[tokens], experts, recompute=recompute)
        del experts
        self._held.drop_whole(("experts", layer))
        yield from self._exchange(activations, made, layer)
        combined = model.combine(layer, activations[layer, i], activations[made], router)
        del router
        self._held.drop_whole(layer)
        return combined

    def backward(self, layer: int, i: int, kind: str) -> Steps:
        """Take the gradient of a microbatch back through a layer: kind B, or I, without the experts' weights."""
        model, activations, grads = self._model, self._model.activations, self._model.grad_activations
        if ("made", layer, i) not in activations:
            yield from self._forward(layer, i, "none")
        tokens, made, inp, grad = ("tokens", layer, i), ("made", layer, i), activations[layer, i], grads[layer, i]
        grads[made] = model.backward_combine(layer, inp, activations[made], grad)
        del activations[made]
        yield from self._exchange(grads, made, layer)
        experts = yield from self._held.whole(("experts", layer))
        if kind == "B" and not self._in_pairs:
            model.grad_weights["new"], grads[tokens] = model.backward(layer, activations[tokens], grads[made], experts)
            self._held.drop_whole(("experts", layer))
            yield from self._add_experts(layer, i)
            yield from self._exchange(grads, tokens, layer)
        else:
            grads[tokens] = model.backward_input(layer, activations[tokens], grads[made], experts)
            travelling = model.launch(model.all_to_all(grads[tokens], layer, group=self._group))
            self._held.drop_whole(("experts", layer))
            if kind == "B":
                yield from self.backward_weight(layer, i)
            grads[tokens] = yield Travelling(travelling)
        del experts
        router = yield from self._held.whole(layer)
        model.grad_weights["new"], grads[layer - 1, i] = model.backward_route(layer, inp, grad, grads[tokens], router)
        del grads[tokens], inp, grad, activations[layer, i], grads[layer, i]
        del router
        self._held.drop_whole(layer)
        self._held.add(layer)
        yield from self._held.reduce(layer)

    def backward_weight(self, layer: int, i: int) -> Steps:
        """Compute the gradients of the experts' weights."""
        model, tokens, made = self._model, ("tokens", layer, i), ("made", layer, i)
        model.grad_weights["new"] = model.backward_weight(
            layer, model.activations[tokens], model.grad_activations[made]
        )
        yield from self._add_experts(layer, i)

    def _add_experts(self, layer: int, i: int) -> Steps:
        """Add the gradients of the experts' weights, and free what they were made of."""
        del self._model.activations["tokens", layer, i], self._model.grad_activations["made", layer, i]
        self._held.add(("experts", layer))
        yield from self._held.reduce(("experts", layer))

    def _exchange(self, store: MutableMapping[Any, Any], key: Any, layer: int) -> Steps:
        """Let copies of tokens travel, and store what arrives in their place."""
        operation = self._model.all_to_all(store[key], layer, group=self._group)
        store[key] = yield Travelling(self._model.launch(operation)) if self._in_pairs else operation
