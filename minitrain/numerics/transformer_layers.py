"""What a rank computes with the units of a transformer: contents of tensors in, contents of tensors out.

Backward computes forward again from the layer's input, whatever is kept for it otherwise, so that all ways to recompute
give the same numbers. `backward_weight` needs what `backward_input` made of the same gradient on the same rank, as in
zero-bubble schedules (Qi et al. 2023), where it leaves the multiplications for the weights' gradients to be done later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from minitrain.numerics.arithmetic import Adam, Momentum
from minitrain.numerics.arrays import Flat
from minitrain.numerics.attention import Attention
from minitrain.numerics.attention_core import KeysValues, Positions, positions_of_shard
from minitrain.numerics.attention_steps import AttentionSteps, Heads
from minitrain.numerics.divided_experts import Copies, DividedExperts
from minitrain.numerics.embedding_and_head import Embedding, Head, Logits, LogitsGrad, logits_of, rows_at
from minitrain.numerics.latent_attention import LatentAttention
from minitrain.numerics.moe import Moe
from minitrain.numerics.partial_gradients import Border, PartGrad, PartialGrad
from minitrain.numerics.placing import placed
from minitrain.numerics.split_backward import PendingHalves
from minitrain.numerics.tokens import Tokens
from minitrain.numerics.transformer_problem import TransformerProblem
from minitrain.numerics.unit_weights import WHOLE, Part, by_name, flattened, taken
from minitrain.numerics.units import Gradients, Mlp, UnitArithmetic


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Halfway:
    """What a `backward_input` leaves for its `backward_weight`."""

    grad: Tokens
    border: Border
    gradients: Gradients

    def weight_gradient(self) -> PartGrad:
        """Return the gradient of the weights."""
        border = self.border
        own = flattened({name: grad() for name, grad in self.gradients.items()}, border.unit, border.weights.part)
        return PartGrad(own, border.unit, border.weights.part, (border,))


class TransformerLayers:
    """The layers of one rank.

    Args:
        problem: what is trained.
    """

    def __init__(self, problem: TransformerProblem) -> None:
        self.problem = problem
        attention = (Attention if problem.model.latent is None else LatentAttention)(problem.model)
        moe = Moe(problem.model, problem.capacity_factor)
        self._arithmetic: dict[str, UnitArithmetic] = {
            "embedding": Embedding(problem.model),
            "attention": attention,
            "mlp": Mlp(problem.model),
            "moe": moe,
            "head": Head(problem.model),
        }
        self._halves = PendingHalves[_Halfway](problem)
        self.steps = AttentionSteps(attention)
        self.divided_experts = DividedExperts(problem, moe)

    @property
    def optimizer(self) -> Adam | Momentum:
        """What takes the step."""
        return self.problem.optimizer

    def load(self, layer: int, part: int, num_parts: int) -> Flat:
        """Return the initial weights of a layer, or of a part of it."""
        which = Part(part, num_parts)
        values = taken(self.problem.initial_weight(layer), self.problem.units[layer], which)
        return Flat(placed(values, self.problem), which)

    def positions(self, shards: Iterable[int], num_shards: int) -> Positions:
        """Return the positions of some shards of the sequence, in their order."""
        return np.concatenate([positions_of_shard(self.problem.seq_len, shard, num_shards) for shard in sorted(shards)])

    def inputs(self, samples: Iterable[int], global_batch_size: int, positions: Positions | None = None) -> Tokens:
        """Return the tokens of some samples, at some positions or all."""
        positions = np.arange(self.problem.seq_len) if positions is None else positions
        numbers: Any = rows_at(self.problem.inputs(global_batch_size), samples, positions)
        return Tokens(numbers, positions)

    def forward(
        self, layer: int, inp: Any, x: Tokens | Copies, weight: Flat, global_batch_size: int
    ) -> Tokens | Copies | Logits:
        """Return what a layer, or a part of it, makes of its input."""
        if isinstance(x, Copies):
            return self.divided_experts.forward(layer, x, weight)
        unit, part = self.problem.units[layer], weight.part or WHOLE
        arithmetic, weights = self._arithmetic[unit.kind], by_name(weight.values, unit, part)
        inner = arithmetic.before(weights, x)
        made = arithmetic.inside(weights, inner)
        if part.index == 0:
            made = made + arithmetic.after(weights, inner)
            made = made + x.values if arithmetic.has_residual else made
        if unit.kind != "head":
            return x.with_values(made)
        targets = rows_at(self.problem.targets(global_batch_size), inp.samples, x.positions)
        return logits_of(x.with_values(made), weights, self.problem.model.vocab_size, targets)

    def loss(self, logits: Logits, samples: Iterable[int], global_batch_size: int) -> LogitsGrad:  # noqa: ARG002  (the logits know their targets)
        """Return the gradient of the mean loss over all tokens of the global batch."""
        return logits.gradient(global_batch_size * self.problem.seq_len)

    def backward(self, layer: int, inp: Any, x: Tokens | Copies, grad: Any, weight: Flat) -> tuple[Any, Any]:
        """Return the gradients of the weights and of the input."""
        if isinstance(x, Copies):
            return self.divided_experts.backward(layer, x, grad, weight)
        halfway = self._go_halfway(layer, x, grad, weight, _own_positions(inp, x))
        grad_input = self._of_input(halfway)
        return halfway.weight_gradient(), grad_input

    def backward_input(self, layer: int, inp: Any, x: Tokens | Copies, grad: Any, weight: Flat) -> Any:
        """Return the gradient of the input, and keep what the weights' needs."""
        if isinstance(x, Copies):
            return self.divided_experts.backward_input(layer, inp.samples, x, grad, weight)
        halfway = self._go_halfway(layer, x, grad, weight, _own_positions(inp, x))
        self._halves.keep(layer, inp.samples, halfway)
        return self._of_input(halfway)

    def backward_weight(self, layer: int, inp: Any, x: Tokens | Copies, grad: Any) -> PartGrad | Flat:
        """Return the gradient of the weights, once for each `backward_input`.

        Raises:
            LawError: there was none on this rank, for these samples and this gradient.
        """
        if isinstance(x, Copies):
            return self.divided_experts.backward_weight(layer, inp.samples, grad)
        return self._halves.take(layer, inp.samples, lambda half: _is_same(half, grad)).weight_gradient()

    def keys_values(self, layer: int, inp: Any, x: Tokens, weight: Flat) -> KeysValues:
        """Return the keys and values of an attention that is taken in steps."""
        weights = by_name(weight.values, self.problem.units[layer], weight.part or WHOLE)
        return self.steps.begin(layer, inp, x, weights)

    def backward_keys_values(
        self, layer: int, inp: Any, grad_queries: Heads, grad_memory: KeysValues
    ) -> tuple[PartGrad, Any]:
        """Return the gradients of weights and input of an attention that is taken in steps."""
        found, of_inner, gradients = self.steps.end(layer, inp, grad_queries, grad_memory)
        unit, x = self.problem.units[layer], found.x
        assert found.grad is not None  # the steps have it by now
        arithmetic = self._arithmetic["attention"]
        border = Border(unit, arithmetic, found.weights, x, found.inner, found.grad, _own_positions(inp, x))
        halfway = _Halfway(x.with_values(of_inner), border, gradients)
        grad_input = self._of_input(halfway)
        return halfway.weight_gradient(), grad_input

    def _go_halfway(self, layer: int, x: Tokens, grad: Any, weight: Flat, own: Positions) -> _Halfway:
        """Take a gradient back to the border of a unit."""
        unit, part = self.problem.units[layer], weight.part or WHOLE
        arithmetic, weights = self._arithmetic[unit.kind], by_name(weight.values, unit, part)
        tokens = grad.of_part(part.index, part.count) if isinstance(grad, LogitsGrad) else grad
        inner = arithmetic.before(weights, x)
        border = Border(unit, arithmetic, weights, x, inner, tokens, own)
        of_inner, gradients = arithmetic.inside_backward(weights, inner, tokens.values)
        return _Halfway(inner.with_values(of_inner), border, gradients)

    def _of_input(self, halfway: _Halfway) -> PartialGrad | Tokens:
        """Return the gradient of the input, or a part's share of it; the embedding has nothing to sum."""
        border, part = halfway.border, halfway.border.weights.part
        if isinstance(border.arithmetic, Embedding):
            border.cross(halfway.grad)
        return PartialGrad(halfway.grad, frozenset([part.index]), part.count, (border,)).finished()


def _own_positions(inp: Any, x: Tokens) -> Positions:
    """Return the positions that gradients of what all parts hold cover: those of the shard that was gathered."""
    shard = getattr(getattr(inp, "_passage", None), "gathered_from", None)
    return x.positions if shard is None else shard._content.positions


def _is_same(halfway: _Halfway, grad: Any) -> bool:
    """Return whether a gradient is the one that was taken halfway."""
    part = halfway.border.weights.part
    tokens = grad.of_part(part.index, part.count) if isinstance(grad, LogitsGrad) else grad
    return np.array_equal(tokens.values, halfway.border.grad.values)
