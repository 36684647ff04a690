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
