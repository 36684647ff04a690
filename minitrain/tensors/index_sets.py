"""Sets of shards and of samples, and ranges of them, as tensors and strategies use them.

Tensors share their sets, since a set is larger than all tensors that refer to it. An index need not be an int: a value
that stands for many ranks (see `minitrain.folding`) brings ranges and sets of its own kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

Numbers = frozenset[int]


def span(start: Any, stop: Any) -> Sequence[Any]:
    """Return `range(start, stop)`, also where each rank of a class has its own start and stop."""
    end = start if hasattr(start, "span") else stop  # an end that has a `span` stands for many ranks
    return end.span(start, stop) if hasattr(end, "span") else range(start, stop)


def alone(shard: Any) -> Numbers:
    """Return the set of one shard, the same one each time; a shard that stands for many ranks makes its own."""
    if shard.__class__ is int:
        return _alone(shard)
    return shard.alone() if hasattr(shard, "alone") else frozenset([shard])


@lru_cache(maxsize=1 << 16)
def _alone(shard: int) -> Numbers:
    """Make the set of one shard."""
    return frozenset([shard])


_latest: tuple[Numbers, Numbers, Numbers] = (frozenset(), frozenset(), frozenset())


def union(left: Numbers, right: Numbers) -> Numbers:
    """Return the union of two sets, the same one as the last time if they are: layers add the same microbatches."""
    global _latest  # noqa: PLW0603  (one tuple, replaced as a whole)
    known_left, known_right, both = _latest
    if left is not known_left or right is not known_right:
        both = left | right
        _latest = left, right, both
    return both
