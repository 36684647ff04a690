"""The arithmetic of an attention unit: norm, queries, keys and values, causal attention, output projection.

`project` is what is before the attention core. Context parallelism calls it by itself, since queries of one shard of
the sequence may meet the keys of another.

The arithmetic of an attention that is computed in steps, on one rank; see `minitrain.engine.computation`.

What a step makes for a later one on the same rank, such as queries, stays here, by layer and samples, until the last
step of backward. What may travel to other ranks, or adds up, is the content of a tensor.

The arithmetic of multi-head latent attention: queries, keys and values from latents that all heads share.

The latents are made at the border of what parts divide, as is the rotary key, which all heads share too; the
projections up to the heads are divided. In a head's query and key the part without rotation comes first.

Source: DeepSeek-AI (2024), "DeepSeek-V3 technical report", section 2.1.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp  # type: ignore[import-untyped]  # NumPy's functions, whose operations are followed

from minitrain.engine.observers import Computed
from minitrain.proof.arithmetic import Array
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
from minitrain.proof.problem import Flat, TransformerProblem
from minitrain.proof.units import WHOLE, UnitArithmetic, UnitWeights, by_name, gradients
from minitrain.workloads.mixers import LatentAttention as Sizes
from minitrain.workloads.transformer import Transformer


class Attention(UnitArithmetic):
    """Norm, queries, keys and values, causal attention, output projection."""

    def border(self, weights: UnitWeights, x: Tokens) -> tuple[Any, Any]:
        """Return the normed tokens; the output projection's bias and the input are added once."""
        return self.normed(weights, x.values), x.values + weights.bias("output.bias")

    def inside(self, weights: UnitWeights, inner: Tokens) -> Any:
        """Return the output projection of some heads."""
        queries, memory = self.project(weights, inner)
        attended = attend(queries, inner.positions, memory, self.model.window, inner.packing)
        return join(weights, attended.output)

    def project(self, weights: UnitWeights, inner: Tokens) -> tuple[Any, KeysValues]:
        """Return queries, and keys and values, of some tokens: with rotary positions if the model has them."""
        queries, keys, values = (
            split_heads(inner.values @ weights[name] + weights.bias(f"{name}.bias"), self.model.head_dim)
            for name in ("query", "key", "value")
        )
        if self.model.positions == "rotary":
            queries, keys = rotate(queries, inner.where), rotate(keys, inner.where)
        return queries, KeysValues(keys, values, inner.positions)


def join(weights: UnitWeights, heads: Any) -> Any:
    """Return the output projection of what some heads have got."""
    return join_heads(heads) @ weights["output"]


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
        weights: the rank's part of its weights, flat.
        x: its input.
        inner: what its norm makes of that.
        rest: what is added once to the sum of all parts.
        queries: samples x heads x positions x size.
        attended: what they got from all keys, once that is known.
        grad: the gradient of the output, once it is known.
        of_output: the gradient of the output projection, likewise.
    """

    weights: Flat
    x: Tokens
    inner: Tokens
    rest: Any
    queries: Array
    attended: Attended | None = None
    grad: Tokens | None = None
    of_output: Array | None = None


class AttentionSteps:
    """The attentions of one rank between their first and their last step.

    Args:
        problem: what is trained.
        arithmetic: of an attention.
    """

    def __init__(self, problem: TransformerProblem, arithmetic: Attention) -> None:
        self._problem, self._arithmetic = problem, arithmetic
        self._in_progress: dict[tuple[Any, ...], AttentionInProgress] = {}

    def keys_values(self, done: Computed, x: Tokens, weight: Flat) -> KeysValues:
        """Make queries, which stay here, and return keys and values."""
        weights, at = self._named(done, weight), (done.layer, done.inp.samples)
        inner, rest = self._arithmetic.border(weights, x)
        queries, memory = self._arithmetic.project(weights, x.with_values(inner))
        made = AttentionInProgress(weight, x, x.with_values(inner), rest, queries)
        before = self._in_progress.get(at)  # where keys and values are made again for the way back
        if before is not None:
            made.attended, made.grad, made.of_output = before.attended, before.grad, before.of_output
        self._in_progress[at] = made
        return memory

    def attend(self, done: Computed, _: Any, memory: KeysValues) -> Attended:
        """Return what the queries get from some keys and values."""
        found = self._of(done)
        return attend(found.queries, found.x.positions, memory, self._arithmetic.model.window, found.x.packing)

    def project(self, done: Computed, _x: Any, _weight: Any, attended: Attended) -> Tokens:
        """Return the attention's output, or a part's share of it."""
        found = self._of(done)
        found.attended = attended
        weights = self._named(done, found.weights)
        made = join(weights, attended.output)
        return found.x.with_values(made + found.rest if weights.part.index == 0 else made)

    def backward_project(self, done: Computed, _x: Any, grad: Tokens, _weight: Any) -> Heads:
        """Return the gradient of what the queries got."""
        found = self._of(done)
        assert found.attended is not None  # a law: project goes before
        found.grad = grad
        found.of_output, (of_attended,) = self._back(done, join, [found.attended.output], grad.values)
        return Heads(of_attended)

    def backward_attend(self, done: Computed, _: Any, grad: Heads, memory: KeysValues) -> tuple[Heads, KeysValues]:
        """Return the gradients of the queries and of some keys and values."""
        found = self._of(done)
        assert found.attended is not None  # as above
        how = self._arithmetic.model.window, found.x.packing
        of_queries, of_keys = attend_backward(
            found.queries, found.x.positions, memory, found.attended, grad.values, *how
        )
        return Heads(of_queries), of_keys

    def end(
        self, done: Computed, grad_queries: Heads, grad_memory: KeysValues
    ) -> tuple[AttentionInProgress, Array, Array]:
        """Return the attention, and the gradients of its norm's output and of its weights, flat."""
        found = self._of(done)
        assert found.of_output is not None  # as above

        def project(weights: UnitWeights, values: Any) -> tuple[Any, Any, Any]:
            queries, memory = self._arithmetic.project(weights, found.inner.with_values(values))
            return queries, memory.keys, memory.values

        grads = grad_queries.values, grad_memory.keys, grad_memory.values
        of_weights, (of_inner,) = self._back(done, project, [found.inner.values], *grads)
        del self._in_progress[done.layer, done.inp.samples]
        return found, of_inner, of_weights + found.of_output

    def _back(self, done: Computed, step: Any, given: Sequence[Any], *grads: Any) -> tuple[Array, list[Array]]:
        """Return the gradients of an attention's weights, flat, and of what a step of it was given."""
        weight = self._of(done).weights
        return gradients(step, weight.values, self._problem.units[done.layer], weight.part or WHOLE, given, *grads)

    def _named(self, done: Computed, weight: Flat) -> UnitWeights:
        return by_name(weight.values, self._problem.units[done.layer], weight.part or WHOLE)

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

    def border(self, weights: UnitWeights, x: Tokens) -> tuple[Any, Any]:
        """Return what queries are made of, the latent for keys and values, and the rotary key, in one array."""
        tokens, rest = super().border(weights, x)
        for_queries, rank = tokens, self._sizes.kv_rank
        if self._sizes.query_rank is not None:
            for_queries = self.normed(weights, tokens @ weights["query_down"], "query_")
        down = tokens @ weights["kv_down"]
        latent = self.normed(weights, down[..., :rank], "kv_")
        return anp.concatenate([for_queries, latent, down[..., rank:]], axis=-1), rest

    def project(self, weights: UnitWeights, inner: Tokens) -> tuple[Any, KeysValues]:
        """Return queries, and keys and values, of some heads."""
        sizes, up = self._sizes, "query" if self._sizes.query_rank is None else "query_up"
        first = self.model.hidden_size if sizes.query_rank is None else sizes.query_rank
        for_queries, key = inner.values[..., :first], inner.values[..., first + sizes.kv_rank :]
        latent = inner.values[..., first : first + sizes.kv_rank]
        queries = split_heads(for_queries @ weights[up], sizes.key_head_dim)
        made = split_heads(latent @ weights["kv_up"], sizes.nope_head_dim + sizes.value_head_dim)
        plain, values = made[..., : sizes.nope_head_dim], made[..., sizes.nope_head_dim :]
        rotary = anp.broadcast_to(rotate(key, inner.where)[:, None], (*plain.shape[:3], key.shape[-1]))
        turned = rotate(queries[..., sizes.nope_head_dim :], inner.where)
        queries = anp.concatenate([queries[..., : sizes.nope_head_dim], turned], axis=-1)
        return queries, KeysValues(anp.concatenate([plain, rotary], axis=-1), values, inner.positions)
