"""Passes of a microbatch through layers, whatever the order of the pipeline: the one description of a stage's work.

A pass computes, and yields each communication that it waits for; it is sent the result. So whoever runs it decides what
the rank does meanwhile: nothing, or another pass (`minitrain.schedules.pipeline`). Tensors are kept in the model's
stores by layer and microbatch, from F until B, or until W where the backward is split; then the gradients of outputs
are kept too, from I until W.

Layers are taken whole, or in parts: g and its conjugate of Megatron's figures (Shoeybi et al. 2019, figure 3;
Korthikanti et al. 2022, figure 5). An attention whose sequence is cut between ranks is taken in steps
(`minitrain.schedules.context_passes`), and so are layers whose experts are divided among ranks
(`minitrain.schedules.expert_passes`); of these two, what cannot be split is computed with the gradient of the input.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from minitrain.rank.model import Model
from minitrain.schedules.context_passes import GatheredAttention, RingAttention
from minitrain.schedules.division import Division
from minitrain.schedules.expert_passes import ExpertPasses, Routing
from minitrain.schedules.held_layers import HeldLayers, Steps
from minitrain.source_lines import count_as_strategy
from minitrain.workloads.workload import takes_again

count_as_strategy(__file__)

_STEPWISE = {"p2p": RingAttention, "all_gather": GatheredAttention}


class LayerPasses:
    """The passes of a rank.

    Args:
        model: the rank.
        division: how ranks divide layers.
        held: what the rank holds of them.
        routing: how tokens are sent to experts.
        overlap_parts: whether the gradient of a layer's input is summed over the parts while that of its weight is
            computed.
        in_pairs: whether a pass may go on while tokens of another one travel.
    """

    def __init__(
        self,
        model: Model,
        division: Division,
        held: HeldLayers,
        routing: Routing,
        *,
        overlap_parts: bool = False,
        in_pairs: bool = False,
    ) -> None:
        self._model, self._held, self._parts = model, held, division.parts
        self._shards_sequence = division.shards_sequence
        self._overlaps = overlap_parts and division.parts.size > 1
        self._attention = _STEPWISE[division.degrees.cp_comm_type](model, division) if division.sequence else None
        self._experts = ExpertPasses(model, division.experts, held, routing, in_pairs) if division.experts else None
        self._in_parts = division.parts.size > 1 and not model.layers_are_alike

    def forward(self, layers: Sequence[int], i: int) -> Steps:
        """Take a microbatch forward through some layers."""
        model, activations = self._model, self._model.activations
        for layer in layers:
            if self._has_experts(layer):
                yield from self._experts.forward(layer, i)  # type: ignore[union-attr]  # there are some
                continue
            weight = yield from self._held.whole(layer)
            inp = yield from self._gathered(activations, activations[layer, i], layer)
            if self._in_steps(layer):
                made = yield from self._attention.forward(layer, i, inp, weight, model.recompute)  # type: ignore[union-attr]  # the same
            else:
                made = model.forward(layer, inp, weight)
            activations[layer + 1, i] = yield from self._total(made, layer + 1)
            del inp, made, weight
            activations.pop("gathered", None)
            self._held.drop_whole(layer)

    def backward(self, layers: Sequence[int], i: int, kind: str) -> Steps:
        """Take the gradient of a microbatch back: kind B, or I, without the gradients of weights."""
        for layer in reversed(layers):
            if self._has_experts(layer):
                yield from self._experts.backward(layer, i, kind)  # type: ignore[union-attr]  # there are some
            else:
                yield from self._backward(layer, i, kind)

    def backward_weight(self, layers: Sequence[int], i: int) -> Steps:
        """Compute the weights' gradients that kind I has left out, and free what was kept for them."""
        model, activations, grads = self._model, self._model.activations, self._model.grad_activations
        for layer in reversed(layers):
            if self._has_experts(layer):
                yield from self._experts.backward_weight(layer, i)  # type: ignore[union-attr]  # there are some
            elif not self._in_steps(layer):
                inp = yield from self._gathered(activations, activations[layer, i], layer)
                grad = yield from self._gathered(grads, grads[layer, i], layer + 1)
                part = (yield from self._held.whole(layer)) if self._parts.size > 1 else None
                model.grad_weights["new"] = model.backward_weight(layer, inp, grad, part)
                del inp, grad, part
                self._held.drop_whole(layer)
                self._release()
                self._add(layer, i)
                yield from self._held.reduce(layer)

    def _has_experts(self, layer: int) -> bool:
        """Return whether the experts of a layer are divided among ranks."""
        return self._experts is not None and self._model.has_experts(layer)

    def _is_repeated(self, layer: int) -> bool:
        """Return whether backward takes all of a layer again, so that its parts are summed again too."""
        model = self._model
        if not 0 < layer < model.num_layers - 1:
            return False
        own = "self_attn" if model.has_attention(layer) else "moe" if model.has_experts(layer) else "mlp"
        return takes_again(model.recompute, own)

    def _in_steps(self, layer: int) -> bool:
        """Return whether a layer is an attention whose keys and values are on several ranks."""
        return self._attention is not None and self._model.has_attention(layer)

    def _backward(self, layer: int, i: int, kind: str) -> Steps:
        """Take the gradient back through a layer, or a part of one."""
        model, activations, grads = self._model, self._model.activations, self._model.grad_activations
        weight = yield from self._held.whole(layer)
        inp = yield from self._gathered(activations, activations[layer, i], layer)
        in_steps = self._in_steps(layer)
        if self._in_parts and not in_steps and self._is_repeated(layer):
            yield from self._total(model.forward(layer, inp, weight, recompute="none"), layer + 1)
        grad = yield from self._gathered(grads, grads[layer, i], layer + 1)
        if in_steps:
            made = yield from self._attention.backward(layer, i, inp, grad, weight, self._total)  # type: ignore[union-attr]  # there are steps
            model.grad_weights["new"], grads["new"] = made
            del made
        elif self._overlaps and layer > 0 and kind == "B":
            summing = model.launch(self._sum_of(model.backward_input(layer, inp, grad, weight), layer))
            model.grad_weights["new"] = model.backward_weight(layer, inp, grad, weight)
            grads[layer - 1, i] = yield summing
        elif kind == "B":
            model.grad_weights["new"], grads["new"] = model.backward(layer, inp, grad, weight)
        else:
            grads["new"] = model.backward_input(layer, inp, grad, weight)
        del inp, grad, weight
        self._held.drop_whole(layer)
        self._release()
        is_whole = "new" in model.grad_weights
        if is_whole:
            self._add(layer, i)
        if "new" in grads:
            grads[layer - 1, i] = yield from self._complete(grads.pop("new"), layer)
        if is_whole:
            yield from self._held.reduce(layer)

    def _add(self, layer: int, i: int) -> None:
        """Add the gradient of a weight, and free what it was made of."""
        del self._model.activations[layer, i], self._model.grad_activations[layer, i]
        self._held.add(layer)

    def _complete(self, grad_inp: Any, layer: int) -> Steps:
        """Return the gradient of a layer's input, summed over the parts; nobody needs that of the model's input."""
        return (yield from self._total(grad_inp, layer)) if layer else grad_inp

    def _gathered(self, store: MutableMapping[Any, Any], tensor: Any, border: int) -> Steps:
        """Return what a layer takes: shards of the sequence are gathered (g in the paper's figure)."""
        if not self._is_sharded(border):
            return tensor
        store["gathered"] = yield self._model.all_gather(tensor, border, group=self._parts)
        return store["gathered"]

    def _release(self) -> None:
        """Free what was gathered."""
        for store in (self._model.activations, self._model.grad_activations):
            store.pop("gathered", None)

    def _total(self, partial: Any, border: int) -> Steps:
        """Return the sum over the parts of a layer, in shards of the sequence if these are wanted (g's conjugate)."""
        return partial if self._parts.size == 1 else (yield self._sum_of(partial, border))

    def _sum_of(self, partial: Any, border: int) -> Any:
        """Return the operation that makes that sum."""
        sum_up = self._model.reduce_scatter if self._is_sharded(border) else self._model.all_reduce
        return sum_up(partial, border, group=self._parts)

    def _is_sharded(self, border: int) -> bool:
        """Return whether what passes into a layer is in shards: the model's input and output never are."""
        return self._shards_sequence and 0 < border < self._model.num_layers
