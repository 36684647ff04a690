"""Passes through an attention whose sequence is cut between ranks: keys and values come round a ring, or by a gather.

The attention's own keys and values are kept for backward, in the store of activations under ("own", layer, microbatch).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from minitrain.rank.model import Model
from minitrain.schedules.division import Division
from minitrain.schedules.held_layers import Steps
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
                sent, coming = self._pass_on(block, "block", layer, own[2], step)
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
                sent, coming = self._pass_on(block, "block", layer, own[2], step)
            here, grads["block"] = model.backward_attend(layer, x, grads["attended"], block)
            grads["queries"] = _add(grads.pop("queries", None), here)
            del here
            if step > 0:  # what the ranks before have added up
                yield grad_sent
                grads["block"] = (yield grad_coming) + grads.pop("block")
            grad_sent, grad_coming = self._pass_on(grads.pop("block"), "grad", layer, own[2], step)
            if step < cp - 1:
                yield sent
                block = activations["block"] = yield coming
        yield grad_sent
        grads["block"] = yield grad_coming  # the gradient of the rank's own block is home
        del activations["block"], activations[own], grads["attended"]
        return grads.pop("queries"), grads.pop("block")

    def _pass_on(self, tensor: Any, *tag: Any) -> tuple[Any, Any]:
        """Send to the next rank of the ring, and receive from the one before."""
        model, before, after = self._model, self._neighbour(-1), self._neighbour(+1)
        return model.launch(model.send(after, tensor, tag=tag)), model.launch(model.receive(before, tag=tag))

    def _neighbour(self, offset: int) -> int:
        """Return another rank of the ring."""
        return self._division.neighbour(offset)


def _add(total: Any, more: Any) -> Any:
    """Return a sum whose first summand is the sum so far, if there is one."""
    return more if total is None else total + more
