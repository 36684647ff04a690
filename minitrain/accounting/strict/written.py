"""What overwrote a buffer, and where."""

from __future__ import annotations

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
        before: what had overwritten the whole before.
        shards: what was overwritten since, as (shard, num_shards).
    """

    __slots__ = ("before", "shards")

    def __init__(self, written: Written, before: Written | None, shards: frozenset[tuple[int, int]]) -> None:
        self.op = written.op
        self.line = written.line
        self.before = before
        self.shards = shards

    def spares(self, shard: int, num_shards: int, version: Written | None) -> bool:
        """Return whether a shard is still what it was before, in a given version."""
        return self.before is version and not any(
            other * num_shards < (shard + 1) * count and shard * count < (other + 1) * num_shards
            for other, count in self.shards
        )
