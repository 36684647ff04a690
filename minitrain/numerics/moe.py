"""The arithmetic of a mixture-of-experts unit: norm and router *before* (see `units`), all experts *inside*.

What *inside* works on are the normed tokens and the router's logits, in one array: so the gradient of the logits, to
which every part contributes by its share of the experts' outputs, is summed and cut with that of the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from minitrain.numerics.arithmetic import Array
from minitrain.numerics.elementary import outer_sum
from minitrain.numerics.experts import Routing, RoutingRule, routing_of
from minitrain.numerics.tokens import Tokens
from minitrain.numerics.unit_weights import UnitWeights
from minitrain.numerics.units import FeedForward, Gradients, UnitArithmetic, bias_gradient
from minitrain.workloads.transformer import Transformer


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
