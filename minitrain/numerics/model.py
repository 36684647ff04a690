"""A rank whose tensors carry arrays: every operation computes, in addition to what `Model` does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from minitrain.numerics.arrays import Flat, held
from minitrain.numerics.expert_model import NumericExperts
from minitrain.numerics.layers import layers_of, problem_of
from minitrain.numerics.placing import of_rank
from minitrain.numerics.problem import Problem
from minitrain.numerics.sequence_model import carry
from minitrain.numerics.transformer_problem import TransformerProblem
from minitrain.operations.collectives import COLLECTIVES, Collective
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.tensors.placed import COPIES, ExpertWeight, KeysValuesGrad
from minitrain.workloads.workload import Recompute


def _plus(content: Any) -> Any:
    """Return the function that adds contents over ranks; a sum of parts is finished by each rank afterwards."""
    return getattr(type(content), "plus", type(content).add)


class NumericModel(NumericExperts):
    """A `Model` that also computes.

    Its operations call those of `super()`, so that it combines with other extensions of `Model` (strict accounting).

    Args:
        args: those of `Model`.
        problem: the data, initial weights and optimizer, as `minitrain.numerics.problem_of` takes them; the default of
            what is trained if None.
        named: those of `Model`.

    Adds:
        load_weights, get_input_activation, get_input_shard: let what they return carry the problem's arrays.
        forward, loss, backward, backward_input, backward_weight, update: compute the arrays of their results.
        load_router, load_experts, route, combine, backward_combine, backward_route: likewise, of layers with experts.
        keys_values, attend, project, backward_project, backward_attend, backward_keys_values: the same.
        set_final_weight: requires a weight that carries an array.
        after_collective, after_message, follows_tensors: combine the arrays of the members, or pass those of a message
            on.

    Attributes:
        final_states: optimizer state after this rank's last update, by layer that it updated.
        final_expert_states: likewise, of its part of the experts.
    """

    follows_tensors = True

    def __init__(self, *args: Any, problem: Problem | TransformerProblem | str | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        trained = problem_of("numpy" if problem is None else problem, self._runtime_predictor.workload)
        self.problem = of_rank(trained, self._rank)
        self._layers = layers_of(self.problem, self.world_size, self.global_batch_size)
        self.final_states: dict[int, Flat] = {}
        self.final_expert_states: dict[int, Flat] = {}

    def after_collective(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Combine the members' numbers, reductions in rank order."""
        super().after_collective(operations, results)
        values = [operation.value for operation in operations]
        record = COLLECTIVES[operations[0].op]
        if record.gives == "copy":
            root = next(value for value in values if value is not None)
            values = [root] * len(values)
        if values[0].__class__ in COPIES:
            self._exchange(values, results)
        elif record.gives == "exchange":
            values = [list(column) for column in zip(*values, strict=True)]
            for value, result in zip(values, results, strict=True):
                self._move(value, result)
        elif record.gives != "nothing":
            self._meet(record, values, results)

    def _meet(self, record: Collective, values: Sequence[Any], results: Sequence[Any]) -> None:
        """Give the results of a collective their numbers; of buckets, tensor by tensor."""
        if isinstance(results[0], list):
            for places in zip(*values, *results, strict=True):
                self._meet(record, places[: len(values)], places[len(values) :])
            return
        contents = self._contents(record.name, *values)
        if record.gives == "copy":
            for result in results:
                result._content = contents[0]
            return
        total = reduce(type(contents[0]).combine if record.gives == "union" else _plus(contents[0]), contents)
        for index, result in enumerate(results):
            mine = contents[index].mine(total) if hasattr(total, "mine") else total
            if result.__class__ is KeysValuesGrad:  # its shards need not be the index-th ones
                mine = mine.at(self._layers.positions(result.sequence.shards, result.sequence.num_shards))
            elif record.scatters and len(results) > 1:
                mine = mine.shard(index, len(results))
            result._content = mine.finished() if hasattr(mine, "finished") else mine

    def after_message(self, operation: Any, value: Any, result: Any) -> None:
        """Copy the numbers of a message to what is received."""
        super().after_message(operation, value, result)
        self._move(value, result)

    def _move(self, value: Any, result: Any) -> None:
        """Give a copy the numbers of its original; of a bucket, tensor by tensor."""
        if isinstance(value, list):
            for item, copy in zip(value, result, strict=True):
                self._move(item, copy)
        else:
            result._content = self._contents("a message", value)[0]

    def load_weights(
        self, layer: int, shard: int = 0, num_shards: int = 1, *, part: int = 0, num_parts: int = 1
    ) -> tuple[Weight, OptState]:
        """Load a shard of the initial weight; the optimizer's state begins at zero."""
        weight, opt_state = super().load_weights(layer, shard, num_shards, part=part, num_parts=num_parts)
        content = self._layers.load(layer, part, num_parts)
        moments = np.zeros((self.problem.optimizer.num_moments, content.values.size))
        carry(weight, content.shard(shard, num_shards))
        carry(opt_state, Flat(moments, content.part).shard(shard, num_shards))
        return weight, opt_state

    def set_final_weight(self, layer: int, weight: Weight) -> None:
        """Hand in a weight that was computed."""
        self._contents("set_final_weight", weight)
        super().set_final_weight(layer, weight)

    def get_input_activation(self, samples: Iterable[int]) -> Activation:
        """Return the inputs of some samples."""
        inputs = super().get_input_activation(samples)
        carry(inputs, self._layers.inputs(inputs.samples, self.global_batch_size))
        return inputs

    def forward(self, layer: int, inp: Activation, weight: Weight, *, recompute: Recompute | None = None) -> Activation:
        """Take an activation through a layer."""
        x, w = self._contents("forward", inp, weight)
        out = super().forward(layer, inp, weight, recompute=recompute)
        carry(out, self._layers.forward(layer, inp, x, w, self.global_batch_size))
        return out

    def loss(self, inp: Activation) -> ActivationGrad:
        """Return the gradient of the loss."""
        (output,) = self._contents("loss", inp)
        grad = super().loss(inp)
        carry(grad, self._layers.loss(output, inp.samples, self.global_batch_size))
        return grad

    def backward(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight
    ) -> tuple[WeightGrad, ActivationGrad]:
        """Take a gradient back through a layer."""
        x, g, w = self._contents("backward", inp, grad, weight)
        results = super().backward(layer, inp, grad, weight)
        for result, content in zip(results, self._layers.backward(layer, inp, x, g, w), strict=True):
            carry(result, content)
        return results

    def backward_input(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> ActivationGrad:
        """Take a gradient back to a layer's input."""
        x, g, w = self._contents("backward_input", inp, grad, weight)
        grad_inp = super().backward_input(layer, inp, grad, weight)
        carry(grad_inp, self._layers.backward_input(layer, inp, x, g, w))
        return grad_inp

    def backward_weight(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight | None = None
    ) -> WeightGrad:
        """Return the gradient of a layer's weight."""
        x, g = self._contents("backward_weight", inp, grad)
        weight_grad = super().backward_weight(layer, inp, grad, weight)
        carry(weight_grad, self._layers.backward_weight(layer, inp, x, g))
        return weight_grad

    def update(
        self, layer: int, weight_grad: WeightGrad, weight: Weight, opt_state: OptState
    ) -> tuple[Weight, OptState]:
        """Take the optimizer's step on the elements that the weight holds."""
        g, w, s = self._contents("update", weight_grad, weight, opt_state)
        updated, state = super().update(layer, weight_grad, weight, opt_state)
        values, moments = self.problem.optimizer.step(w.values, g.values, s.values, updated.step)
        carry(updated, Flat(values, w.part))
        carry(state, Flat(moments, w.part))
        here = held(updated.shards, updated.num_shards, values.size)
        states = self.final_expert_states if weight.__class__ is ExpertWeight else self.final_states
        before = states.get(layer)
        kept = np.full_like(moments, np.nan) if before is None or before.part != w.part else before.values
        states[layer] = Flat(np.where(here, moments, kept), w.part)
        return updated, state
