"""What overwrote a buffer, and where."""

from __future__ import annotations

from collections.abc import Mapping, Set

from minitrain.accounting.strict.ledger import Line


class Written:
    """What overwrote a buffer: an object of its own each time, which tells contents apart.

    Args:
        op: the operation.
        line: where.
    """

    __slots__ = ("line", "op")

    def __init__(self, op: str, line: Line) -> None:
        self.op = op
        self.line = line

    def __str__(self) -> str:
        return f"{self.op} at {self.line}"

    def spares(self, shard: int, num_shards: int, version: Written | None) -> bool:  # noqa: ARG002  (as a Torn's)
        """Return whether a shard is still what it was before, in a given version: the whole buffer was overwritten."""
        return False


class Torn(Written):
    """What overwrote a buffer in part.

    Args:
        written: what overwrote a shard last.
        whole: what had overwritten the buffer until then: the whole, or a part of it too.
        place: the shard, as (shard, num_shards).
    """

    __slots__ = ("before", "shards")

    def __init__(self, written: Written, whole: Written | None, place: tuple[int, int]) -> None:
        self.op = written.op
        self.line = written.line
        if isinstance(whole, Torn):  # which nothing is asked any more: a copy each time would be quadratic
            self.before: Written | None = whole.before
            self.shards: dict[int, set[int]] = whole.shards
        else:
            self.before, self.shards = whole, {}
        shard, num_shards = place
        self.shards.setdefault(num_shards, set()).add(shard)

    def spares(self, shard: int, num_shards: int, version: Written | None) -> bool:
        """Return whether a shard is still what it was before, in a given version."""
        return self.before is version and not meets(self.shards, shard, num_shards)


def meets(parts: Mapping[int, Set[int]], shard: int, num_shards: int) -> bool:
    """Return whether a shard, as the interval [i/n, (i+1)/n), has a part in common with others.

    Args:
        parts: the others, by the number of shards that the whole is cut into.
        shard: which one.
        num_shards: of how many.
    """
    for count, others in parts.items():
        touched = range(shard * count // num_shards, -(-(shard + 1) * count // num_shards))
        if any(map(others.__contains__, touched) if len(touched) <= len(others) else map(touched.__contains__, others)):
            return True
    return False
