"""The arithmetic of an attention unit: norm, queries, keys and values, causal attention, output projection.

`project` and `project_backward` are what is before the attention core. Context parallelism calls them by themselves,
since queries of one shard of the sequence may meet the keys of another.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from minitrain.numerics.arithmetic import Array
from minitrain.numerics.attention_core import KeysValues, attend, attend_backward, join_heads, rotate, split_heads
from minitrain.numerics.elementary import outer_sum
from minitrain.numerics.tokens import Tokens
from minitrain.numerics.unit_weights import UnitWeights
from minitrain.numerics.units import Gradients, UnitArithmetic, bias_gradient


class Attention(UnitArithmetic):
    """Norm, queries, keys and values, causal attention, output projection."""

    def inside(self, weights: UnitWeights, inner: Tokens) -> Array:
        """Return the output projection of some heads."""
        queries, memory = self.project(weights, inner)
        attended = attend(queries, inner.positions, memory, self.model.window)
        return join_heads(attended.output) @ weights["output"]

    def after(self, weights: UnitWeights, inner: Tokens) -> Array | float:  # noqa: ARG002  (an MoE's needs it)
        """Return the output projection's bias."""
        return weights.bias("output.bias")

    def inside_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Take the gradient back through some heads."""
        queries, memory = self.project(weights, inner)
        attended = attend(queries, inner.positions, memory, self.model.window)
        grad_output = split_heads(grad @ weights["output"].T, queries.shape[1])
        found = attend_backward(queries, inner.positions, memory, attended, grad_output, self.model.window)
        grad_inner, grads = self.project_backward(weights, inner, *found)
        grads["output"] = partial(outer_sum, join_heads(attended.output), grad)
        return grad_inner, grads

    def after_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array | float, Gradients]:  # noqa: ARG002  (as in after)
        """Return the bias's gradient."""
        return 0.0, bias_gradient(weights, "output.bias", grad)

    def project(self, weights: UnitWeights, inner: Tokens) -> tuple[Array, KeysValues]:
        """Return queries, and keys and values, of some tokens: with rotary positions if the model has them."""
        queries, keys, values = (
            split_heads(inner.values @ weights[name] + weights.bias(f"{name}.bias"), self._num_heads(weights, name))
            for name in ("query", "key", "value")
        )
        if self.model.positions == "rotary":
            queries, keys = rotate(queries, inner.positions), rotate(keys, inner.positions)
        return queries, KeysValues(keys, values, inner.positions)

    def project_backward(
        self, weights: UnitWeights, inner: Tokens, queries: Array, memory: KeysValues
    ) -> tuple[Array, Gradients]:
        """Take the gradients of queries, keys and values back to what they were made of, and to the projections."""
        keys = memory.keys
        if self.model.positions == "rotary":
            queries, keys = (rotate(heads, inner.positions, back=True) for heads in (queries, keys))
        total, grads = np.zeros_like(inner.values), Gradients()
        for name, heads in (("query", queries), ("key", keys), ("value", memory.values)):
            tokens = join_heads(heads)
            total += tokens @ weights[name].T
            grads[name] = partial(outer_sum, inner.values, tokens)
            grads.update(bias_gradient(weights, f"{name}.bias", tokens))
        return total, grads

    def _num_heads(self, weights: UnitWeights, name: str) -> int:
        """Return the heads that a part has of queries, keys or values."""
        return int(weights[name].shape[1]) // self.model.head_dim
