"""A rank whose tensors carry arrays: every operation computes, in addition to what `Model` does.

Context parallelism on a rank whose tensors carry arrays: the steps of an attention compute.

See `minitrain.rank.attention` for the steps, and `minitrain.numerics.attention` for their arithmetic.

Expert parallelism on a rank whose tensors carry arrays: the operations before and after the experts compute.

The router's own choice decides which tokens go where, and which an expert with a capacity does not take; prices stay
those of `imbalance`, so that the log is that of a run without numbers. `copies_by_expert` says what the router has
chosen, which can be given as `imbalance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from minitrain.errors import LawError
from minitrain.numerics.arithmetic import Array
from minitrain.numerics.arrays import Flat, brought, held, of_rank
from minitrain.numerics.layers import layers_of, problem_of
from minitrain.numerics.partial_gradients import DividedExperts
from minitrain.numerics.problem import Problem, TransformerProblem
from minitrain.numerics.units import Part
from minitrain.operations.collectives import COLLECTIVES, Collective, describe
from minitrain.rank.model import Model
from minitrain.tensors import Activation, ActivationGrad, OptState, Tensor, Weight, WeightGrad
from minitrain.tensors.placed import (
    COPIES,
    ActivationShard,
    Attended,
    AttendedGrad,
    ExpertOptState,
    ExpertOutputsGrad,
    ExpertWeight,
    KeysValues,
    KeysValuesGrad,
    QueriesGrad,
    RoutedTokens,
    RouterGrad,
    RouterOptState,
    RouterWeight,
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


class NumericExperts(NumericSequences):
    """The operations around experts of a rank that computes; see `minitrain.numerics.model.NumericModel`."""

    @property
    def copies_by_expert(self) -> Mapping[int, Array]:
        """The copies of tokens that each expert of a layer was sent by this rank's router, by layer."""
        return dict(self._divided.copies_by_expert) if isinstance(self.problem, TransformerProblem) else {}

    @property
    def _divided(self) -> DividedExperts:
        """What this rank computes of layers whose experts are divided among ranks."""
        found: DividedExperts = self._layers.divided_experts
        return found

    def _exchange(self, values: Sequence[Any], results: Sequence[Any]) -> None:
        """Give the results of an exchange of copies their numbers."""
        self._contents("all_to_all", *values)
        for result, content in zip(results, self._divided.exchanged(values, results), strict=True):
            carry(result, content)

    def load_router(self, layer: int, shard: int = 0, num_shards: int = 1) -> tuple[RouterWeight, RouterOptState]:
        """Load the initial weights of the router piece."""
        loaded = super().load_router(layer, shard, num_shards)
        self._carry_initial(loaded, layer, Part(piece="router"), shard, num_shards)
        return loaded

    def load_experts(
        self, layer: int, shard: int = 0, num_shards: int = 1, *, part: int = 0, num_parts: int = 1
    ) -> tuple[ExpertWeight, ExpertOptState]:
        """Load the initial weights of a part of the experts."""
        loaded = super().load_experts(layer, shard, num_shards, part=part, num_parts=num_parts)
        which = Part(expert_index=part, num_expert_parts=num_parts, piece="experts")
        self._carry_initial(loaded, layer, which, shard, num_shards)
        return loaded

    def _carry_initial(
        self, loaded: tuple[Weight, OptState], layer: int, part: Part, shard: int, num_shards: int
    ) -> None:
        """Let a loaded piece carry its initial weights, and its optimizer's state zeros."""
        content = self._divided.load(layer, part)
        moments = np.zeros((self.problem.optimizer.num_moments, content.values.size))
        carry(loaded[0], content.shard(shard, num_shards))
        carry(loaded[1], Flat(moments, part).shard(shard, num_shards))

    def route(self, layer: int, inp: Activation, weight: Weight, num_parts: int, **how: Any) -> RoutedTokens:
        """Send tokens where the router says."""
        x, w = self._contents("route", inp, weight)
        dropped = self.dropped_copies
        tokens = super().route(layer, inp, weight, num_parts, **how)
        self._divided.require_capacity(how.get("capacity_factor"))
        copies, num_dropped = self._divided.route(layer, inp.samples, tokens.sequence, x, w)
        self.dropped_copies = dropped + num_dropped
        carry(tokens, copies)
        return tokens

    def combine(self, layer: int, inp: Activation, outputs: Activation, weight: Weight) -> Activation:
        """Add up what experts made."""
        _, made, _ = self._contents("combine", inp, outputs, weight)
        out = super().combine(layer, inp, outputs, weight)
        carry(out, self._divided.combine(layer, inp.samples, made))
        return out

    def backward_combine(
        self, layer: int, inp: Activation, outputs: Activation, grad: ActivationGrad
    ) -> ExpertOutputsGrad:
        """Take a gradient back to what experts made."""
        _, made, g = self._contents("backward_combine", inp, outputs, grad)
        result = super().backward_combine(layer, inp, outputs, grad)
        carry(result, self._divided.backward_combine(layer, inp.samples, made, g))
        return result

    def backward_route(
        self, layer: int, inp: Activation, grad: ActivationGrad, tokens_grad: ActivationGrad, weight: Weight
    ) -> tuple[RouterGrad, ActivationGrad]:
        """Take gradients back through shared experts, router and norm."""
        _, g, of_copies, w = self._contents("backward_route", inp, grad, tokens_grad, weight)
        results = super().backward_route(layer, inp, grad, tokens_grad, weight)
        contents = self._divided.backward_route(layer, inp.samples, g, of_copies, w)
        for result, content in zip(results, contents, strict=True):
            carry(result, content)
        return results


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
