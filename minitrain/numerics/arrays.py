"""The arrays that tensors carry in a numeric run, and how they are sharded, combined and added.

Arrays are never changed in place, so that tensors may share them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minitrain.numerics.arithmetic import Array


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The numbers of an activation or its gradient.

    Args:
        values: one row a sample, in ascending order of the samples.
    """

    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """The numbers of a weight, its gradient or its optimizer state, or of some shards of them.

    Args:
        values: all elements of the layer, or of a part of it, along the last axis; those that are not held are NaN, so
            that a use of one shows in the result.
        part: which part of a layer, where it may be divided; see `minitrain.numerics.unit_weights`.
    """

    values: Array
    part: Any = None

    def add(self, other: Flat) -> Flat:
        """Return the sum."""
        return Flat(self.values + other.values, self.part)

    def shard(self, shard: int, num_shards: int) -> Flat:
        """Return the elements of one of `num_shards` shards; all others become NaN."""
        here = held([shard], num_shards, self.values.shape[-1])
        return Flat(np.where(here, self.values, np.nan), self.part)

    def combine(self, other: Flat) -> Flat:
        """Return the elements of both."""
        return Flat(np.where(np.isnan(self.values), other.values, self.values), self.part)


def held(shards: Iterable[int], num_shards: int, size: int) -> NDArray[np.bool_]:
    """Return which of `size` elements some shards hold; shard i of n is the part of them from i / n to (i + 1) / n.

    >>> held([1], 3, 8)
    array([False, False,  True,  True,  True, False, False, False])
    """
    mask = np.zeros(size, dtype=np.bool_)
    for shard in shards:
        mask[shard * size // num_shards : (shard + 1) * size // num_shards] = True
    return mask
