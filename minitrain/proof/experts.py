"""Mixture of experts: a router, experts that work on the tokens sent to them, and the sum of what comes back.

    routing = routing_of(tokens @ router, bias, rule)         # which experts, with which weights
    inputs = routing.rows_of(tokens, experts)                 # what is sent: dispatch, by all_to_all
    outputs = {e: mlp(inputs[e]) for e in experts}            # on the rank that holds the expert
    y = routing.combine(outputs)                              # what comes back, weighted and summed

Expert parallelism cuts between these lines: a rank that holds some experts works on the rows of other ranks' tokens,
and rows come back in the order in which they were sent. The same rows in another split give the same sums.

The router (Shazeer et al. 2017; Fedus et al. 2021; Jiang et al. 2024) sends a token to the `per_token` experts of the
highest logit. Its weights for them are the softmax over all experts, divided by its sum over the token's experts; of a
single expert, the probability itself, or it would always be 1 and the router would learn nothing. A bias counts in the
choice alone (DeepSeek-AI 2024, section 2.1.2). Left out: auxiliary losses, noise, and DeepSeek's sigmoid.

With a capacity, an expert takes no more than so many tokens of a sample, the first ones (Lepikhin et al. 2020). The
sample is the group that is counted in, so that the outcome does not depend on who computes which samples.

The arithmetic of a mixture-of-experts unit: norm and router at the border (see `units`), all experts *inside*.

What *inside* works on are the normed tokens and the router's logits, in one array: so the gradient of the logits, to
which every part contributes by its share of the experts' outputs, is summed and cut with that of the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp  # type: ignore[import-untyped]  # NumPy's functions, whose operations are followed
import numpy as np
from autograd.tracer import getval  # type: ignore[import-untyped]
from numpy.typing import NDArray

from minitrain.proof.arithmetic import softmax
from minitrain.proof.attention_core import Tokens
from minitrain.proof.units import FeedForward, UnitArithmetic, UnitWeights
from minitrain.workloads.transformer import Transformer


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """How a router chooses.

    Args:
        num_experts: experts.
        per_token: experts that a token is sent to.
        capacity_factor: an expert takes at most this many times its fair share of a sample's tokens, rounded up; None
            for as many as come.

    >>> RoutingRule(num_experts=8, per_token=2, capacity_factor=1.25).capacity(32)
    10
    """

    num_experts: int
    per_token: int
    capacity_factor: float | None = None

    def capacity(self, seq_len: int) -> int:
        """Return the tokens of a sample that an expert takes at most."""
        if self.capacity_factor is None:
            return seq_len
        return math.ceil(self.capacity_factor * seq_len * self.per_token / self.num_experts)


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Where tokens were sent.

    Args:
        probabilities: samples x tokens x experts, the softmax of the logits.
        chosen: samples x tokens x experts, whether a token chose an expert.
        taken: the same, without what exceeds the capacity.
        rule: how experts were chosen.
    """

    probabilities: Any
    chosen: NDArray[np.bool_]
    taken: NDArray[np.bool_]
    rule: RoutingRule

    @property
    def weights(self) -> Any:
        """What each expert's output is multiplied by, samples x tokens x experts; 0 where a token was not taken."""
        return anp.where(self.taken, self.probabilities / self._divisor(), 0)

    @property
    def num_dropped(self) -> int:
        """How many pairs of a token and an expert were dropped."""
        return int(self.chosen.sum() - self.taken.sum())

    def counts(self) -> NDArray[np.int64]:
        """Return the tokens that each expert gets."""
        return np.asarray(self.taken.sum(axis=(0, 1)))

    def rows_of(self, tokens: Any, experts: Iterable[int]) -> dict[int, Any]:
        """Return what is sent to some experts: their tokens, one row each, in order of samples and tokens."""
        return {expert: tokens[self.taken[..., expert]] for expert in experts}

    def combine(self, outputs: Mapping[int, Any]) -> Any:
        """Return the weighted sum, samples x tokens x size, of what some experts gave, row by row as they were sent."""
        size = next(iter(outputs.values())).shape[-1]
        total, weights = np.zeros((*self.taken.shape[:2], size)), self.weights
        for expert, rows in sorted(outputs.items()):
            here = self.taken[..., expert]
            if len(rows):  # a token that was not taken gets some row, with the weight 0
                place = np.cumsum(here).reshape(here.shape) - 1
                total = total + weights[..., expert][..., None] * rows[np.where(here, place, 0)]
        return total

    def _divisor(self) -> Any:
        """Return what probabilities are divided by, samples x tokens x 1."""
        if self.rule.per_token == 1:
            return np.ones((*self.chosen.shape[:2], 1))
        return anp.where(self.chosen, self.probabilities, 0).sum(axis=-1, keepdims=True)


def routing_of(logits: Any, bias: Any, rule: RoutingRule) -> Routing:
    """Return where tokens are sent.

    Args:
        logits: samples x tokens x experts, of whole samples where there is a capacity.
        bias: of the experts, which counts in the choice alone; None for none.
        rule: how to choose.
    """
    preferred = getval(logits if bias is None else logits + bias)
    order = np.argsort(-preferred, axis=-1, kind="stable")[..., : rule.per_token]
    chosen = np.zeros(logits.shape, dtype=np.bool_)
    np.put_along_axis(chosen, order, values=True, axis=-1)
    place = np.cumsum(chosen, axis=1)  # 1 for the first token of a sample that chose the expert
    return Routing(softmax(logits), chosen, chosen & (place <= rule.capacity(logits.shape[1])), rule)


class Moe(UnitArithmetic):
    """Norm, router, routed experts, shared experts.

    Args:
        model: whose unit it is.
        capacity_factor: see `RoutingRule`.
    """

    def __init__(self, model: Transformer, capacity_factor: float | None = None) -> None:
        super().__init__(model)
        self.rule = RoutingRule(model.num_experts, model.experts_per_token, capacity_factor)

    def expert(self, place: int) -> FeedForward:
        """Return one of the experts that are held, by its place among them."""
        return FeedForward(self.model.mlp, "experts.", place)

    def border(self, weights: UnitWeights, x: Tokens) -> tuple[Any, Any]:
        """Return the normed tokens and the router's logits; biases of the last matrices and the input are added once.

        The biases of experts are weighted.
        """
        tokens = self.normed(weights, x.values)
        inner, rest = anp.concatenate([tokens, tokens @ weights["router"]], axis=-1), x.values
        if "experts.down.bias" in weights.arrays:
            rest = rest + self.routing(weights, inner).weights @ weights["experts.down.bias"]
        return inner, rest + weights.bias("shared.down.bias")

    def routed(self, weights: UnitWeights, x: Tokens) -> tuple[Any, Any]:
        """Return tokens and logits of the router piece, which adds what shared experts make, and no experts' biases."""
        inner, rest = self.border(weights, x)
        return inner, rest + self._shared(weights, self.split(inner)[0])

    def split(self, values: Any) -> tuple[Any, Any]:
        """Return tokens and logits, or the gradients of both."""
        return values[..., : self.model.hidden_size], values[..., self.model.hidden_size :]

    def routing(self, weights: UnitWeights, inner: Any) -> Routing:
        """Return where the tokens are sent."""
        return routing_of(self.split(inner)[1], weights.arrays.get("router.bias"), self.rule)

    def inside(self, weights: UnitWeights, inner: Tokens) -> Any:
        """Return the output of some columns of every expert, weighted and summed."""
        tokens, routing = self.split(inner.values)[0], self.routing(weights, inner.values)
        rows = routing.rows_of(tokens, range(self.model.num_experts))
        outputs = {number: self.expert(number)(weights, inputs) for number, inputs in rows.items()}
        return routing.combine(outputs) + self._shared(weights, tokens)

    def _shared(self, weights: UnitWeights, tokens: Any) -> Any:
        """Return what shared experts make of tokens, if there are any."""
        return FeedForward(self.model.mlp, "shared.")(weights, tokens) if self.model.num_shared_experts else 0.0
