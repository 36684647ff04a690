"""What a rank of a strict run can do alone, with tensors that are followed.

As in `minitrain.rank.computing`, the laws are asked twice: first by one expression that every usual call passes,
written out in each operation since it is the hot path, then, where that fails, by `require_genuine` and the rules,
which know the rarer legal cases and the message for every other one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from minitrain.accounting.strict.genuine import SAMPLED, STEPPED, SUMMED, is_usual, require_genuine
from minitrain.accounting.strict.handmade import NOTING
from minitrain.accounting.strict.ledger import Ledger
from minitrain.accounting.strict.origin import born
from minitrain.accounting.strict.rules import note_update, require_pass, require_step, require_update
from minitrain.accounting.strict.stores import FollowedStore, JournalledFollowedStore
from minitrain.accounting.strict.strangers import Final
from minitrain.accounting.strict.written import Written
from minitrain.events import UNITS_PER_ELEMENT
from minitrain.rank.model import Model
from minitrain.rank.stores import Account, Store
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad

R = TypeVar("R")

_frame = sys._getframe


def unbound(method: Callable[..., R]) -> Callable[..., R]:
    """Return the function of a method: a bound one that a model keeps would keep the model alive."""
    return method.__func__  # type: ignore[attr-defined,no-any-return]


class StrictComputing(Model):
    """The operations on a rank's compute stream.

    Each requires genuine tensors, notes what is held outside the stores while it begins, and gives its results an
    origin. What they make is the engine's: no tensor need look who makes it. The operations that they extend are
    looked up once: `super()` takes as long as to check a tensor.

    Attributes:
        ledger: what the rank holds over all tensors alive.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._load_weights = unbound(super().load_weights)
        self._set_final_weight = unbound(super().set_final_weight)
        self._forward = unbound(super().forward)
        self._backward = unbound(super().backward)
        self._update = unbound(super().update)

    def _store(self, name: str) -> Store[Any]:
        """Make one of the five stores, and with the first one the ledger."""
        if not hasattr(self, "ledger"):
            self.ledger = Ledger(self.account, self.rank, is_uniform=self._is_uniform)
        if self.account.journal is None:
            return FollowedStore(self.account)
        return JournalledFollowedStore(self.account, name, self.log)

    @property
    def counted(self) -> Account:
        """What counts as this rank's memory."""
        return self.ledger

    def memory_by_store(self) -> dict[str, float]:
        """Return the elements in each store now, those of operations in flight, and those outside."""
        return {
            **super().memory_by_store(),
            "outside the stores": (self.ledger.units - self.ledger.stored) / UNITS_PER_ELEMENT,
        }

    def load_weights(self, layer: int, shard: int = 0, num_shards: int = 1) -> tuple[Weight, OptState]:
        """Load a weight; see `Model.load_weights`."""
        ledger = self.ledger
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        NOTING.on = NOTING.in_operations
        try:
            loaded = weight, opt_state = self._load_weights(self, layer, shard, num_shards)
        finally:
            NOTING.on = NOTING.in_strategies
        line = ledger.line(_frame(1))
        fields = weight.layer, weight.layers, weight.step, weight.shards, weight.num_shards
        weight._origin = born(ledger, weight._units, fields, None, line)
        opt_state._origin = born(ledger, opt_state._units, fields, None, line)
        return loaded

    def set_final_weight(self, layer: int, weight: Weight) -> None:
        """Hand in a trained weight: a copy is kept, which holds no memory; see `Model.set_final_weight`."""
        ledger = self.ledger
        if not is_usual(ledger, weight):
            require_genuine(ledger, "set_final_weight", (weight,))
        self._set_final_weight(self, layer, weight)
        NOTING.on = NOTING.in_operations
        try:
            kept = Weight(weight.layer, weight.layers, weight.step, weight.shards, weight.num_shards)
        finally:
            NOTING.on = NOTING.in_strategies
        self.final_weights[layer] = kept
        if hasattr(weight, "_content"):
            kept._content = weight._content  # type: ignore[misc]  # a slot of the base
        kept._origin = Final(weight._origin)

    def get_input_activation(self, samples: Iterable[int]) -> Activation:
        """Return the model's input; see `Model.get_input_activation`."""
        ledger = self.ledger
        activation = super().get_input_activation(samples)
        units = ledger.size(activation)
        activation._origin = born(ledger, units, SAMPLED(activation), None, ledger.line(_frame(1)))
        return activation

    def forward(self, layer: int, inp: Activation, weight: Weight) -> Activation:
        """Take an activation through a layer; see `Model.forward`."""
        ledger = self.ledger
        try:
            given, used = inp._origin, weight._origin
            usual = (
                given.usable_by is ledger
                and used.usable_by is ledger
                and given.fields == SAMPLED(inp)
                and used.fields == STEPPED(weight)
                and (given.step is None or given.step == weight.step)
            )
        except AttributeError:
            usual = False
        if not usual:
            require_pass(ledger, "forward", inp, weight)
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        NOTING.on = NOTING.in_operations
        try:
            out = self._forward(self, layer, inp, weight)
        finally:
            NOTING.on = NOTING.in_strategies
        fields = out.layer, out.layers, out.samples, out.total_samples
        out._origin = born(ledger, out._units, fields, weight.step, ledger.line(_frame(1)))
        return out

    def loss(self, inp: Activation) -> ActivationGrad:
        """Return the gradient of the model's output; see `Model.loss`."""
        ledger = self.ledger
        if not is_usual(ledger, inp):
            require_genuine(ledger, "loss", (inp,))
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        grad = super().loss(inp)
        grad._origin = born(ledger, ledger.size(grad), SAMPLED(grad), inp._origin.step, ledger.line(_frame(1)))
        return grad

    def backward(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight
    ) -> tuple[WeightGrad, ActivationGrad]:
        """Take a gradient back through a layer; see `Model.backward`."""
        ledger = self.ledger
        if not self._is_usual(inp, grad, weight):
            require_pass(ledger, "backward", inp, weight, grad)
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        NOTING.on = NOTING.in_operations
        try:
            both = weight_grad, grad_inp = self._backward(self, layer, inp, grad, weight)
        finally:
            NOTING.on = NOTING.in_strategies
        line = ledger.line(_frame(1))
        weight_grad._origin = born(ledger, weight_grad._units, SUMMED(weight_grad), weight.step, line)
        fields = grad_inp.layer, grad_inp.layers, grad_inp.samples, grad_inp.total_samples
        grad_inp._origin = born(ledger, grad_inp._units, fields, weight.step, line)
        return both

    def backward_input(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> ActivationGrad:
        """Take a gradient back to a layer's input; see `Model.backward_input`."""
        ledger = self.ledger
        if not self._is_usual(inp, grad, weight):
            require_pass(ledger, "backward_input", inp, weight, grad)
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        grad_inp = super().backward_input(layer, inp, grad, weight)
        grad_inp._origin = born(ledger, grad_inp._units, SAMPLED(grad_inp), weight.step, ledger.line(_frame(1)))
        return grad_inp

    def _is_usual(self, inp: Any, grad: Any, weight: Any) -> bool:
        """Return whether what a backward is given is surely genuine and of one step."""
        ledger = self.ledger
        try:
            given, back, used = inp._origin, grad._origin, weight._origin
            step = weight.step
            return (
                given.usable_by is ledger
                and back.usable_by is ledger
                and used.usable_by is ledger
                and given.fields == SAMPLED(inp)
                and back.fields == SAMPLED(grad)
                and used.fields == STEPPED(weight)
                and back.step == step
                and (given.step is None or given.step == step)
            )
        except AttributeError:
            return False

    def backward_weight(self, layer: int, inp: Activation, grad: ActivationGrad) -> WeightGrad:
        """Return the gradient of a layer's weight; see `Model.backward_weight`."""
        ledger = self.ledger
        require_genuine(ledger, "backward_weight", (inp, grad))
        if inp.__class__ is Activation and grad.__class__ is ActivationGrad:
            require_step(ledger, "backward_weight", "the input", inp, grad._origin.step)
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        weight_grad = super().backward_weight(layer, inp, grad)
        line = ledger.line(_frame(1))
        weight_grad._origin = born(ledger, weight_grad._units, SUMMED(weight_grad), grad._origin.step, line)
        return weight_grad

    def update(
        self, layer: int, weight_grad: WeightGrad, weight: Weight, opt_state: OptState
    ) -> tuple[Weight, OptState]:
        """Take an optimizer step, in place; see `Model.update`."""
        ledger = self.ledger
        try:
            usual = (
                weight_grad._origin.usable_by is ledger
                and weight._origin.usable_by is ledger
                and opt_state._origin.usable_by is ledger
                and weight_grad._origin.fields == SUMMED(weight_grad)
                and weight._origin.fields == STEPPED(weight)
                and opt_state._origin.fields == STEPPED(opt_state)
            )
        except AttributeError:
            usual = False
        if not usual:
            require_genuine(ledger, "update", (weight_grad, weight, opt_state))
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        if weight_grad.__class__ is WeightGrad and weight.__class__ is Weight and opt_state.__class__ is OptState:
            require_update(ledger, layer, weight_grad, weight, opt_state)
        NOTING.on = NOTING.in_operations
        try:
            new = updated, state = self._update(self, layer, weight_grad, weight, opt_state)
        finally:
            NOTING.on = NOTING.in_strategies
        note_update(ledger, weight)
        written = Written("update", ledger.line(_frame(1)))
        fields = state_fields = STEPPED(updated)
        if state.shards is not updated.shards or state.num_shards != updated.num_shards:
            state_fields = STEPPED(state)
        weight._origin.hand_over(weight, updated, fields, None, written)
        opt_state._origin.hand_over(opt_state, state, state_fields, None, written)
        return new
