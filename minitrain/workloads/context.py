"""Context parallelism: the shards of a sequence that a pass works on, and the pairs that the causal mask leaves there.

A sequence is cut into equal shards. A rank holds some of them, and its queries see keys of its own and of other shards.
The work of attention is that of the pairs whose key is not later than the query, and within the window if there is one.
So it is counted by area: of two shards of c tokens, c^2 pairs where the keys lie before the queries, c (c + 1) / 2
where they are the same, and none where they come later.

A rank with one shard of n has little work near the beginning of the sequence, and much near its end. With the shards i
and 2n - 1 - i of 2n, all ranks have the same (Llama 3, section 3.3.2; "zigzag" in implementations of ring attention).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

NONE: frozenset[int] = frozenset()


@final
@dataclass(frozen=True, slots=True)
class Context:
    """The shards of the sequence that a pass works on.

    Args:
        queries: the rank's own shards, whose tokens it takes through the network.
        num_shards: number of shards that the sequence is cut into.
        keys: the shards whose keys the queries have to do with; none before they see any.
    """

    queries: frozenset[int]
    num_shards: int
    keys: frozenset[int] = NONE

    @property
    def degree(self) -> int:
        """Return among how many ranks the sequence is divided."""
        return self.num_shards // len(self.queries)

    def seen(self, shard_len: int, window: int | None) -> Iterator[tuple[int, int, int]]:
        """Yield each shard of queries and of keys with pairs between them, and their number for one head and sample.

        Args:
            shard_len: tokens of a shard.
            window: keys that a query sees at most; None for all.

        Example:
            >>> list(Context(frozenset([0, 3]), 4, frozenset([0, 3])).seen(10, None))
            [(0, 0, 55), (3, 0, 100), (3, 3, 55)]
        """
        for query in sorted(self.queries):
            for key in sorted(self.keys):
                pairs = num_pairs((query - key) * shard_len, shard_len, window)
                if pairs:
                    yield query, key, pairs


def num_pairs(distance: int, shard_len: int, window: int | None = None) -> int:
    """Return the pairs of a query and a key that the causal mask (and the window) leaves between two shards.

    Args:
        distance: by how many tokens the shard of queries begins after that of keys.
        shard_len: tokens of either.
        window: keys that a query sees at most; None for all.

    Example:
        >>> [num_pairs(distance, 4) for distance in (-4, 0, 4)]
        [0, 10, 16]
    """
    most = distance + shard_len if window is None else window - 1
    return _up_to(most - distance, shard_len) - _up_to(-1 - distance, shard_len)


def _up_to(difference: int, size: int) -> int:
    """Return the pairs of two numbers of 0..size-1 that differ by at most `difference`."""
    if difference < 0:
        side = max(difference + size, 0)
        return side * (side + 1) // 2
    side = max(size - 1 - difference, 0)
    return size * size - side * (side + 1) // 2
