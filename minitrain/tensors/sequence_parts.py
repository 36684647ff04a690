"""Which part of each sequence something is of, where ranks divide it: some shards, and some pieces of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

_ALL = frozenset([0])


@final
@dataclass(frozen=True, slots=True)
class SequencePart:
    """Some shards of a sequence, and of each of them some pieces.

    Args:
        shards: indices of the shards: context parallelism.
        num_shards: number of shards that the sequence is cut into.
        pieces: which pieces of these: sequence parallelism.
        num_pieces: number of pieces that a rank's shards are cut into.
    """

    shards: frozenset[int] = _ALL
    num_shards: int = 1
    pieces: frozenset[int] = _ALL
    num_pieces: int = 1

    @property
    def share(self) -> Fraction:
        """The share of the sequence."""
        return Fraction(self.count, self.num_shards * self.num_pieces)

    @property
    def count(self) -> int:
        """How many pieces of shards these are."""
        return len(self.shards) * len(self.pieces)

    @property
    def cut(self) -> tuple[int, int]:
        """Into how many shards and pieces the sequence is cut."""
        return self.num_shards, self.num_pieces

    def with_pieces_of(self, shards: frozenset[int], pieces: frozenset[int]) -> SequencePart:
        """Return another part of the same sequence."""
        return SequencePart(shards, self.num_shards, pieces, self.num_pieces)


WHOLE_SEQUENCE = SequencePart()


def part_of_sequence(value: Any) -> SequencePart:
    """Return which part of its sequences an activation, or the gradient of one, is of."""
    if hasattr(value, "num_context"):
        return SequencePart(value.context, value.num_context, value.shards, value.num_shards)
    if not hasattr(value, "num_shards"):
        return WHOLE_SEQUENCE
    if hasattr(value, "piece"):
        return SequencePart(value.shards, value.num_shards)
    return SequencePart(pieces=value.shards, num_pieces=value.num_shards)


def union_of_parts(parts: Sequence[SequencePart]) -> SequencePart:
    """Return all shards and pieces of some parts of the same sequence."""
    first = parts[0]
    shards = first.shards.union(*(part.shards for part in parts[1:]))
    return first.with_pieces_of(shards, first.pieces.union(*(part.pieces for part in parts[1:])))
