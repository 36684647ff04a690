"""Sets of shards and of samples, ranges of them, and their text, as tensors and strategies use them.

Tensors share their sets, since a set is larger than all tensors that refer to it. An index need not be an int: a value
that stands for many ranks (see `minitrain.run.folding`) brings ranges and sets of its own kind.

Which part of each sequence something is of, where ranks divide it: some shards, and some pieces of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

from minitrain.errors import UsageError

Numbers = frozenset[int]
K = TypeVar("K")
V = TypeVar("V")

_MOST_RUNS = 8  # shown by `ranges`


def span(start: Any, stop: Any) -> Sequence[Any]:
    """Return `range(start, stop)`, also where each rank of a class has its own start and stop."""
    end = start if hasattr(start, "span") else stop  # an end that has a `span` stands for many ranks
    try:
        return end.span(start, stop) if hasattr(end, "span") else range(start, stop)
    except TypeError:
        raise UsageError(f"a span has integers as ends, got {start!r} and {stop!r}; divide by //") from None


def between(borders: Iterable[int]) -> tuple[range, ...]:
    """Return the ranges between borders.

    >>> between([0, 3, 4])
    (range(0, 3), range(3, 4))
    """
    return tuple([range(start, stop) for start, stop in pairwise(borders)])


def equal_ranges(total: int, count: int) -> tuple[range, ...]:
    """Cut `range(total)` into so many ranges, as equal as whole numbers can be.

    >>> equal_ranges(8, 3)
    (range(0, 2), range(2, 5), range(5, 8))
    """
    return between([place * total // count for place in range(count + 1)])


def singleton(shard: Any) -> Numbers:
    """Return the set that holds one shard, the same object each time.

    A shard that stands for many ranks makes a set of its own kind.
    """
    if shard.__class__ is int:
        return _singleton(shard)
    return shard.singleton() if hasattr(shard, "singleton") else frozenset([shard])


@lru_cache(maxsize=1 << 16)
def _singleton(shard: int) -> Numbers:
    """Make the set of one shard."""
    return frozenset([shard])


_latest: tuple[Numbers, Numbers, Numbers] = (frozenset(), frozenset(), frozenset())


def union(left: Numbers, right: Numbers) -> Numbers:
    """Return the union of two sets.

    If both sets are the same objects as in the last call, so is the result: the layers of a model add gradients of the
    same microbatches one after another.
    """
    global _latest  # noqa: PLW0603  (one tuple, replaced as a whole)
    known_left, known_right, both = _latest
    if left is not known_left or right is not known_right:
        both = left | right
        _latest = left, right, both
    return both


def forget_latest_union() -> None:
    """Forget the sets of the last union: those that stand for many ranks must not outlive their run."""
    global _latest  # noqa: PLW0603
    _latest = (frozenset(), frozenset(), frozenset())


def ranges(numbers: Iterable[int]) -> str:
    """Write whole numbers compactly, in order.

    >>> ranges([3, 0, 1, 2, 8])
    '0-3,8'
    >>> ranges(range(0, 64, 8))
    '0-56 step 8'
    """
    ordered = sorted(numbers)
    step = _common_step(ordered)
    if step > 1:
        return f"{ordered[0]}-{ordered[-1]} step {step}"
    found = runs(ordered)
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in found[:_MOST_RUNS]]
    return ",".join(shown) + (f",... ({len(ordered)} in all)" if len(found) > _MOST_RUNS else "")


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of consecutive numbers, in order."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return values by key, in the order in which they come.

    >>> grouped((number % 2, number) for number in range(5))
    {0: [0, 2, 4], 1: [1, 3]}
    """
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _common_step(ordered: list[int]) -> int:
    """Return the step of at least three evenly spaced numbers, 0 otherwise."""
    if len(ordered) < 3:
        return 0
    step = ordered[1] - ordered[0]
    even = all(later - earlier == step for earlier, later in pairwise(ordered))
    return step if even else 0


def overlapping_shards(shard: int, num_shards: int, other_num_shards: int) -> range:
    """Return which shards, of a whole that is cut otherwise, overlap a shard: shards are intervals [i/n, (i+1)/n).

    Args:
        shard: which shard.
        num_shards: number of shards that the whole is cut into.
        other_num_shards: number of shards of the other cut.

    >>> overlapping_shards(1, num_shards=2, other_num_shards=6)
    range(3, 6)
    """
    return range(shard * other_num_shards // num_shards, -(-(shard + 1) * other_num_shards // num_shards))


def overlaps_any(shard: int, num_shards: int, others: Mapping[int, Set[int]]) -> bool:
    """Return whether a shard has a part in common with any of others.

    For each cut of the others, the time grows with the smaller of two sets: these shards, and those that the shard
    overlaps.

    Args:
        shard: which shard.
        num_shards: number of shards that the whole is cut into.
        others: the other shards, by the number of shards of their cut.
    """
    for count, found in others.items():
        touched = overlapping_shards(shard, num_shards, count)
        fewer, more = (touched, found) if len(touched) <= len(found) else (found, touched)
        if any(number in more for number in fewer):
            return True
    return False


_ALL = frozenset([0])
_fraction = lru_cache(maxsize=4096)(Fraction)  # a new one takes a greatest common divisor


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
        return _fraction(self.count, self.num_shards * self.num_pieces)

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
