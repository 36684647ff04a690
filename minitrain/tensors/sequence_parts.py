"""Which part of each sequence something is of, where ranks divide it: some shards, and some pieces of these."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

_ALL = frozenset([0])


@final
@dataclass(frozen=True, slots=True)
class SequencePart:
    """Some shards of a sequence, and of each of them some pieces.

    Args:
        shards: indices of the shards, which go through the whole network: context parallelism.
        num_shards: number of shards that the sequence is cut into.
        pieces: which pieces of these, between layers in parts: sequence parallelism.
        num_pieces: number of pieces that a rank's shards are cut into.
        cut_of: what the shards are cut out of: the "sequence", or each "document" by itself.
    """

    shards: frozenset[int] = _ALL
    num_shards: int = 1
    pieces: frozenset[int] = _ALL
    num_pieces: int = 1
    cut_of: str = "sequence"

    @property
    def share(self) -> Fraction:
        """The share of the sequence."""
        return Fraction(self.count, self.num_shards * self.num_pieces)

    @property
    def count(self) -> int:
        """How many pieces of shards these are."""
        return len(self.shards) * len(self.pieces)

    @property
    def cut(self) -> tuple[int, int, str]:
        """Into how many shards and pieces the sequence is cut, and what of it is."""
        return self.num_shards, self.num_pieces, self.cut_of

    def share_of(self, size: int) -> int:
        """Return this part's share of the size of something that a whole sequence has."""
        if self is WHOLE_SEQUENCE:
            return size
        return size * len(self.shards) // self.num_shards * len(self.pieces) // self.num_pieces

    def with_shards(self, shards: Any) -> SequencePart:
        """Return other shards, each with the same pieces."""
        return SequencePart(shards, self.num_shards, self.pieces, self.num_pieces, self.cut_of)

    def with_pieces(self, pieces: Any, num_pieces: int | None = None) -> SequencePart:
        """Return other pieces of the same shards, or these shards cut into so many pieces."""
        return SequencePart(self.shards, self.num_shards, pieces, num_pieces or self.num_pieces, self.cut_of)


WHOLE_SEQUENCE = SequencePart()
