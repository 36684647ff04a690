"""What a rank of a strict run does with shards of a sequence: it follows tensors through the steps of an attention.

See `minitrain.rank.attention`. All that a step is given must be valid and stem from weights of one step, and each
result gets a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minitrain.accounting.strict.communication import StrictCommunication
from minitrain.accounting.strict.laws import require_step, require_valid
from minitrain.accounting.strict.provenance import new_origin
from minitrain.tensors import FIELDS, Activation, ActivationGrad, Weight
from minitrain.tensors.placed import (
    ActivationShard,
    AttendedGrad,
    KeysValues,
    KeysValuesGrad,
    QueriesGrad,
    WeightGradPart,
)
from minitrain.workloads.workload import Recompute


class StrictAttention(StrictCommunication):
    """The operations on shards of a sequence, and the steps of an attention."""

    def _begin(self, op: str, source: Any, *given: Any) -> int | None:
        """Require valid tensors that stem from weights of one step, and return that step.

        Args:
            op: the operation.
            source: a weight, or a tensor that was computed with one, whose step all must have.
            given: the other tensors.
        """
        ledger = self._ledger
        require_valid(ledger, op, (source, *given))
        step: int | None = source.step if isinstance(source, Weight) else _step_of(source)
        if step is not None:
            for value in given:
                if _step_of(value) is not None:
                    require_step(ledger, op, f"a {type(value).__name__}", value, step)
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        return step

    def _follow(self, step: int | None, *made: Any) -> None:
        """Give what was made its origin and a buffer."""
        ledger = self._ledger
        line = ledger.line()
        for tensor in made:
            tensor._origin = new_origin(ledger, ledger.units_of(tensor), FIELDS[tensor.__class__](tensor), step, line)

    def get_input_shard(self, samples: Iterable[int], shards: Iterable[int], num_shards: int) -> ActivationShard:
        """Return the model's input for some shards of the sequence; see `Model.get_input_shard`."""
        made = super().get_input_shard(samples, shards, num_shards)
        self._follow(None, made)
        return made

    def keys_values(
        self, layer: int, inp: Activation, weight: Weight, *, recompute: Recompute | None = None
    ) -> KeysValues:
        """Return keys and values; see `Model.keys_values`."""
        step = self._begin("keys_values", weight, inp)
        made = super().keys_values(layer, inp, weight, recompute=recompute)
        self._follow(step, made)
        return made

    def attend(self, layer: int, inp: Activation, keys_values: Activation) -> Any:
        """Attend from queries to some keys and values; see `Model.attend`."""
        step = self._begin("attend", keys_values, inp)
        made = super().attend(layer, inp, keys_values)
        self._follow(step, made)
        return made

    def project(self, layer: int, inp: Activation, weight: Weight, attended: Any) -> Any:
        """Finish an attention; see `Model.project`."""
        step = self._begin("project", weight, inp, attended)
        made = super().project(layer, inp, weight, attended)
        self._follow(step, made)
        return made

    def backward_project(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> AttendedGrad:
        """Take a gradient back through the output projection; see `Model.backward_project`."""
        step = self._begin("backward_project", weight, inp, grad)
        made = super().backward_project(layer, inp, grad, weight)
        self._follow(step, made)
        return made

    def backward_attend(
        self, layer: int, inp: Activation, grad: ActivationGrad, keys_values: Activation
    ) -> tuple[QueriesGrad, KeysValuesGrad]:
        """Take a gradient back to queries, keys and values; see `Model.backward_attend`."""
        step = self._begin("backward_attend", keys_values, inp, grad)
        made = super().backward_attend(layer, inp, grad, keys_values)
        self._follow(step, *made)
        return made

    def backward_keys_values(
        self,
        layer: int,
        inp: Activation,
        weight: Weight,
        grad_queries: ActivationGrad,
        grad_keys_values: ActivationGrad,
    ) -> tuple[WeightGradPart, Any]:
        """Take gradients back to an attention's input; see `Model.backward_keys_values`."""
        step = self._begin("backward_keys_values", weight, inp, grad_queries, grad_keys_values)
        made = super().backward_keys_values(layer, inp, weight, grad_queries, grad_keys_values)
        self._follow(step, *made)
        return made


def _step_of(value: Any) -> int | None:
    """Return the step of the weights that a tensor was computed with; None for what is no tensor."""
    step: int | None = getattr(getattr(value, "_origin", None), "step", None)
    return step
