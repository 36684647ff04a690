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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast, final

import numpy as np
from numpy.typing import NDArray

from minitrain.numerics.arithmetic import Array
from minitrain.numerics.elementary import softmax


@final
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


@final
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
