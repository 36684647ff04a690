"""What tensors carry in a real process: torch tensors of just the elements that the rank holds.

Shard i of n of a layer's weight is the elements from i * size // n to (i + 1) * size // n of its flat array, as in
proofs. A shard that is cut off is a copy, so that the whole can be freed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

Interval = tuple[int, int]


@final
@dataclass(slots=True, eq=False)
class Rows:
    """The numbers of an activation or its gradient.

    Args:
        values: samples first, in ascending order.
        kept: what the layer that took it as an input has kept for its backward; see `minitrain.training.layers`.
    """

    values: torch.Tensor
    kept: Any = None

    def add(self, other: Rows) -> Rows:
        """Return the sum."""
        return Rows(self.values + other.values)

    def moved(self, place: Any) -> Rows:
        """Return a copy on another device; what is kept for backward moves there."""
        if self.kept is not None:
            self.kept.move(place)
        return Rows(self.values.to(place, copy=True), self.kept)


@final
@dataclass(slots=True, eq=False)
class Flat:
    """The numbers of a weight, its gradient or its optimizer state: the elements of some shards, and nothing else.

    Args:
        values: the elements that are held along the last axis, in ascending order.
        pieces: which elements of the whole they are: disjoint intervals in ascending order.
        size: elements of the whole.
    """

    values: torch.Tensor
    pieces: Sequence[Interval]
    size: int

    @classmethod
    def whole(cls, values: torch.Tensor) -> Flat:
        """Return all elements of a layer."""
        return cls(values, [(0, values.shape[-1])], values.shape[-1])

    def add(self, other: Flat) -> Flat:
        """Return the sum."""
        return Flat(self.values + other.values, self.pieces, self.size)

    def shard(self, shard: int, num_shards: int) -> Flat:
        """Return the elements of one of `num_shards` shards."""
        piece = bounds(shard, num_shards, self.size)
        found = self.shard_at(piece)
        return Flat(found if found.shape == self.values.shape else found.clone(), [piece], self.size)

    def shard_at(self, piece: Interval) -> torch.Tensor:
        """Return the elements of an interval, which must be held, without copying.

        Raises:
            ValueError: they are not held.
        """
        (start, end), at = piece, 0
        for first, last in self.pieces:
            if first <= start and end <= last:
                return self.values[..., at + start - first : at + end - first]
            at += last - first
        raise ValueError(f"elements {start} to {end} are not held here, which are {list(self.pieces)} of {self.size}")

    def combine(self, other: Flat) -> Flat:
        """Return the elements of both."""
        return put_together([self, other])

    def moved(self, place: Any) -> Flat:
        """Return a copy on another device."""
        return Flat(self.values.to(place, copy=True), self.pieces, self.size)


def put_together(contents: Iterable[Flat]) -> Flat:
    """Return the elements of several, which have none in common."""
    cut = []
    for content in contents:
        sizes = [last - first for first, last in content.pieces]
        cut += list(zip(content.pieces, content.values.split(sizes, -1), strict=True))
        size = content.size
    cut.sort(key=lambda piece: piece[0])
    return Flat(torch.cat([values for _, values in cut], -1), merged(piece for piece, _ in cut), size)


def bounds(shard: int, num_shards: int, size: int) -> Interval:
    """Return which of `size` elements a shard has.

    >>> bounds(1, 3, 8)
    (2, 5)
    """
    return shard * size // num_shards, (shard + 1) * size // num_shards


def pieces_of(shards: Iterable[int], num_shards: int, size: int) -> list[Interval]:
    """Return which of `size` elements some shards have.

    >>> pieces_of({0, 1, 3}, 4, 8)
    [(0, 4), (6, 8)]
    """
    return merged(bounds(shard, num_shards, size) for shard in sorted(shards))


def merged(pieces: Iterable[Interval]) -> list[Interval]:
    """Return ascending intervals, those that touch as one."""
    found: list[Interval] = []
    for start, end in pieces:
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found
