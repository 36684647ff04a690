"""Passes of a microbatch through layers, whatever the order of the pipeline: the one description of a stage's work.

A pass computes, and yields each communication that it waits for; it is sent the result. So whoever runs it decides what
the rank does meanwhile: nothing, or another pass (`minitrain.search.schedules.pipeline`). Tensors are kept in the
model's stores by layer and microbatch, from F until B, or until W where the backward is split; then the gradients of
outputs are kept too, from I until W.

Layers are taken whole, or in parts: g and its conjugate of Megatron's figures (Shoeybi et al. 2019, figure 3;
Korthikanti et al. 2022, figure 5). An attention whose sequence is cut between ranks is taken in steps, and
so are layers whose experts are divided among ranks; of these two, what cannot be split is computed with the gradient of
the input.

Passes through an attention whose sequence is cut between ranks: keys and values come round a ring, or by a gather.

The attention's own keys and values are kept for backward, in the store of activations under ("own", layer, microbatch).

Passes through layers whose experts are divided among ranks: tokens travel to experts and back, forward and backward.

In pairs of passes, one computes while tokens of the other travel, as in DeepSeek-V3 (DeepSeek-AI 2024, figure 4). There
the gradients of tokens travel back while those of experts' weights are computed; elsewhere afterwards, as Megatron-Core
delays gradients of weights in pairs alone (`delay_wgrad_compute` in its `core/transformer/transformer_config.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from minitrain.engine.model import Model
from minitrain.engine.operations import Launched
from minitrain.engine.protocol import Group
from minitrain.search.schedules.held_layers import Division, HeldLayers, Steps
from minitrain.source_lines import count_as_strategy
from minitrain.workloads.workload import takes_again

count_as_strategy(__file__)

Total = Callable[[Any, int], Steps]
"""Sums what parts of a layer have made."""


class StepwiseAttention(ABC):
    """The passes through an attention, but for how keys and values travel.

    Args:
        model: the rank.
        division: how ranks divide layers.
    """

    def __init__(self, model: Model, division: Division) -> None:
        assert division.sequence is not None  # asked for where a sequence is shared
        self._model, self._division, self._sequence = model, division, division.sequence

    def forward(self, layer: int, i: int, x: Any, weight: Any, recompute: Any) -> Steps:
        """Return what an attention makes of a microbatch."""
        model, activations, own = self._model, self._model.activations, ("own", layer, i)
        activations[own] = model.keys_values(layer, x, weight, recompute=recompute)
        yield from self._attend(layer, x, own)
        if takes_again(recompute, "self_attn"):  # keys and values will be made, and travel, again
            del activations[own]
        return model.project(layer, x, weight, activations.pop("attended"))

    def backward(self, layer: int, i: int, x: Any, grad: Any, weight: Any, total: Total) -> Steps:
        """Return the gradients of the weight and of the input."""
        own = ("own", layer, i)
        if own not in self._model.activations:
            yield from total((yield from self.forward(layer, i, x, weight, "none")), layer + 1)
        grads = yield from self._attend_backward(layer, x, grad, weight, own)
        return self._model.backward_keys_values(layer, x, weight, *grads)

    @abstractmethod
    def _attend(self, layer: int, x: Any, own: Any) -> Steps:
        """Store what the queries get from all keys as "attended"."""

    @abstractmethod
    def _attend_backward(self, layer: int, x: Any, grad: Any, weight: Any, own: Any) -> Steps:
        """Return the gradients of the queries, and of the rank's own keys and values, which are freed."""


class GatheredAttention(StepwiseAttention):
    """Every rank gets the keys and values of the whole sequence (Llama 3, section 3.3.2)."""

    def _attend(self, layer: int, x: Any, own: Any) -> Steps:
        model, activations = self._model, self._model.activations
        activations["all"] = yield model.all_gather(activations[own], layer, group=self._sequence)
        activations["attended"] = model.attend(layer, x, activations["all"])
        del activations["all"]

    def _attend_backward(self, layer: int, x: Any, grad: Any, weight: Any, own: Any) -> Steps:
        model, activations, grads = self._model, self._model.activations, self._model.grad_activations
        gathering = model.launch(model.all_gather(activations[own], layer, group=self._sequence))
        grads["attended"] = model.backward_project(layer, x, grad, weight)
        activations["all"] = yield gathering
        grads["queries"], grads["all"] = model.backward_attend(layer, x, grads["attended"], activations["all"])
        del activations["all"], activations[own], grads["attended"]
        grads["own"] = yield model.reduce_scatter(grads.pop("all"), layer, group=self._sequence)
        return grads.pop("queries"), grads.pop("own")


class RingAttention(StepwiseAttention):
    """Blocks of keys and values go round the ranks of a sequence while queries see them (Liu et al. 2023, figure 2)."""

    def _attend(self, layer: int, x: Any, own: Any) -> Steps:
        model, activations, cp = self._model, self._model.activations, self._sequence.size
        block = activations[own]
        for step in range(cp):
            if step < cp - 1:
                sent, coming = self._pass_on(block, "block", layer, step, own[2])
            activations["attended"] = _add(activations.pop("attended", None), model.attend(layer, x, block))
            if step < cp - 1:
                yield sent
                block = activations["block"] = yield coming
        activations.pop("block", None)

    def _attend_backward(self, layer: int, x: Any, grad: Any, weight: Any, own: Any) -> Steps:
        model, activations, grads = self._model, self._model.activations, self._model.grad_activations
        cp, block = self._sequence.size, activations[own]
        grads["attended"] = model.backward_project(layer, x, grad, weight)
        grad_sent: Any = None
        grad_coming: Any = None
        for step in range(cp):
            if step < cp - 1:
                sent, coming = self._pass_on(block, "block", layer, step, own[2])
            here, grads["block"] = model.backward_attend(layer, x, grads["attended"], block)
            grads["queries"] = _add(grads.pop("queries", None), here)
            del here
            if step > 0:  # what the ranks before have added up
                yield grad_sent
                grads["block"] = (yield grad_coming) + grads.pop("block")
            grad_sent, grad_coming = self._pass_on(grads.pop("block"), "grad", layer, step, own[2])
            if step < cp - 1:
                yield sent
                block = activations["block"] = yield coming
        yield grad_sent
        grads["block"] = yield grad_coming  # the gradient of the rank's own block is home
        del activations["block"], activations[own], grads["attended"]
        return grads.pop("queries"), grads.pop("block")

    def _pass_on(self, tensor: Any, *tag: Any) -> tuple[Any, Any]:
        """Send to the next rank of the ring, and receive from the one before."""
        model, before, after = self._model, self._division.neighbour(-1), self._division.neighbour(+1)
        return model.launch(model.send(after, tensor, tag=tag)), model.launch(model.receive(before, tag=tag))


def _add(total: Any, more: Any) -> Any:
    """Return a sum whose first summand is the sum so far, if there is one."""
    return more if total is None else total + more


count_as_strategy(__file__)


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens are sent to experts: see `Model.route`."""

    imbalance: float | str | Sequence[float] = 1
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

    def _forward(self, layer: int, i: int, recompute: str, *, keeps: bool = False) -> Steps:
        """Return what a layer makes of a microbatch, and keep weights that were gathered if backward follows."""
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
        if not keeps:
            self._held.drop_whole(("experts", layer))
        yield from self._exchange(activations, made, layer)
        combined = model.combine(layer, activations[layer, i], activations[made], router)
        del router
        if not keeps:
            self._held.drop_whole(layer)
        return combined

    def backward(self, layer: int, i: int, kind: str) -> Steps:
        """Take the gradient of a microbatch back through a layer: kind B, or I, without the experts' weights."""
        model, activations, grads = self._model, self._model.activations, self._model.grad_activations
        if ("made", layer, i) not in activations:
            yield from self._forward(layer, i, "none", keeps=True)
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
        for place, layer in enumerate(layers):
            self._held.gather_ahead(layers[place:])
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
        backwards = layers[::-1]
        for place, layer in enumerate(backwards):
            self._held.gather_ahead(backwards[place:])
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
            grad_inp = grads.pop("new")  # summed over the parts; nobody needs that of the model's input
            grads[layer - 1, i] = (yield from self._total(grad_inp, layer)) if layer else grad_inp
        if is_whole:
            yield from self._held.reduce(layer)

    def _add(self, layer: int, i: int) -> None:
        """Add the gradient of a weight, and free what it was made of."""
        del self._model.activations[layer, i], self._model.grad_activations[layer, i]
        self._held.add(layer)

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
