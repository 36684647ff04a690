"""Recording the steps of an attention whose sequence is cut between ranks; see `minitrain.rank.attention`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minitrain.accounting.strict.model import StrictModel
from minitrain.grading.recorded_program import Made, Program, name_of
from minitrain.tensors import Activation, Tensor, Weight
from minitrain.tensors.placed import ActivationShard, KeysValues
from minitrain.workloads.workload import Recompute


class RecordedAttention(StrictModel):
    """The operations on shards of a sequence, of a rank that records what it does.

    Attributes:
        program: its steps.
    """

    program: Program

    def _made(self, step: int, *tensors: Any) -> None:
        """Name the results of a step."""
        for place, tensor in enumerate(tensors):
            tensor._content = Made(self.program, step, place)

    def _write(self, kind: str, *what: Any, made: Sequence[Any]) -> None:
        """Write a step, whose tensors it names, and name its results."""
        named = (name_of(value) if isinstance(value, Tensor) else value for value in what)
        self._made(self.program.add(kind, *named), *made)

    def get_input_shard(self, samples: Iterable[int], shards: Iterable[int], num_shards: int) -> ActivationShard:
        """Record an input of some shards of the sequence."""
        made = super().get_input_shard(samples, shards, num_shards)
        self._write("get_input_shard", sorted(made.samples), sorted(made.sequence.shards), num_shards, made=[made])
        return made

    def keys_values(
        self, layer: int, inp: Activation, weight: Weight, *, recompute: Recompute | None = None
    ) -> KeysValues:
        """Record a step of an attention."""
        made = super().keys_values(layer, inp, weight, recompute=recompute)
        self._write("keys_values", layer, inp, weight, made=[made])
        return made

    def attend(self, layer: int, inp: Activation, keys_values: Activation) -> Any:
        """Record a step of an attention."""
        made = super().attend(layer, inp, keys_values)
        self._write("attend", layer, inp, keys_values, made=[made])
        return made

    def project(self, layer: int, inp: Activation, weight: Weight, attended: Any) -> Any:
        """Record a step of an attention."""
        made = super().project(layer, inp, weight, attended)
        self._write("project", layer, inp, weight, attended, made=[made])
        return made

    def backward_project(self, layer: int, inp: Activation, grad: Any, weight: Weight) -> Any:
        """Record a step of an attention's backward."""
        made = super().backward_project(layer, inp, grad, weight)
        self._write("backward_project", layer, inp, grad, weight, made=[made])
        return made

    def backward_attend(self, layer: int, inp: Activation, grad: Any, keys_values: Activation) -> Any:
        """Record a step of an attention's backward."""
        made = super().backward_attend(layer, inp, grad, keys_values)
        self._write("backward_attend", layer, inp, grad, keys_values, made=made)
        return made

    def backward_keys_values(
        self, layer: int, inp: Activation, weight: Weight, grad_queries: Any, grad_keys_values: Any
    ) -> Any:
        """Record a step of an attention's backward."""
        made = super().backward_keys_values(layer, inp, weight, grad_queries, grad_keys_values)
        self._write("backward_keys_values", layer, inp, weight, grad_queries, grad_keys_values, made=made)
        return made
