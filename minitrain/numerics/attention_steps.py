"""The arithmetic of an attention that is computed in steps, on one rank; see `minitrain.rank.attention`.

What a step makes for a later one on the same rank, such as queries, stays here, by layer and samples, until the last
step of backward. What may travel to other ranks, or adds up, is the content of a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, final

from minitrain.numerics.arithmetic import Array
from minitrain.numerics.attention import Attention
from minitrain.numerics.attention_core import (
    Attended,
    KeysValues,
    attend,
    attend_backward,
    join_heads,
    split_heads,
)
from minitrain.numerics.elementary import outer_sum
from minitrain.numerics.tokens import Tokens
from minitrain.numerics.unit_weights import UnitWeights
from minitrain.numerics.units import Gradients


@final
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


@final
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
        self._in_progress[layer, inp.samples] = AttentionInProgress(weights, x, inner, queries)
        return memory

    def attend(self, layer: int, inp: Any, memory: KeysValues) -> Attended:
        """Return what the queries get from some keys and values."""
        found = self._of(layer, inp)
        return attend(found.queries, found.x.positions, memory, self._arithmetic.model.window)

    def project(self, layer: int, inp: Any, attended: Attended) -> Tokens:
        """Return the attention's output, or a part's share of it."""
        found = self._of(layer, inp)
        found.attended = attended
        made = join_heads(attended.output) @ found.weights["output"]
        if found.weights.part.index == 0:
            made = made + self._arithmetic.after(found.weights, found.inner) + found.x.values
        return found.x.with_values(made)

    def backward_project(self, layer: int, inp: Any, grad: Tokens) -> Heads:
        """Return the gradient of what the queries got."""
        found = self._of(layer, inp)
        found.grad = grad
        return Heads(split_heads(grad.values @ found.weights["output"].T, found.queries.shape[1]))

    def backward_attend(self, layer: int, inp: Any, grad: Heads, memory: KeysValues) -> tuple[Heads, KeysValues]:
        """Return the gradients of the queries and of some keys and values."""
        found = self._of(layer, inp)
        assert found.attended is not None  # a law: project goes before
        window = self._arithmetic.model.window
        of_queries, of_keys = attend_backward(
            found.queries, found.x.positions, memory, found.attended, grad.values, window
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

    def _of(self, layer: int, inp: Any) -> AttentionInProgress:
        """Return an attention that has begun."""
        return self._in_progress[layer, inp.samples]
