"""The arithmetic of multi-head latent attention: queries, keys and values from latents that all heads share.

The latents are made *before* what parts divide, as is the rotary key, which all heads share too; the projections up to
the heads are divided. In a head's query and key the part without rotation comes first.

Source: DeepSeek-AI (2024), "DeepSeek-V3 technical report", section 2.1.1.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from minitrain.numerics.arithmetic import Array
from minitrain.numerics.attention import Attention
from minitrain.numerics.attention_core import KeysValues, join_heads, rotate, split_heads
from minitrain.numerics.elementary import normalised, normalised_backward, outer_sum, over_tokens
from minitrain.numerics.tokens import Tokens
from minitrain.numerics.unit_weights import UnitWeights
from minitrain.numerics.units import Gradients
from minitrain.workloads.latent_attention import LatentAttention as Sizes
from minitrain.workloads.transformer import Transformer


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
        rotary = np.broadcast_to(rotate(key, inner.positions)[:, None], (*plain.shape[:3], key.shape[-1]))
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
        of_key = rotate(rotary.sum(axis=1), inner.positions, back=True)
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
        return np.concatenate([plain, rotate(rotary, inner.positions, back=back)], axis=-1)

    def _normed(self, weights: UnitWeights, name: str, latent: Array) -> Array:
        """Return a latent through its norm."""
        return normalised(latent, self.model.norm) * weights[f"{name}_norm.weight"]

    def _normed_backward(self, weights: UnitWeights, name: str, latent: Array, grad: Array) -> tuple[Array, Gradients]:
        """Take a gradient back through a latent's norm."""
        found = normalised(latent, self.model.norm)
        through = normalised_backward(grad * weights[f"{name}_norm.weight"], latent, self.model.norm)
        return through, {f"{name}_norm.weight": partial(over_tokens, grad * found)}
