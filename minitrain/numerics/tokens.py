"""What some tokens of some samples carry, and where in the sequence they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from minitrain.errors import LawError
from minitrain.numerics.arithmetic import Array
from minitrain.numerics.attention_core import Positions


@final
@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The numbers of an activation or its gradient, for a sequence or some shards of it, whole or a part's share.

    Args:
        values: samples in ascending order x positions x size; the model's input has no last dimension.
        positions: where in the sequence the tokens are.
    """

    values: Array
    positions: Positions

    def with_values(self, values: Array) -> Tokens:
        """Return other numbers of the same tokens."""
        return replace(self, values=values)

    def add(self, other: Tokens) -> Tokens:
        """Return the sum, of the same tokens.

        Raises:
            LawError: they are other ones.
        """
        if not np.array_equal(self.positions, other.positions):
            raise LawError(
                "what adds must be of the same tokens; one side was cut along the sequence, and not the other"
            )
        return self.with_values(self.values + other.values)

    def shard(self, shard: int, num_shards: int) -> Tokens:
        """Return one of `num_shards` equal pieces along the sequence.

        Raises:
            LawError: the tokens do not divide.
        """
        size, rest = divmod(len(self.positions), num_shards)
        if rest:
            raise LawError(
                f"{len(self.positions)} tokens of a sequence cannot be cut into {num_shards} equal shards; use a "
                f"seq_len that is a multiple of {num_shards}"
            )
        return self._pick(np.arange(shard * size, (shard + 1) * size))

    def combine(self, other: Tokens) -> Tokens:
        """Return the tokens of both, in the order of their positions."""
        values = np.concatenate([self.values, other.values], axis=1)
        positions = np.concatenate([self.positions, other.positions])
        return Tokens(values, positions)._pick(np.argsort(positions, kind="stable"))

    def at(self, positions: Positions) -> Tokens:
        """Return the tokens at some positions, all of which must be here."""
        if np.array_equal(positions, self.positions):
            return self
        order = np.argsort(self.positions)
        return self._pick(order[np.searchsorted(self.positions, positions, sorter=order)])

    def has(self, positions: Positions) -> bool:
        """Return whether all of some positions are here."""
        return np.array_equal(positions, self.positions) or bool(np.isin(positions, self.positions).all())

    def _pick(self, places: Positions) -> Tokens:
        return Tokens(self.values[:, places], self.positions[places])
