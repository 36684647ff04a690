"""The layers that a rank computes: dense ones, or the units of a transformer.

Each has a method for each operation of a rank, with contents of tensors in and out (see
`minitrain.engine.observers.ContentExecutor`, which attaches them to tensors).

Backward computes forward again from the layer's input, whatever is kept for it otherwise, so that all ways to recompute
give the same numbers. `backward_weight` needs what `backward_input` made of the same gradient on the same rank, as in
zero-bubble schedules (Qi et al. 2023), where it leaves the multiplications for the weights' gradients to be done later.

The executor of proofs: every operation computes in NumPy, in addition to what a `Model` does.

What a rank computes alone is in `minitrain.proof.layers`; what comes of collectives and messages is here.

With experts, the router's own choice decides which tokens go where, and which an expert with a capacity does not take.
Prices stay those of `imbalance`, so that the log is that of a run without numbers. `model.copies_by_expert` says what
the router has chosen, which can be given as `imbalance`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from minitrain.engine.observers import Computed, ContentExecutor
from minitrain.errors import UsageError
from minitrain.operations.collectives import COLLECTIVES, Collective
from minitrain.proof import arithmetic, units
from minitrain.proof.arithmetic import Array, Averaged
from minitrain.proof.attention import Attention, AttentionSteps, Heads, LatentAttention
from minitrain.proof.attention_core import KeysValues, Packing, Positions, Tokens, positions_of_shard
from minitrain.proof.compression import Compressing
from minitrain.proof.experts import Moe
from minitrain.proof.partial_gradients import Border, Copies, DividedExperts, PartGrad, PartialGrad, PendingHalves
from minitrain.proof.problem import (
    MOST_RANKS,
    Flat,
    Problem,
    Rows,
    TransformerProblem,
    at_home,
    brought,
    held,
    of_rank,
    on_place,
    placed,
)
from minitrain.tensors.placed import COPIES, ExpertWeight, KeysValuesGrad
from minitrain.workloads.transformer_workload import TransformerWorkload

UNCUT = (1, "sequence")
"""How a sequence is cut that is whole: into how many shards, of what."""


@dataclass(frozen=True, slots=True, eq=False)
class _Halfway:
    """What a `backward_input` leaves for its `backward_weight`.

    Args:
        grad: the gradient at the border.
        border: which.
        of_weights: the gradient of the part's own weights, flat.
    """

    grad: Tokens
    border: Border
    of_weights: Array

    def weight_gradient(self) -> PartGrad:
        """Return the gradient of the weights."""
        return PartGrad(self.of_weights, self.border.unit, self.border.part, (self.border,))


class _Trained(Compressing, ABC):
    """What all layers of a rank have in common: their initial weights, their inputs, and the optimizer.

    Args:
        problem: what is trained.

    Attributes:
        final_states: optimizer state after the rank's last update, by layer that it updated.
        final_expert_states: likewise, of its part of the experts.
        copies_by_expert: how many copies of tokens each expert was sent by the rank's router, by layer.
    """

    def __init__(self) -> None:
        self.final_states: dict[int, Flat] = {}
        self.final_expert_states: dict[int, Flat] = {}
        self.copies_by_expert: dict[int, Array] = {}

    @abstractmethod
    def load(self, layer: int, part: int, num_parts: int) -> Flat:
        """Return the initial weights of a layer, or of a part of it."""

    @abstractmethod
    def positions(self, shards: Iterable[int], num_shards: int) -> Any:
        """Return the positions of some shards of the sequence, in their order."""

    @abstractmethod
    def inputs(
        self, samples: Iterable[int], global_batch_size: int, positions: Any = None, cut: tuple[int, str] = UNCUT
    ) -> Any:
        """Return the model's input for some samples, at some positions of their sequence or all; how it is cut."""

    def load_weights(self, done: Computed) -> tuple[Flat, Flat]:
        """Return the initial weights of a layer, or of a part of it, and its optimizer's state."""
        weight = done.made[0]
        return self._loaded(self.load(done.layer, min(weight.parts), weight.num_parts), weight)

    def _loaded(self, content: Flat, weight: Any) -> tuple[Flat, Flat]:
        """Return a weight's own shard of initial weights, and of the optimizer's state: zeros, and an average."""
        moments = np.zeros((self.problem.optimizer.num_moments, content.values.size))
        if isinstance(self.problem.optimizer, Averaged):
            moments[-1] = at_home(content.values)
        shard = min(weight.shards), weight.num_shards
        return content.shard(*shard), Flat(moments, content.part).shard(*shard)

    def get_input_activation(self, done: Computed) -> Any:
        """Return the inputs of some samples."""
        return self.inputs(done.made.samples, done.model.global_batch_size)

    def get_input_shard(self, done: Computed) -> Any:
        """Return the inputs of some samples, for some shards of their sequence."""
        sequence = done.made.sequence
        positions = self.positions(sequence.shards, sequence.num_shards)
        return self.inputs(done.made.samples, done.model.global_batch_size, positions, sequence.cut[::2])

    def update(self, done: Computed, grad: Flat, weight: Flat, state: Flat) -> tuple[Flat, Flat]:
        """Take the optimizer's step on the elements that the weight holds."""
        updated, meant = done.made[0], done.model._semantics
        if meant is not None:  # the mean gradient of the samples of one of several steps
            batch, seen = done.model.global_batch_size, len(done.given[1].samples)
            grad = Flat(grad.values * (batch / seen), grad.part)
        optimizer = self.problem.optimizer_of(done.layer)
        values, moments = optimizer.step(weight.values, grad.values, state.values, updated.step)
        if meant is not None and not meant.in_turn:
            return Flat(values, weight.part), Flat(moments, weight.part)
        return Flat(values, weight.part), self._kept(done, updated, weight, moments)

    def local_copy(self, done: Computed, weight: Flat) -> Flat:  # noqa: ARG002  (as all operations)
        """Return the weight's own values."""
        return weight

    def load_outer_state(self, done: Computed, weight: Flat) -> Flat:  # noqa: ARG002
        """Return a momentum of zero."""
        return Flat(np.zeros((1, weight.values.size)), weight.part)

    def outer_gradient(self, done: Computed, weight: Flat, local: Flat) -> Flat:
        """Return the replica's share of the mean difference."""
        return Flat((weight.values - local.values) / done.model._semantics.replicas, weight.part)

    def outer_update(self, done: Computed, grad: Flat, weight: Flat, momentum: Flat | None = None) -> Any:
        """Take the declared outer optimizer's step."""
        outer = done.model._semantics.outer
        if momentum is None:
            return Flat(weight.values - outer.rate * grad.values, weight.part)
        moved = outer.decay * momentum.values[0] + grad.values
        values = weight.values - outer.rate * (grad.values + outer.decay * moved)
        return Flat(values, weight.part), self._kept(done, done.made[0], weight, moved[None])

    def mix(self, done: Computed, weight: Flat, local: Flat) -> Flat:
        """Return the declared mixture."""
        kept = done.model._semantics.mixing
        return Flat(kept * local.values + (1 - kept) * weight.values, weight.part)

    def _kept(self, done: Computed, updated: Any, weight: Flat, moments: Array) -> Flat:
        """Keep the optimizer's state of the elements that a weight holds, and return it."""
        here = held(updated.shards, updated.num_shards, weight.values.size)
        states = self.final_expert_states if updated.__class__ is ExpertWeight else self.final_states
        before = states.get(done.layer)
        kept = np.full_like(moments, np.nan) if before is None or before.part != weight.part else before.values
        states[done.layer] = Flat(np.where(here, moments, kept), weight.part)
        return Flat(moments, weight.part)


class TransformerLayers(_Trained):
    """The layers of one rank that trains a transformer; arguments called x, grad and weight are contents.

    Args:
        problem: what is trained.
    """

    def __init__(self, problem: TransformerProblem) -> None:
        super().__init__()
        self.problem: TransformerProblem = problem
        attention = (Attention if problem.model.latent is None else LatentAttention)(problem.model)
        moe = Moe(problem.model, problem.capacity_factor)
        self._arithmetic: dict[str, units.UnitArithmetic] = {
            "embedding": units.Embedding(problem.model),
            "attention": attention,
            "mlp": units.Mlp(problem.model),
            "moe": moe,
            "head": units.Head(problem.model),
        }
        self._halves = PendingHalves[_Halfway](problem)
        self._steps = steps = AttentionSteps(problem, attention)
        self.keys_values, self.attend, self.project = steps.keys_values, steps.attend, steps.project
        self.backward_project, self.backward_attend = steps.backward_project, steps.backward_attend
        self._experts = experts = DividedExperts(problem, moe)
        self.copies_by_expert = experts.copies_by_expert
        self.route, self.combine, self.exchanged = experts.route, experts.combine, experts.exchanged
        self.backward_combine, self.backward_route = experts.backward_combine, experts.backward_route

    def table_gradient(self, done: Computed, grad: Any) -> Flat:
        """Return the gradient of the table, with a row for each token."""
        first, shape = self.problem.units[done.layer].table(grad.part.degrees)
        values = grad.values[first : first + prod(shape)].reshape(shape)
        return Flat((values if done.layer == 0 else values.T).reshape(-1), grad.part)

    def with_table(self, done: Computed, grad: Any, table: Flat) -> Flat | PartGrad:
        """Return a gradient with that of the table by both uses."""
        first, shape = self.problem.units[done.layer].table(grad.part.degrees)
        rows = table.values.reshape(shape if done.layer == 0 else shape[::-1])
        values = (rows if done.layer == 0 else rows.T).reshape(-1)
        found = np.concatenate([grad.values[:first], values, grad.values[first + values.size :]])
        if isinstance(grad, PartGrad):  # of which ranks may have shares to sum yet
            return replace(grad, own=found, awaited=())
        return Flat(found, grad.part)

    def load(self, layer: int, part: int, num_parts: int) -> Flat:
        """Return the initial weights of a layer, or of a part of it."""
        return self._initial(layer, units.Part(part, num_parts))

    def load_router(self, done: Computed) -> tuple[Flat, Flat]:
        """Return the initial weights of the router piece, and its optimizer's state."""
        return self._loaded(self._initial(done.layer, units.Part(piece="router")), done.made[0])

    def load_experts(self, done: Computed) -> tuple[Flat, Flat]:
        """Return the initial weights of a part of the experts, and its optimizer's state."""
        weight = done.made[0]
        part = units.Part(expert_index=min(weight.parts), num_expert_parts=weight.num_parts, piece="experts")
        return self._loaded(self._initial(done.layer, part), weight)

    def _initial(self, layer: int, part: units.Part) -> Flat:
        """Return the initial weights of some part of a layer."""
        values = units.taken(self.problem.initial_weight(layer), self.problem.units[layer], part)
        return Flat(placed(values, self.problem), part)

    def positions(self, shards: Iterable[int], num_shards: int) -> Positions:
        """Return the positions of some shards of the sequence, in their order."""
        return np.concatenate([positions_of_shard(self.problem.seq_len, shard, num_shards) for shard in sorted(shards)])

    def inputs(
        self,
        samples: Iterable[int],
        global_batch_size: int,
        positions: Positions | None = None,
        cut: tuple[int, str] = UNCUT,
    ) -> Tokens:
        """Return the tokens of some samples, at some positions or all; into how many shards of what they are cut."""
        positions = np.arange(self.problem.seq_len) if positions is None else positions
        found, documents = Tokens(np.zeros(()), positions), self.problem.model.documents
        if documents is not None:
            lengths = [documents.of_sample(sample, self.problem.seq_len) for sample in sorted(samples)]
            found = replace(found, packing=Packing.of(lengths, *cut))
        numbers: Any = units.rows_at(self.problem.inputs(global_batch_size), samples, found.where)
        return found.with_values(numbers)

    def forward(self, done: Computed, x: Tokens | Copies, weight: Flat) -> Tokens | Copies | units.Logits:
        """Return what a layer, or a part of it, makes of its input."""
        if isinstance(x, Copies):
            return self._experts.forward(done.layer, x, weight)
        unit, part = self.problem.units[done.layer], weight.part or units.WHOLE
        arithmetic, weights = self._arithmetic[unit.kind], units.by_name(weight.values, unit, part)
        inner, rest = arithmetic.border(weights, x)
        made = arithmetic.inside(weights, x.with_values(inner))
        made = made + rest if part.index == 0 else made
        if unit.kind != "head":
            return x.with_values(made)
        targets = units.rows_at(self.problem.targets(done.model.global_batch_size), done.inp.samples, x.where)
        return units.logits_of(x.with_values(made), weights, self.problem.model.vocab_size, targets)

    def loss(self, done: Computed, logits: units.Logits) -> units.LogitsGrad:
        """Return the gradient of the mean loss over all tokens of the global batch."""
        return logits.gradient(done.model.global_batch_size * self.problem.seq_len)

    def backward(self, done: Computed, x: Tokens | Copies, grad: Any, weight: Flat) -> tuple[Any, Any]:
        """Return the gradients of the weights and of the input."""
        if isinstance(x, Copies):
            return self._experts.backward(done.layer, x, grad, weight)
        halfway = self._go_halfway(done.layer, x, grad, weight, _own_positions(done.inp, x))
        grad_input = self._of_input(halfway)
        return halfway.weight_gradient(), grad_input

    def backward_input(self, done: Computed, x: Tokens | Copies, grad: Any, weight: Flat) -> Any:
        """Return the gradient of the input, and keep what the weights' needs."""
        layer, inp = done.layer, done.inp
        if isinstance(x, Copies):
            return self._experts.backward_input(layer, inp.samples, x, grad, weight)
        halfway = self._go_halfway(layer, x, grad, weight, _own_positions(inp, x))
        self._halves.keep(layer, inp.samples, halfway)
        return self._of_input(halfway)

    def backward_weight(self, done: Computed, x: Tokens | Copies, grad: Any, _: Any = None) -> PartGrad | Flat:
        """Return the gradient of the weights, once for each `backward_input`.

        Raises:
            LawError: there was none on this rank, for these samples and this gradient.
        """
        layer, samples = done.layer, done.inp.samples
        if isinstance(x, Copies):
            return self._experts.backward_weight(layer, samples, grad)
        return self._halves.take(layer, samples, lambda half: _is_same(half, grad)).weight_gradient()

    def backward_keys_values(
        self, done: Computed, _x: Any, _weight: Any, grad_queries: Heads, grad_memory: KeysValues
    ) -> tuple[PartGrad, Any]:
        """Return the gradients of weights and input of an attention that is taken in steps."""
        found, of_inner, of_weights = self._steps.end(done, grad_queries, grad_memory)
        assert found.grad is not None  # the steps have it by now
        border = self._border(done.layer, found.weights, found.x, found.grad, _own_positions(done.inp, found.x))
        halfway = _Halfway(found.x.with_values(of_inner), border, of_weights)
        grad_input = self._of_input(halfway)
        return halfway.weight_gradient(), grad_input

    def _border(self, layer: int, weight: Flat, x: Tokens, grad: Tokens, own: Positions) -> Border:
        unit, part = self.problem.units[layer], weight.part or units.WHOLE
        return Border(unit, self._arithmetic[unit.kind], weight.values, part, x, grad, own)

    def _go_halfway(self, layer: int, x: Tokens, grad: Any, weight: Flat, own: Positions) -> _Halfway:
        """Take a gradient back to the border of a unit."""
        unit, part = self.problem.units[layer], weight.part or units.WHOLE
        tokens = grad.of_part(part.index, part.count) if isinstance(grad, units.LogitsGrad) else grad
        border = self._border(layer, weight, x, tokens, own)
        inner, _ = border.arithmetic.border(units.by_name(weight.values, unit, part), x)
        of_weights, (of_inner,) = units.gradients(
            lambda weights, values: border.arithmetic.inside(weights, x.with_values(values)),
            weight.values,
            unit,
            part,
            [inner],
            tokens.values,
        )
        return _Halfway(x.with_values(of_inner), border, of_weights)

    def _of_input(self, halfway: _Halfway) -> PartialGrad | Tokens:
        """Return the gradient of the input, or a part's share of it; the embedding has nothing to sum."""
        border, part = halfway.border, halfway.border.part
        if isinstance(border.arithmetic, units.Embedding):
            border.cross(halfway.grad)
        return PartialGrad(halfway.grad, frozenset([part.index]), part.count, (border,)).finished()


def _own_positions(inp: Any, x: Tokens) -> Positions:
    """Return the positions that gradients of what all parts hold cover: those of the shard that was gathered."""
    shard = getattr(getattr(inp, "_passage", None), "gathered_from", None)
    return x.positions if shard is None else shard._content.positions


def _is_same(halfway: _Halfway, grad: Any) -> bool:
    """Return whether a gradient is the one that was taken halfway."""
    part = halfway.border.part
    tokens = grad.of_part(part.index, part.count) if isinstance(grad, units.LogitsGrad) else grad
    return np.array_equal(tokens.values, halfway.border.grad.values)


class DenseLayers(_Trained):
    """Small dense layers; see `minitrain.proof.arithmetic`.

    Args:
        problem: what is trained.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem: Problem = problem

    def load(self, layer: int, part: int, num_parts: int) -> Flat:  # noqa: ARG002  (it is the same for all parts of one)
        """Return the initial weight of a whole layer.

        Raises:
            UsageError: it is a part that is wanted.
        """
        if num_parts > 1:
            raise UsageError(
                f"the dense layers of numerics are whole, and cannot be divided into {num_parts} parts; train a "
                'transformer, as in workload="tiny"'
            )
        return Flat(placed(self.problem.initial_weight(layer).ravel(), self.problem))

    def positions(self, shards: Iterable[int], num_shards: int) -> None:
        """Require a whole sequence: a sample is one row.

        Raises:
            UsageError: it is cut.
        """
        if len(list(shards)) < num_shards:
            raise UsageError(
                f"the dense layers of numerics have one row a sample, which cannot be cut into {num_shards} shards of "
                'a sequence; train a transformer, as in workload="tiny"'
            )

    def inputs(self, samples: Iterable[int], global_batch_size: int, positions: Any = None, cut: Any = UNCUT) -> Rows:  # noqa: ARG002
        """Return the inputs of some samples."""
        return Rows(placed(_rows_of(self.problem.inputs(global_batch_size), samples), self.problem))

    def forward(self, _: Computed, x: Rows, weight: Flat) -> Rows:
        """Return what a layer makes of its input."""
        return Rows(arithmetic.forward(x.values, self._matrix(weight)))

    def loss(self, done: Computed, output: Rows) -> Rows:
        """Return the gradient of the loss."""
        batch = done.model.global_batch_size
        targets = _rows_of(self.problem.targets(batch), done.made.samples)
        return Rows(arithmetic.loss_gradient(output.values, targets, batch))

    def backward(self, done: Computed, x: Rows, grad: Rows, weight: Flat) -> tuple[Flat, Rows]:
        """Return the gradients of weight and input."""
        return self.backward_weight(done, x, grad), self.backward_input(done, x, grad, weight)

    def backward_input(self, _: Computed, x: Rows, grad: Rows, weight: Flat) -> Rows:
        """Return the gradient of the input."""
        return Rows(arithmetic.backward_input(x.values, grad.values, self._matrix(weight)))

    def backward_weight(self, _: Computed, x: Rows, grad: Rows, _weight: Any = None) -> Flat:
        """Return the gradient of the weight."""
        return Flat(arithmetic.backward_weight(x.values, grad.values).ravel())

    def _matrix(self, weight: Flat) -> Array:
        """Return a weight as the matrix that it is."""
        return weight.values.reshape(self.problem.width, self.problem.width)


def _rows_of(numbers: Array, samples: Iterable[int]) -> Array:
    """Return the rows of some samples, in ascending order."""
    return numbers[sorted(samples)]


def problem_of(numerics: Any, workload: Any = None) -> Problem | TransformerProblem:
    """Return the problem that `numerics` names for what is trained.

    Args:
        numerics: "numpy" for the default, or a `Problem`, of which a transformer takes seed and optimizer, or a
            `TransformerProblem`.
        workload: what is trained; dense layers unless it is a transformer.

    Raises:
        UsageError: it is something else, or of another model, or the model cannot be computed with.
    """
    if isinstance(numerics, TransformerProblem):
        return on_place(_of_workload(numerics, workload))
    problem = Problem() if isinstance(numerics, str) and numerics == "numpy" else numerics
    if not isinstance(problem, Problem):
        raise UsageError(f'numerics must be None, "numpy" or a minitrain.proof.Problem, got {numerics!r:.80}')
    if isinstance(workload, TransformerWorkload):
        given = problem.seed, problem.optimizer
        problem = TransformerProblem(workload.model, workload.seq_len, *given, backend=problem.backend)
    return on_place(problem)


def _of_workload(problem: TransformerProblem, workload: Any) -> TransformerProblem:
    """Require that a problem is of the workload that is trained."""
    if not isinstance(workload, TransformerWorkload) or (workload.model, workload.seq_len) != (
        problem.model,
        problem.seq_len,
    ):
        raise UsageError(
            f"numerics are of {problem.model.name} with seq_len={problem.seq_len}, and the workload is "
            f"{workload!r:.80}; give the same model and length as workload= and seq_len="
        )
    return problem


def layers_of(
    problem: Problem | TransformerProblem, world_size: int, global_batch_size: int
) -> DenseLayers | TransformerLayers:
    """Return new layers of one rank.

    Raises:
        UsageError: so many ranks are too many to compute with, or with so many samples of a transformer.
    """
    if world_size > MOST_RANKS:
        raise UsageError(
            f"world_size ({world_size}) must be at most {MOST_RANKS} with real arrays, as every rank computes with its "
            "own; take fewer, of which the program is the same",
            world_size=world_size,
        )
    if not isinstance(problem, TransformerProblem):
        return DenseLayers(problem)
    problem.require_sizes(world_size, global_batch_size)
    return TransformerLayers(problem)


def _plus(content: Any) -> Any:
    """Return the function that adds contents over ranks; a sum of parts is finished by each rank afterwards."""
    return getattr(type(content), "plus", type(content).add)


class ArraysExecutor(ContentExecutor):
    """Computes what is trained; a model gets the following attributes.

    - `problem`: what it trains, on its own backend.
    - `final_states`: optimizer state after the rank's last update, by layer that it updated.
    - `final_expert_states`: likewise, of its part of the experts.
    - `copies_by_expert`: the copies of tokens that each expert of a layer was sent by this rank's router, by layer.

    Args:
        problem: the data, initial weights and optimizer, as `minitrain.proof.problem_of` takes them.
    """

    def __init__(self, problem: Problem | TransformerProblem | str = "numpy") -> None:
        self._given = problem

    def arithmetic_of(self, model: Any) -> DenseLayers | TransformerLayers:
        """Return the layers of a rank."""
        model.problem = of_rank(problem_of(self._given, model._runtime_predictor.workload), model._rank)
        layers = layers_of(model.problem, model.world_size, model.global_batch_size)
        model.final_states, model.final_expert_states = layers.final_states, layers.final_expert_states
        model.copies_by_expert = layers.copies_by_expert
        return layers

    def contents(self, model: Any, op: str, values: Sequence[Any]) -> list[Any]:
        """Return what tensors carry, on the rank's own backend.

        Raises:
            LawError: a tensor carries nothing.
        """
        found, place = super().contents(model, op, values), model.problem.backend
        return found if place is None else [brought(content, place) for content in found]

    def settle(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Combine the members' numbers, reductions in rank order."""
        model, record = operations[0].model, COLLECTIVES[operations[0].op]
        values = [operation.value for operation in operations]
        if record.gives == "copy":
            root = next(value for value in values if value is not None)
            values = [root] * len(values)
        if values[0].__class__ in COPIES:
            self.contents(model, "all_to_all", values)
            for result, content in zip(results, model._arithmetic.exchanged(values, results), strict=True):
                result._content = content
        elif record.gives == "exchange":
            for value, result in zip(zip(*values, strict=True), results, strict=True):
                self._move(model, list(value), result)
        elif record.gives != "nothing":
            self._meet(model, record, values, results)

    def _meet(self, model: Any, record: Collective, values: Sequence[Any], results: Sequence[Any]) -> None:
        """Give the results of a collective their numbers; of buckets, tensor by tensor."""
        if isinstance(results[0], list):
            for places in zip(*values, *results, strict=True):
                self._meet(model, record, places[: len(values)], places[len(values) :])
            return
        contents = self.contents(model, record.name, values)
        if record.gives == "copy":
            for result in results:
                result._content = contents[0]
            return
        total = reduce(type(contents[0]).combine if record.gives == "union" else _plus(contents[0]), contents)
        for index, result in [(index, each) for index, each in enumerate(results) if each is not None]:  # or one root
            mine = contents[index].mine(total) if hasattr(total, "mine") else total
            if result.__class__ is KeysValuesGrad:  # its shards need not be the index-th ones
                mine = mine.at(model._arithmetic.positions(result.sequence.shards, result.sequence.num_shards))
            elif record.scatters and len(results) > 1:
                mine = mine.shard(index, len(results))
            result._content = mine.finished() if hasattr(mine, "finished") else mine

    def receive(self, operation: Any, value: Any, result: Any) -> None:
        """Copy the numbers of a message to what is received."""
        self._move(operation.model, value, result)

    def _move(self, model: Any, value: Any, result: Any) -> None:
        """Give a copy the numbers of its original; of a bucket, tensor by tensor."""
        if isinstance(value, list):
            for item, copy in zip(value, result, strict=True):
                self._move(model, item, copy)
        else:
            result._content = self.contents(model, "a message", [value])[0]
