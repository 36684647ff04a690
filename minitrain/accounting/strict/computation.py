"""What a rank of a strict run does alone: it follows tensors through loads, passes and updates.

As in `minitrain.rank.computation`, the laws are checked twice. First comes one expression that every usual legal call
passes; it is written out in each operation, as this is the hot path. Where it is false, the functions of
`minitrain.accounting.strict.laws` are asked. They know the rarer legal cases and the message for every illegal one. The
expression must never be true where they would raise, which tests/accounting/test_strict_laws.py checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from minitrain.accounting.strict.buffers import Overwrite
from minitrain.accounting.strict.laws import (
    is_surely_valid,
    note_update,
    require_pass,
    require_step,
    require_update,
    require_valid,
)
from minitrain.accounting.strict.ledger import Ledger
from minitrain.accounting.strict.provenance import new_origin
from minitrain.accounting.strict.stores import FollowedStore, JournalledFollowedStore
from minitrain.accounting.strict.unusable_tensors import HANDMADE_DETECTION, HandedIn
from minitrain.events import STRIDE, UNITS_PER_ELEMENT
from minitrain.rank.laws import require_all_samples
from minitrain.rank.model import Model
from minitrain.rank.stores import Account, Store
from minitrain.tensors import FIELDS, Activation, ActivationGrad, OptState, Weight, WeightGrad, clone
from minitrain.tensors.fields import (
    fields_of_activation,
    fields_of_activation_grad,
    fields_of_opt_state,
    fields_of_weight,
    fields_of_weight_grad,
)
from minitrain.tensors.placed import WeightGradPart
from minitrain.workloads.expert_layers import Piece, division_of
from minitrain.workloads.workload import Recompute

R = TypeVar("R")

_WHOLE_GRADS = frozenset({WeightGrad, WeightGradPart})


def unbound(method: Callable[..., R]) -> Callable[..., R]:
    """Return the function of a method: a bound method that a model keeps would be a cycle and keep it alive."""
    return method.__func__  # type: ignore[attr-defined,no-any-return]


class StrictComputation(Model):
    """The operations on a rank's compute stream.

    Each adds to what `minitrain.rank` does: it requires valid tensors, notes what is held outside the stores while it
    begins, and gives its results an origin. While it runs, constructors need not look at who calls: it is the engine.
    The operations that it extends are looked up once for each model, since `super()` takes as long as checking a
    tensor.

    Attributes:
        ledger: what the rank holds over all tensors alive.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._shard_counts: dict[int, tuple[int, int, int | Piece]] = {}  # of loads and updates: held, of all, parts
        self._load_weights = unbound(super().load_weights)
        self._set_final_weight = unbound(super().set_final_weight)
        self._forward = unbound(super().forward)
        self._backward = unbound(super().backward)
        self._update = unbound(super().update)

    def _store(self, name: str) -> Store[Any]:
        """Make one of the five stores, and with the first one the ledger."""
        if not hasattr(self, "_ledger"):
            self._ledger = Ledger(self._account, self._rank, is_uniform=self._is_uniform)
        if self._account.journal is None:
            return FollowedStore(self._account)
        return JournalledFollowedStore(self._account, name, self._log)

    def _resize(self, tensor: Any, units: int) -> None:
        """Give a tensor another size, and its buffer too."""
        super()._resize(tensor, units)
        tensor._origin.buffer.resize(units)

    @property
    def _counted(self) -> Account:
        """What counts as this rank's memory."""
        return self._ledger

    def memory_by_store(self) -> dict[str, float]:
        """Return the elements in each store now, those of operations in flight, and those outside."""
        return {
            **super().memory_by_store(),
            "outside the stores": (self._ledger.units - self._ledger.stored) / UNITS_PER_ELEMENT,
        }

    def load_weights(
        self, layer: int, shard: int = 0, num_shards: int = 1, *, part: int = 0, num_parts: int = 1
    ) -> tuple[Weight, OptState]:
        """Load a weight; see `Model.load_weights`."""
        ledger = self._ledger
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_operations
        try:
            if num_parts == 1 and part == 0:
                loaded = weight, opt_state = self._load_weights(self, layer, shard, num_shards)
            else:
                loaded = weight, opt_state = self._load_weights(
                    self, layer, shard, num_shards, part=part, num_parts=num_parts
                )
        finally:
            HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_strategies
        self._shard_counts[len(self._rows) - STRIDE] = 1, num_shards, num_parts
        line = ledger.line()
        plain = weight.__class__ is Weight
        fields = fields_of_weight(weight) if plain else FIELDS[weight.__class__](weight)
        weight._origin = new_origin(ledger, weight._units, fields, None, line)
        opt_state._origin = new_origin(ledger, opt_state._units, fields, None, line)
        return loaded

    def set_final_weight(self, layer: int, weight: Weight) -> None:
        """Hand in a trained weight: a copy is kept, which holds no memory; see `Model.set_final_weight`."""
        ledger = self._ledger
        if not is_surely_valid(ledger, weight):
            require_valid(ledger, "set_final_weight", (weight,))
        self._set_final_weight(self, layer, weight)
        HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_operations
        try:
            plain = weight.__class__ is Weight
            kept = Weight(*fields_of_weight(weight)) if plain else clone(weight)
        finally:
            HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_strategies
        self._final_of(weight)[layer] = kept
        if hasattr(weight, "_content"):
            kept._content = weight._content  # type: ignore[misc]  # a slot of the base
        kept._origin = HandedIn(weight._origin)

    def get_input_activation(self, samples: Iterable[int]) -> Activation:
        """Return the model's input; see `Model.get_input_activation`."""
        ledger = self._ledger
        activation = super().get_input_activation(samples)
        units = ledger.size(activation)
        activation._origin = new_origin(ledger, units, fields_of_activation(activation), None, ledger.line())
        return activation

    def forward(self, layer: int, inp: Activation, weight: Weight, *, recompute: Recompute | None = None) -> Activation:
        """Take an activation through a layer; see `Model.forward`."""
        ledger = self._ledger
        try:
            given, used = inp._origin, weight._origin
            usual = (
                given.usable_by is ledger
                and used.usable_by is ledger
                and given.fields == fields_of_activation(inp)
                and used.fields == fields_of_weight(weight)
                and (given.step is None or given.step == weight.step)
            )
        except AttributeError:
            usual = False
        if not usual:
            require_pass(ledger, "forward", inp, weight)
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_operations
        try:
            out = self._forward(self, layer, inp, weight, recompute=recompute)
        finally:
            HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_strategies
        plain = out.__class__ is Activation
        fields = fields_of_activation(out) if plain else FIELDS[out.__class__](out)
        out._origin = new_origin(ledger, out._units, fields, weight.step, ledger.line())
        return out

    def loss(self, inp: Activation) -> ActivationGrad:
        """Return the gradient of the model's output; see `Model.loss`."""
        ledger = self._ledger
        if not is_surely_valid(ledger, inp):
            require_valid(ledger, "loss", (inp,))
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        grad = super().loss(inp)
        fields = FIELDS[grad.__class__](grad)
        grad._origin = new_origin(ledger, ledger.size(grad), fields, inp._origin.step, ledger.line())
        return grad

    def backward(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight
    ) -> tuple[WeightGrad, ActivationGrad]:
        """Take a gradient back through a layer; see `Model.backward`."""
        ledger = self._ledger
        if not self._are_surely_valid(inp, grad, weight):
            require_pass(ledger, "backward", inp, weight, grad)
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_operations
        try:
            both = weight_grad, grad_inp = self._backward(self, layer, inp, grad, weight)
        finally:
            HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_strategies
        line = ledger.line()
        plain = weight_grad.__class__ is WeightGrad
        fields = fields_of_weight_grad(weight_grad) if plain else FIELDS[weight_grad.__class__](weight_grad)
        weight_grad._origin = new_origin(ledger, weight_grad._units, fields, weight.step, line)
        plain = grad_inp.__class__ is ActivationGrad
        fields = fields_of_activation_grad(grad_inp) if plain else FIELDS[grad_inp.__class__](grad_inp)
        grad_inp._origin = new_origin(ledger, grad_inp._units, fields, weight.step, line)
        return both

    def backward_input(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> ActivationGrad:
        """Take a gradient back to a layer's input; see `Model.backward_input`."""
        ledger = self._ledger
        if not self._are_surely_valid(inp, grad, weight):
            require_pass(ledger, "backward_input", inp, weight, grad)
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        grad_inp = super().backward_input(layer, inp, grad, weight)
        fields = FIELDS[grad_inp.__class__](grad_inp)
        grad_inp._origin = new_origin(ledger, grad_inp._units, fields, weight.step, ledger.line())
        return grad_inp

    def _are_surely_valid(self, inp: Any, grad: Any, weight: Any) -> bool:
        """Return whether the tensors given to a backward are surely valid and of one step."""
        ledger = self._ledger
        try:
            given, back, used = inp._origin, grad._origin, weight._origin
            step = weight.step
            return (
                given.usable_by is ledger
                and back.usable_by is ledger
                and used.usable_by is ledger
                and given.fields == fields_of_activation(inp)
                and back.fields == fields_of_activation_grad(grad)
                and used.fields == fields_of_weight(weight)
                and back.step == step
                and (given.step is None or given.step == step)
            )
        except AttributeError:
            return False

    def backward_weight(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight | None = None
    ) -> WeightGrad:
        """Return the gradient of a layer's weight; see `Model.backward_weight`."""
        ledger = self._ledger
        require_valid(ledger, "backward_weight", (inp, grad) if weight is None else (inp, grad, weight))
        if inp.__class__ is Activation and grad.__class__ is ActivationGrad:
            require_step(ledger, "backward_weight", "the input", inp, grad._origin.step)
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        weight_grad = super().backward_weight(layer, inp, grad, weight)
        line = ledger.line()
        fields = FIELDS[weight_grad.__class__](weight_grad)
        weight_grad._origin = new_origin(ledger, weight_grad._units, fields, grad._origin.step, line)
        return weight_grad

    def update(
        self, layer: int, weight_grad: WeightGrad, weight: Weight, opt_state: OptState
    ) -> tuple[Weight, OptState]:
        """Take an optimizer step, in place; see `Model.update`."""
        ledger = self._ledger
        try:
            summed, trained, kept = weight_grad._origin, weight._origin, opt_state._origin
            usual = (
                summed.usable_by is ledger
                and trained.usable_by is ledger
                and kept.usable_by is ledger
                and summed.fields == fields_of_weight_grad(weight_grad)
                and trained.fields == fields_of_weight(weight)
                and kept.fields == fields_of_opt_state(opt_state)
            )
        except AttributeError:
            usual = False
        if not usual:
            require_valid(ledger, "update", (weight_grad, weight, opt_state))
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        if weight_grad.__class__ in _WHOLE_GRADS and weight.__class__ is Weight and opt_state.__class__ is OptState:
            require_update(ledger, layer, weight_grad, weight, opt_state)
            if len(weight_grad.samples) != self._global_batch_size:  # none comes twice, and all are of the batch
                require_all_samples(self, layer, weight_grad)
        HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_operations
        try:
            new = updated, state = self._update(self, layer, weight_grad, weight, opt_state)
        finally:
            HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_strategies
        plain = weight.__class__ is Weight
        num_parts = 1 if plain else division_of(weight)
        self._shard_counts[len(self._rows) - STRIDE] = len(weight.shards), weight.num_shards, num_parts
        note_update(ledger, weight)
        overwrite = Overwrite("update", ledger.line())
        fields = state_fields = fields_of_weight(updated) if plain else FIELDS[updated.__class__](updated)
        if state.shards is not updated.shards or state.num_shards != updated.num_shards:
            state_fields = FIELDS[state.__class__](state)
        weight._origin.replace_owner(weight, updated, fields, None, overwrite)
        opt_state._origin.replace_owner(opt_state, state, state_fields, None, overwrite)
        return new
