"""What the gradients of one part of a unit carry until the parts are summed.

A part takes the gradient back to the border after the norm (see `units`): what it has there is its share of a sum. The
all_reduce or reduce_scatter over the parts makes the sum, and each rank then takes it through its own norm, which gives
the gradients of norm, router and other weights that all parts hold. So the gradient of a part's weights is incomplete
when it is returned. It may be added to others, and can be used only once the sum was made.

Where the rank had gathered its input from shards of the sequence, these gradients cover its own shard alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from minitrain.errors import LawError
from minitrain.numerics.arithmetic import Array
from minitrain.numerics.arrays import held
from minitrain.numerics.attention_core import Positions
from minitrain.numerics.tokens import Tokens
from minitrain.numerics.unit_weights import Part, UnitWeights, flattened, held_by_all
from minitrain.numerics.units import Gradients, UnitArithmetic
from minitrain.workloads.unit import Unit


@final
@dataclass(slots=True, eq=False)
class Border:
    """The border that a rank's backward of a unit has reached, and what is needed on its other side.

    Args:
        unit: which unit.
        arithmetic: its arithmetic.
        weights: the rank's part of its weights.
        x: its input.
        inner: what *before* makes of it.
        grad: the gradient of its output.
        own: the positions that the gradients of what all parts hold are to cover.
        common: these gradients, by name, once the sum has crossed.
    """

    unit: Unit
    arithmetic: UnitArithmetic
    weights: UnitWeights
    x: Tokens
    inner: Tokens
    grad: Tokens
    own: Positions
    common: Mapping[str, Array] | None = None

    def cross(self, total: Tokens) -> Tokens:
        """Take the sum over all parts back to the unit's input, for the tokens that it is of."""
        of_input, grads = self._through(total)
        if total.has(self.own):
            if not np.array_equal(self.own, total.positions):
                _, grads = self._through(total.at(self.own))
            self.common = {name: grad() for name, grad in grads.items()}
        return of_input

    def _through(self, total: Tokens) -> tuple[Tokens, Gradients]:
        """Return the gradient of the input, and the gradients of what all parts hold, for some tokens.

        *after* gets the whole sequence, with zero gradients of other tokens: which of them an expert takes depends on
        all.
        """
        grad = self.grad.values
        if not np.array_equal(self.grad.positions, total.positions):
            grad = np.where(np.isin(self.grad.positions, total.positions)[:, None], grad, 0)
        of_inner, after = self.arithmetic.after_backward(self.weights, self.inner, grad)
        added = self.inner.with_values(np.broadcast_to(of_inner, self.inner.values.shape)).at(total.positions)
        x = self.x.at(total.positions)
        of_input, before = self.arithmetic.before_backward(self.weights, x, total.values + added.values)
        if self.arithmetic.has_residual:
            of_input = of_input + self.grad.at(total.positions).values
        return total.with_values(of_input), {**after, **before}


@final
@dataclass(frozen=True, slots=True, eq=False)
class PartialGrad:
    """The share that some parts of a unit have in the gradient at the border.

    Args:
        inner: the share.
        parts: which parts.
        num_parts: of how many.
        borders: those of the backwards on this rank that it came from.
    """

    inner: Tokens
    parts: frozenset[int]
    num_parts: int
    borders: tuple[Border, ...]

    def add(self, other: PartialGrad) -> PartialGrad | Tokens:
        """Return the sum on one rank: the gradient of the input if it has all parts."""
        return self.plus(other).finished()

    def plus(self, other: PartialGrad) -> PartialGrad:
        """Return the sum, however many parts it has."""
        borders = self.borders + other.borders
        return PartialGrad(self.inner.add(other.inner), self.parts | other.parts, self.num_parts, borders)

    def mine(self, total: PartialGrad) -> PartialGrad:
        """Return the sum over ranks on this rank, with its own borders to cross."""
        return replace(total, borders=self.borders)

    def shard(self, shard: int, num_shards: int) -> PartialGrad:
        """Return a piece along the sequence."""
        return replace(self, inner=self.inner.shard(shard, num_shards))

    def finished(self) -> PartialGrad | Tokens:
        """Return the gradient of the unit's input if all parts are there."""
        if len(self.parts) < self.num_parts:
            return self
        crossed = [border.cross(self.inner) for border in self.borders]
        return crossed[0]


@final
@dataclass(frozen=True, eq=False)
class PartGrad:
    """The gradient of the weights of one part, or of several in the middle of a sum over parts.

    Args:
        own: one flat array, with zeros where the gradient is not known yet.
        unit: whose weights.
        part: which part; None in the sum over several parts, of which only what all hold means anything.
        awaited: the borders on whose other side the rest is computed.
    """

    own: Array
    unit: Unit
    part: Part | None
    awaited: tuple[Border, ...] = field(default=())

    @cached_property
    def values(self) -> Array:
        """Return the gradient.

        Raises:
            LawError: the gradient of the unit's input was not summed over the parts.
        """
        total = self.own
        for border in self.awaited:
            if border.common is None:
                raise LawError(
                    f"the gradient of what all parts of {border.unit.name} hold (norms, router, biases) is not known "
                    "before the gradient of its input is summed over the parts; all_reduce that over the ranks that "
                    "hold the parts first (or reduce_scatter it, if its input was gathered from shards of the sequence)"
                )
            total = total + flattened(border.common, border.unit, border.weights.part)
        return total

    def add(self, other: PartGrad) -> PartGrad:
        """Return the sum of gradients, of one part or of several."""
        part = self.part if self.part == other.part else None
        return replace(self, own=self.own + other.own, part=part, awaited=self.awaited + other.awaited)

    def mine(self, total: PartGrad) -> PartGrad:
        """Return the sum over ranks on this rank: of several parts, it takes what all hold."""
        if total.part is not None or self.part is None:
            return total
        common = held_by_all(self.unit, self.part)
        return replace(self, own=np.where(common, total.values, self.values), awaited=())

    def shard(self, shard: int, num_shards: int) -> PartGrad:
        """Return one of `num_shards` shards; all other elements become NaN."""
        here: NDArray[np.bool_] = held([shard], num_shards, self.own.size)
        return replace(self, own=np.where(here, self.values, np.nan), awaited=())

    def combine(self, other: PartGrad) -> PartGrad:
        """Return the elements of both."""
        values = np.where(np.isnan(self.values), other.values, self.values)
        return replace(self, own=values, awaited=())
