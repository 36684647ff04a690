"""The arithmetic of embedding and head, and of the loss over a vocabulary that parts may divide.

The loss is the mean over all tokens of the global batch of the cross-entropy with the next token. Each part of the head
makes the logits of some rows of the vocabulary. What parts exchange is, for every token, the highest of their logits,
the sum of exponentials relative to it, and the logit of the target where a part has it (Shoeybi et al. 2019, section
3). With these, each can make the gradient of its own logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from minitrain.errors import LawError
from minitrain.numerics.arithmetic import Array
from minitrain.numerics.attention_core import Positions
from minitrain.numerics.elementary import outer_sum
from minitrain.numerics.tokens import Tokens
from minitrain.numerics.unit_weights import UnitWeights
from minitrain.numerics.units import Gradients, UnitArithmetic

_LOWEST = np.finfo(np.float64).min  # the highest logit of a part that is all padding


class Embedding(UnitArithmetic):
    """The table of tokens, and that of learned positions; its input are the tokens' numbers."""

    has_residual = False

    def before(self, weights: UnitWeights, x: Tokens) -> Tokens:  # noqa: ARG002  (there is no norm)
        """Return the numbers as they are."""
        return x

    def inside(self, weights: UnitWeights, inner: Tokens) -> Array:
        """Return the rows of the tokens that a part of the vocabulary has, zeros for the others."""
        row, is_here = rows_of(inner.values, weights["tokens"].shape[0], weights.part.index)
        return np.where(is_here[..., None], weights["tokens"][row], 0)

    def after(self, weights: UnitWeights, inner: Tokens) -> Array | float:
        """Return the rows of the positions."""
        return weights["positions"][inner.positions] if "positions" in weights.arrays else 0.0

    def inside_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Return the gradient of the table; that of the tokens' numbers is nothing."""
        row, is_here = rows_of(inner.values, weights["tokens"].shape[0], weights.part.index)
        return np.zeros(inner.values.shape), {"tokens": partial(_of_table, weights["tokens"], row, is_here, grad)}

    def after_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array | float, Gradients]:
        """Return the gradient of the table of positions."""
        if "positions" not in weights.arrays:
            return 0.0, {}
        table, everywhere = weights["positions"], np.ones(len(inner.positions), dtype=np.bool_)
        return 0.0, {"positions": partial(_of_table, table, inner.positions, everywhere, grad.sum(axis=0))}

    def before_backward(self, weights: UnitWeights, x: Tokens, grad: Array) -> tuple[Array, Gradients]:  # noqa: ARG002  (as in before)
        """Return nothing: numbers of tokens have no gradient."""
        return grad, {}


class Head(UnitArithmetic):
    """The final norm and the multiplication with the vocabulary."""

    has_residual = False

    def inside(self, weights: UnitWeights, inner: Tokens) -> Array:
        """Return the logits of some rows of the vocabulary."""
        return inner.values @ weights["tokens"]

    def after(self, weights: UnitWeights, inner: Tokens) -> Array | float:  # noqa: ARG002  (there is nothing)
        """Return nothing."""
        return 0.0

    def inside_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array, Gradients]:
        """Take the gradient of some logits back."""
        return grad @ weights["tokens"].T, {"tokens": partial(outer_sum, inner.values, grad)}

    def after_backward(self, weights: UnitWeights, inner: Tokens, grad: Array) -> tuple[Array | float, Gradients]:  # noqa: ARG002  (as in after)
        """Return nothing."""
        return 0.0, {}


def rows_of(numbers: Any, num_rows: int, part: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the row of each token within a part of a table, and whether it is there; row 0 where it is not."""
    row = np.asarray(numbers, dtype=np.int64) - part * num_rows
    is_here = (row >= 0) & (row < num_rows)
    return np.where(is_here, row, 0), is_here


def _of_table(table: Array, rows: Any, is_here: Any, grad: Array) -> Array:
    """Return the gradient of a table's rows, each summed over the tokens that looked it up."""
    total = np.zeros_like(table)
    np.add.at(total, rows[is_here], grad[is_here])
    return total


@final
@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """What the loss needs of all logits of each token, samples x positions each.

    Args:
        highest: the highest logit.
        total: the sum of exponentials of the logits minus the highest.
        target: the logit of the target; 0 where no part seen so far has it.
    """

    highest: Array
    total: Array
    target: Array

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics of the logits of both."""
        highest = np.maximum(self.highest, other.highest)
        total = self.total * np.exp(self.highest - highest) + other.total * np.exp(other.highest - highest)
        return Statistics(highest, total, self.target + other.target)

    def losses(self) -> Array:
        """Return the cross-entropy of each token."""
        return self.highest + np.log(self.total) - self.target


@final
@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """The model's output on a rank: the logits that it has made, and what it knows of all.

    Args:
        pieces: the logits by part of the vocabulary, samples x positions x rows of the part.
        num_parts: parts of the vocabulary.
        num_rows: rows of the vocabulary, which may be less than those of all parts.
        positions: of the tokens.
        targets: the next tokens, samples x positions.
        statistics: of the logits of all parts that were added up.
    """

    pieces: Mapping[int, Array]
    num_parts: int
    num_rows: int
    positions: Positions
    targets: NDArray[np.int64]
    statistics: Statistics

    def add(self, other: Logits) -> Logits:
        """Return the logits of both, with the statistics of all."""
        pieces = {**self.pieces, **other.pieces}
        return replace(self, pieces=pieces, statistics=self.statistics.merge(other.statistics))

    def mine(self, total: Logits) -> Logits:
        """Return these logits with the statistics of a sum over ranks: the logits of others were not sent."""
        return replace(self, statistics=total.statistics)

    def gradient(self, num_tokens: int) -> LogitsGrad:
        """Return the gradient of the mean loss over `num_tokens` tokens with respect to these logits."""
        found = {}
        for part, logits in self.pieces.items():
            shares = np.exp(logits - self.statistics.highest[..., None]) / self.statistics.total[..., None]
            row, is_here = rows_of(self.targets, logits.shape[-1], part)
            here = np.zeros(logits.shape)
            np.put_along_axis(here, row[..., None], is_here[..., None], axis=-1)
            found[part] = np.where(_exists(part, logits.shape[-1], self.num_rows), (shares - here) / num_tokens, 0)
        return LogitsGrad(found, self.num_parts, self.positions)


@final
@dataclass(frozen=True, slots=True, eq=False)
class LogitsGrad:
    """The gradient of the logits that a rank has made; its fields are as those of `Logits`."""

    pieces: Mapping[int, Array]
    num_parts: int
    positions: Positions

    def of_part(self, part: int, num_parts: int) -> Tokens:
        """Return the gradient of one part's logits.

        Raises:
            LawError: these logits were made by another rank.
        """
        if num_parts != self.num_parts or part not in self.pieces:
            known = ", ".join(str(piece) for piece in self.pieces)
            raise LawError(
                f"the gradient of part {part} of {num_parts} of the logits is on the ranks that made them; here are "
                f"those of part {known} of {self.num_parts}: call loss on every rank that holds a part of the head"
            )
        return Tokens(self.pieces[part], self.positions)


def logits_of(made: Tokens, weights: UnitWeights, num_rows: int, targets: NDArray[np.int64]) -> Logits:
    """Return what a part of the head has made, with its share of the statistics."""
    part = weights.part
    seen = np.where(_exists(part.index, made.values.shape[-1], num_rows), made.values, -np.inf)
    highest = np.maximum(seen.max(axis=-1), _LOWEST)
    row, is_here = rows_of(targets, made.values.shape[-1], part.index)
    target = np.where(is_here, np.take_along_axis(made.values, row[..., None], axis=-1)[..., 0], 0)
    statistics = Statistics(highest, np.exp(seen - highest[..., None]).sum(axis=-1), target)
    return Logits({part.index: made.values}, part.count, num_rows, made.positions, targets, statistics)


def _exists(part: int, num_rows: int, num_all: int) -> NDArray[np.bool_]:
    """Return which rows of a part of the vocabulary are no padding."""
    return part * num_rows + np.arange(num_rows) < num_all


def rows_at(numbers: NDArray[np.int64], samples: Iterable[int], positions: Positions) -> NDArray[np.int64]:
    """Return the numbers of some samples' tokens at some positions."""
    return np.asarray(numbers[np.array(sorted(samples), dtype=np.int64)][:, positions])
