"""Mixture of experts: a router, experts that work on the tokens sent to them, and the sum of what comes back.

    routing = route(tokens, router, bias, rule)               # which experts, with which weights
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

The arithmetic of a mixture-of-experts unit: norm and router *before* (see `units`), all experts *inside*.

What *inside* works on are the normed tokens and the router's logits, in one array: so the gradient of the logits, to
which every part contributes by its share of the experts' outputs, is summed and cut with that of the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from minitrain.proof.arithmetic import Array, outer_sum, softmax
from minitrain.proof.attention_core import Tokens
from minitrain.proof.units import FeedForward, Gradients, UnitArithmetic, UnitWeights, bias_gradient
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

    probabilities: Array
    chosen: NDArray[np.bool_]
    taken: NDArray[np.bool_]
    rule: RoutingRule

    @property
    def weights(self) -> Array:
        """What each expert's output is multiplied by, samples x tokens x experts; 0 where a token was not taken."""
        return np.where(self.taken, self.probabilities / self._divisor(), 0)

    @property
    def num_dropped(self) -> int:
        """How many pairs of a token and an expert were dropped."""
        return int(self.chosen.sum() - self.taken.sum())

    def counts(self) -> NDArray[np.int64]:
        """Return the tokens that each expert gets."""
        return np.asarray(self.taken.sum(axis=(0, 1)))

    def rows_of(self, tokens: Array, experts: Iterable[int]) -> dict[int, Array]:
        """Return what is sent to some experts: their tokens, one row each, in order of samples and tokens."""
        return {expert: tokens[self.taken[..., expert]] for expert in experts}

    def combine(self, outputs: Mapping[int, Array]) -> Array:
        """Return the weighted sum, samples x tokens x size, of what some experts gave, row by row as they were sent."""
        size = next(iter(outputs.values())).shape[-1]
        total, weights = np.zeros((*self.taken.shape[:2], size)), self.weights
        for expert, rows in sorted(outputs.items()):
            here = self.taken[..., expert]
            total[here] += weights[here, expert][:, None] * rows
        return total

    def combine_backward(self, grad: Array, outputs: Mapping[int, Array]) -> tuple[dict[int, Array], Array]:
        """Take the gradient of the sum back to experts and router.

        Args:
            grad: gradient of what `combine` returned.
            outputs: what it was given.

        Returns:
            The gradients of the rows, and that of the logits as far as it comes from these experts. The latter adds
            up over experts, and over the parts of an expert.
        """
        weights, of_rows = self.weights, {}
        of_weights = np.zeros(self.taken.shape)
        for expert, rows in sorted(outputs.items()):
            here = self.taken[..., expert]
            of_rows[expert] = weights[here, expert][:, None] * grad[here]
            of_weights[here, expert] = (rows * grad[here]).sum(axis=-1)
        return of_rows, self.logits_backward(of_weights)

    def logits_backward(self, grad: Array) -> Array:
        """Return the gradient of the logits from that of the weights, to which it is linear."""
        of_shares = np.where(self.taken, grad, 0) / self._divisor()
        if self.rule.per_token > 1:
            shares = np.where(self.chosen, self.probabilities / self._divisor(), 0)
            of_shares = np.where(self.chosen, of_shares - (of_shares * shares).sum(axis=-1, keepdims=True), 0)
        along = (of_shares * self.probabilities).sum(axis=-1, keepdims=True)
        return cast("Array", self.probabilities * (of_shares - along))

    def _divisor(self) -> Array:
        """Return what probabilities are divided by, samples x tokens x 1."""
        if self.rule.per_token == 1:
            return np.ones((*self.chosen.shape[:2], 1))
        return cast("Array", np.where(self.chosen, self.probabilities, 0).sum(axis=-1, keepdims=True))


def route(tokens: Array, router: Array, bias: Array | None, rule: RoutingRule) -> Routing:
    """Return where tokens are sent.

    Args:
        tokens: samples x tokens x hidden_size, whole samples where there is a capacity.
        router: hidden_size x experts.
        bias: of the experts, which counts in the choice alone; None for none.
        rule: how to choose.
    """
    return routing_of(tokens @ router, bias, rule)


def routing_of(logits: Array, bias: Array | None, rule: RoutingRule) -> Routing:
    """Return where tokens with these logits are sent; arguments as those of `route`."""
    preferred = logits if bias is None else logits + bias
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
        self.shared = FeedForward(model.mlp, "shared.")

    def expert(self, place: int) -> FeedForward:
        """Return one of the experts that are held, by its place among them."""
        return FeedForward(self.model.mlp, "experts.", place)

    def before(self, weights: UnitWeights, x: Tokens) -> Tokens:
        """Return the normed tokens and the router's logits."""
        tokens = super().before(weights, x).values
        return x.with_values(np.concatenate([tokens, tokens @ weights["router"]], axis=-1))

    def split(self, values: Array) -> tuple[Array, Array]:
        """Return tokens and logits, or the gradients of both."""
        return values[..., : self.model.hidden_size], values[..., self.model.hidden_size :]

    def routing(self, weights: UnitWeights, inner: Tokens) -> Routing:
        """Return where the tokens are sent."""
        return routing_of(self.split(inner.values)[1], weights.arrays.get("router.bias"), self.rule)

    def inside(self, weights: UnitWeights, inner: Tokens) -> Array:
        """Return the output of some columns of every expert, weighted and summed."""
        tokens, routing = self.split(inner.values)[0], self.routing(weights, inner)
        total = routing.combine(self._outputs(weights, routing, tokens))
        return total + self.shared(weights, tokens) if self.model.num_shared_experts else total

    def after(self, weights: UnitWeights, inner: Tokens) -> Array | float:
        """Return the biases of the last matrices; those of experts weighted."""
        if "experts.down.bias" not in weights.arrays:
            return 0.0
        of_experts = self.routing(weights, inner).weights @ weights["experts.down.bias"]
        return of_experts + weights.bias("shared.down.bias")

    def inside_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Take the gradient back through some columns of every expert, to tokens and logits."""
        tokens, routing = self.split(inner.values)[0], self.routing(weights, inner)
        of_rows, of_logits = routing.combine_backward(grad, self._outputs(weights, routing, tokens))
        of_tokens, grads = self._experts_backward(weights, routing, tokens, of_rows)
        if self.model.num_shared_experts:
            through_shared, of_shared = self.shared.backward(weights, tokens, grad)
            of_tokens, grads = of_tokens + through_shared, {**grads, **of_shared}
        return np.concatenate([of_tokens, of_logits], axis=-1), grads

    def after_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array | float, Gradients]:
        """Return the gradients of the last matrices' biases, and of the logits as far as they weight biases."""
        if "experts.down.bias" not in weights.arrays:
            return 0.0, {}
        total, routing = np.zeros_like(inner.values), self.routing(weights, inner)
        total[..., self.model.hidden_size :] = routing.logits_backward(grad @ weights["experts.down.bias"].T)
        of_experts = partial(outer_sum, routing.weights, grad)
        return total, {"experts.down.bias": of_experts, **bias_gradient(weights, "shared.down.bias", grad)}

    def before_backward(self, weights: UnitWeights, x: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Take the gradient back through router and norm; the bias of the choice has none."""
        of_tokens, of_logits = self.split(grad)
        through, grads = super().before_backward(weights, x, of_tokens + of_logits @ weights["router"].T)
        return through, {**grads, "router": partial(outer_sum, super().before(weights, x).values, of_logits)}

    def _outputs(self, weights: UnitWeights, routing: Routing, tokens: Array) -> dict[int, Array]:
        """Return what every expert gives for the tokens that it was sent."""
        rows = routing.rows_of(tokens, range(self.model.num_experts))
        return {number: self.expert(number)(weights, inputs) for number, inputs in rows.items()}

    def _experts_backward(
        self, weights: UnitWeights, routing: Routing, tokens: Array, of_rows: dict[int, Array]
    ) -> tuple[Array, Gradients]:
        """Take the gradients of all experts' outputs back to the tokens and to the experts' weights."""
        total, found = np.zeros_like(tokens), []
        for number, inputs in routing.rows_of(tokens, range(self.model.num_experts)).items():
            of_inputs, grads = self.expert(number).backward(weights, inputs, of_rows[number])
            total[routing.taken[..., number]] += of_inputs
            found.append(grads)
        return total, {name: partial(_stacked, [grads[name] for grads in found]) for name in found[0]}


def _stacked(grads: Sequence[Callable[[], Array]]) -> Array:
    """Return the gradients of all experts as one array."""
    return np.stack([grad() for grad in grads])
