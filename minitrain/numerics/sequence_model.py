"""Context parallelism on a rank whose tensors carry arrays: the steps of an attention compute.

See `minitrain.rank.attention` for the steps, and `minitrain.numerics.attention_steps` for their arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minitrain.errors import LawError
from minitrain.numerics.placing import brought
from minitrain.numerics.problem import Problem
from minitrain.numerics.transformer_problem import TransformerProblem
from minitrain.operations.collectives import describe
from minitrain.rank.model import Model
from minitrain.tensors import Activation, ActivationGrad, Tensor, Weight
from minitrain.tensors.placed import (
    ActivationShard,
    Attended,
    AttendedGrad,
    KeysValues,
    KeysValuesGrad,
    QueriesGrad,
    WeightGradPart,
)
from minitrain.workloads.workload import Recompute


def carry(tensor: Tensor, content: Any) -> None:
    """Attach an array to a tensor."""
    tensor._content = content


class NumericSequences(Model):
    """The operations on shards of a sequence, and the steps of an attention."""

    problem: Problem | TransformerProblem
    _layers: Any  # those of a transformer, where an attention is taken in steps

    def _contents(self, op: str, *tensors: Any) -> list[Any]:
        """Return what tensors carry; None for a value that is no tensor, which another law refuses.

        Raises:
            LawError: a tensor carries nothing.
        """
        for tensor in tensors:
            if isinstance(tensor, Tensor) and not hasattr(tensor, "_content"):
                raise LawError(
                    f"{op} on rank {self.rank}: {describe(tensor)} was made by hand, no operation of the model has "
                    "computed it; use what load_weights, forward, backward and the collectives return",
                    op=op,
                    rank=self.rank,
                    layer=tensor.layer,  # type: ignore[attr-defined]  # every tensor has a layer
                    value=tensor,
                )
        contents = [getattr(tensor, "_content", None) for tensor in tensors]
        place = self.problem.backend
        return contents if place is None else [brought(content, place) for content in contents]

    def get_input_shard(self, samples: Iterable[int], shards: Iterable[int], num_shards: int) -> ActivationShard:
        """Return the inputs of some samples, for some shards of their sequence."""
        inputs = super().get_input_shard(samples, shards, num_shards)
        positions = self._layers.positions(inputs.sequence.shards, num_shards)
        carry(inputs, self._layers.inputs(inputs.samples, self.global_batch_size, positions))
        return inputs

    def keys_values(
        self, layer: int, inp: Activation, weight: Weight, *, recompute: Recompute | None = None
    ) -> KeysValues:
        """Return keys and values, and make queries."""
        x, w = self._contents("keys_values", inp, weight)
        made = super().keys_values(layer, inp, weight, recompute=recompute)
        carry(made, self._layers.keys_values(layer, inp, x, w))
        return made

    def attend(self, layer: int, inp: Activation, keys_values: Activation) -> Attended:
        """Attend from queries to some keys and values."""
        _, memory = self._contents("attend", inp, keys_values)
        made = super().attend(layer, inp, keys_values)
        carry(made, self._layers.steps.attend(layer, inp, memory))
        return made

    def project(self, layer: int, inp: Activation, weight: Weight, attended: Activation) -> Any:
        """Finish an attention."""
        _, _, found = self._contents("project", inp, weight, attended)
        made = super().project(layer, inp, weight, attended)
        carry(made, self._layers.steps.project(layer, inp, found))
        return made

    def backward_project(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> AttendedGrad:
        """Take a gradient back through the output projection."""
        _, g, _ = self._contents("backward_project", inp, grad, weight)
        made = super().backward_project(layer, inp, grad, weight)
        carry(made, self._layers.steps.backward_project(layer, inp, g))
        return made

    def backward_attend(
        self, layer: int, inp: Activation, grad: ActivationGrad, keys_values: Activation
    ) -> tuple[QueriesGrad, KeysValuesGrad]:
        """Take a gradient back to queries, keys and values."""
        _, g, memory = self._contents("backward_attend", inp, grad, keys_values)
        made = super().backward_attend(layer, inp, grad, keys_values)
        for tensor, content in zip(made, self._layers.steps.backward_attend(layer, inp, g, memory), strict=True):
            carry(tensor, content)
        return made

    def backward_keys_values(
        self,
        layer: int,
        inp: Activation,
        weight: Weight,
        grad_queries: ActivationGrad,
        grad_keys_values: ActivationGrad,
    ) -> tuple[WeightGradPart, Any]:
        """Take gradients back to an attention's input, and return that of its weight."""
        found = self._contents("backward_keys_values", grad_queries, grad_keys_values)
        made = super().backward_keys_values(layer, inp, weight, grad_queries, grad_keys_values)
        for tensor, content in zip(made, self._layers.backward_keys_values(layer, inp, *found), strict=True):
            carry(tensor, content)
        return made
