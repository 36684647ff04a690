"""The arithmetic of an attention unit: norm, queries, keys and values, causal attention, output projection.

`project` and `project_backward` are what is before the attention core. Context parallelism calls them by themselves,
since queries of one shard of the sequence may meet the keys of another.

The arithmetic of an attention that is computed in steps, on one rank; see `minitrain.engine.computation`.

What a step makes for a later one on the same rank, such as queries, stays here, by layer and samples, until the last
step of backward. What may travel to other ranks, or adds up, is the content of a tensor.

The arithmetic of multi-head latent attention: queries, keys and values from latents that all heads share.

The latents are made *before* what parts divide, as is the rotary key, which all heads share too; the projections up to
the heads are divided. In a head's query and key the part without rotation comes first.

Source: DeepSeek-AI (2024), "DeepSeek-V3 technical report", section 2.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minitrain.engine.observers import Computed
from minitrain.proof.arithmetic import Array, normalised, normalised_backward, outer_sum, over_tokens
from minitrain.proof.attention_core import (
    Attended,
    KeysValues,
    Tokens,
    attend,
    attend_backward,
    join_heads,
    rotate,
    split_heads,
)
from minitrain.proof.units import Gradients, UnitArithmetic, UnitWeights, bias_gradient
from minitrain.workloads.mixers import LatentAttention as Sizes
from minitrain.workloads.transformer import Transformer


class Attention(UnitArithmetic):
    """Norm, queries, keys and values, causal attention, output projection."""

    def inside(self, weights: UnitWeights, inner: Tokens) -> Array:
        """Return the output projection of some heads."""
        queries, memory = self.project(weights, inner)
        attended = attend(queries, inner.positions, memory, self.model.window, inner.packing)
        return join_heads(attended.output) @ weights["output"]

    def after(self, weights: UnitWeights, inner: Tokens) -> Array | float:  # noqa: ARG002  (an MoE's needs it)
        """Return the output projection's bias."""
        return weights.bias("output.bias")

    def inside_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Take the gradient back through some heads."""
        queries, memory = self.project(weights, inner)
        attended = attend(queries, inner.positions, memory, self.model.window, inner.packing)
        grad_output = split_heads(grad @ weights["output"].T, queries.shape[1])
        how = self.model.window, inner.packing
        found = attend_backward(queries, inner.positions, memory, attended, grad_output, *how)
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
            queries, keys = rotate(queries, inner.where), rotate(keys, inner.where)
        return queries, KeysValues(keys, values, inner.positions)

    def project_backward(
        self, weights: UnitWeights, inner: Tokens, queries: Array, memory: KeysValues
    ) -> tuple[Array, Gradients]:
        """Take the gradients of queries, keys and values back to what they were made of, and to the projections."""
        keys = memory.keys
        if self.model.positions == "rotary":
            queries, keys = (rotate(heads, inner.where, back=True) for heads in (queries, keys))
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


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """The gradient of queries, or of what they got, which adds: samples x heads x positions x size.

    Args:
        values: the numbers.
    """

    values: Array

    def add(self, other: Heads) -> Heads:
        """Return the sum."""
        return Heads(self.values + other.values)


@dataclass(slots=True, eq=False)
class AttentionInProgress:
    """An attention between its first step forward and its last step backward, for some tokens.

    Args:
        weights: the rank's part of its weights.
        x: its input.
        inner: what its norm makes of that.
        queries: samples x heads x positions x size.
        attended: what they got from all keys, once that is known.
        grad: the gradient of the output, once it is known.
    """

    weights: UnitWeights
    x: Tokens
    inner: Tokens
    queries: Array
    attended: Attended | None = None
    grad: Tokens | None = None


class AttentionSteps:
    """The attentions of one rank between their first and their last step.

    Args:
        arithmetic: of an attention.
    """

    def __init__(self, arithmetic: Attention) -> None:
        self._arithmetic = arithmetic
        self._in_progress: dict[tuple[Any, ...], AttentionInProgress] = {}

    def begin(self, layer: int, inp: Any, x: Tokens, weights: UnitWeights) -> KeysValues:
        """Make queries, which stay here, and return keys and values."""
        inner = self._arithmetic.before(weights, x)
        queries, memory = self._arithmetic.project(weights, inner)
        before = self._in_progress.get((layer, inp.samples))  # where keys and values are made again for the way back
        known = (before.attended, before.grad) if before is not None else ()
        self._in_progress[layer, inp.samples] = AttentionInProgress(weights, x, inner, queries, *known)
        return memory

    def attend(self, done: Computed, _: Any, memory: KeysValues) -> Attended:
        """Return what the queries get from some keys and values."""
        found = self._of(done)
        return attend(found.queries, found.x.positions, memory, self._arithmetic.model.window, found.x.packing)

    def project(self, done: Computed, _x: Any, _weight: Any, attended: Attended) -> Tokens:
        """Return the attention's output, or a part's share of it."""
        found = self._of(done)
        found.attended = attended
        made = join_heads(attended.output) @ found.weights["output"]
        if found.weights.part.index == 0:
            made = made + self._arithmetic.after(found.weights, found.inner) + found.x.values
        return found.x.with_values(made)

    def backward_project(self, done: Computed, _x: Any, grad: Tokens, _weight: Any) -> Heads:
        """Return the gradient of what the queries got."""
        found = self._of(done)
        found.grad = grad
        return Heads(split_heads(grad.values @ found.weights["output"].T, found.queries.shape[1]))

    def backward_attend(self, done: Computed, _: Any, grad: Heads, memory: KeysValues) -> tuple[Heads, KeysValues]:
        """Return the gradients of the queries and of some keys and values."""
        found = self._of(done)
        assert found.attended is not None  # a law: project goes before
        how = self._arithmetic.model.window, found.x.packing
        of_queries, of_keys = attend_backward(
            found.queries, found.x.positions, memory, found.attended, grad.values, *how
        )
        return Heads(of_queries), of_keys

    def end(
        self, layer: int, inp: Any, grad_queries: Heads, grad_memory: KeysValues
    ) -> tuple[AttentionInProgress, Array, Gradients]:
        """Return the attention, the gradient of its norm's output, and those of its weights."""
        found = self._in_progress.pop((layer, inp.samples))
        assert found.attended is not None  # as above
        assert found.grad is not None  # as above
        of_inner, grads = self._arithmetic.project_backward(
            found.weights, found.inner, grad_queries.values, grad_memory
        )
        grads["output"] = partial(outer_sum, join_heads(found.attended.output), found.grad.values)
        return found, of_inner, grads

    def _of(self, done: Computed) -> AttentionInProgress:
        """Return an attention that has begun."""
        return self._in_progress[done.layer, done.inp.samples]


class LatentAttention(Attention):
    """Norm, latents with norms of their own, projections up to heads, causal attention, output projection.

    Args:
        model: whose unit it is; it has sizes of latents.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        assert model.latent is not None  # who chooses the arithmetic has looked
        self._sizes: Sizes = model.latent

    def before(self, weights: UnitWeights, x: Tokens) -> Tokens:
        """Return what queries are made of, the latent for keys and values, and the rotary key, in one array."""
        tokens = super().before(weights, x).values
        down = tokens @ weights["kv_down"]
        latent = self._normed(weights, "kv", down[..., : self._sizes.kv_rank])
        return x.with_values(
            np.concatenate([self._for_queries(weights, tokens), latent, down[..., self._sizes.kv_rank :]], axis=-1)
        )

    def before_backward(self, weights: UnitWeights, x: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Take the gradients of what `before` made back through the latents and the norm."""
        tokens = super().before(weights, x).values
        of_queries, of_latent, of_key = self._split(grad)
        down = tokens @ weights["kv_down"]
        through, grads = self._normed_backward(weights, "kv", down[..., : self._sizes.kv_rank], of_latent)
        of_down = np.concatenate([through, of_key], axis=-1)
        grads["kv_down"] = partial(outer_sum, tokens, of_down)
        of_tokens = of_down @ weights["kv_down"].T
        if self._sizes.query_rank is None:
            of_tokens = of_tokens + of_queries
        else:
            through, of_norm = self._normed_backward(weights, "query", tokens @ weights["query_down"], of_queries)
            of_tokens = of_tokens + through @ weights["query_down"].T
            grads = {**grads, **of_norm, "query_down": partial(outer_sum, tokens, through)}
        of_input, of_unit_norm = super().before_backward(weights, x, of_tokens)
        return of_input, {**grads, **of_unit_norm}

    def project(self, weights: UnitWeights, inner: Tokens) -> tuple[Array, KeysValues]:
        """Return queries, and keys and values, of some heads."""
        for_queries, latent, key = self._split(inner.values)
        queries = self._heads(for_queries @ weights[self._up], self._sizes.key_head_dim)
        made = self._heads(latent @ weights["kv_up"], self._sizes.nope_head_dim + self._sizes.value_head_dim)
        plain, values = np.split(made, [self._sizes.nope_head_dim], axis=-1)
        rotary = np.broadcast_to(rotate(key, inner.where)[:, None], (*plain.shape[:3], key.shape[-1]))
        keys = np.concatenate([plain, rotary], axis=-1)
        return self._rotated(queries, inner), KeysValues(keys, values, inner.positions)

    def project_backward(
        self, weights: UnitWeights, inner: Tokens, queries: Array, memory: KeysValues
    ) -> tuple[Array, Gradients]:
        """Take the gradients of queries, keys and values back to what they were made of, and to the projections."""
        for_queries, latent, _ = self._split(inner.values)
        of_heads = join_heads(self._rotated(queries, inner, back=True))
        plain, rotary = np.split(memory.keys, [self._sizes.nope_head_dim], axis=-1)
        of_made = join_heads(np.concatenate([plain, memory.values], axis=-1))
        of_key = rotate(rotary.sum(axis=1), inner.where, back=True)
        total = np.concatenate([of_heads @ weights[self._up].T, of_made @ weights["kv_up"].T, of_key], axis=-1)
        grads: Gradients = {
            self._up: partial(outer_sum, for_queries, of_heads),
            "kv_up": partial(outer_sum, latent, of_made),
        }
        return total, grads

    @property
    def _up(self) -> str:
        """Return the name of the matrix that makes the heads' queries."""
        return "query" if self._sizes.query_rank is None else "query_up"

    def _for_queries(self, weights: UnitWeights, tokens: Array) -> Array:
        """Return what queries are made of: their latent, or the tokens themselves."""
        if self._sizes.query_rank is None:
            return tokens
        return self._normed(weights, "query", tokens @ weights["query_down"])

    def _split(self, values: Array) -> tuple[Array, Array, Array]:
        """Return what `before` put into one array, or the gradients of it."""
        size = self.model.hidden_size if self._sizes.query_rank is None else self._sizes.query_rank
        first, second, third = np.split(values, [size, size + self._sizes.kv_rank], axis=-1)
        return first, second, third

    def _heads(self, tokens: Array, size: int) -> Array:
        """Return what was projected up as heads of some size."""
        return split_heads(tokens, tokens.shape[-1] // size)

    def _rotated(self, queries: Array, inner: Tokens, *, back: bool = False) -> Array:
        """Return queries with the rotary part of each head turned."""
        plain, rotary = np.split(queries, [self._sizes.nope_head_dim], axis=-1)
        return np.concatenate([plain, rotate(rotary, inner.where, back=back)], axis=-1)

    def _normed(self, weights: UnitWeights, name: str, latent: Array) -> Array:
        """Return a latent through its norm."""
        return normalised(latent, self.model.norm) * weights[f"{name}_norm.weight"]

    def _normed_backward(self, weights: UnitWeights, name: str, latent: Array, grad: Array) -> tuple[Array, Gradients]:
        """Take a gradient back through a latent's norm."""
        found = normalised(latent, self.model.norm)
        through = normalised_backward(grad * weights[f"{name}_norm.weight"], latent, self.model.norm)
        return through, {f"{name}_norm.weight": partial(over_tokens, grad * found)}
