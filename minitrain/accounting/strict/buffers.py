"""What tensors occupy on a device: how much, who holds it, and what has overwritten it.

Several tensors may share one buffer, as `update`, the reductions and `+` work in place. Each overwriting of a buffer is
an object of its own, so that it also serves as the version of the content: a tensor is up to date if its buffer was not
overwritten since the tensor was made.
"""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType

from minitrain.accounting.strict.ledger import Ledger, Line
from minitrain.tensors.index_sets import overlaps_any


class Overwrite:
    """One overwriting of a whole buffer.

    Args:
        op: the operation that did it.
        line: where in the strategy.
    """

    __slots__ = ("line", "op")

    def __init__(self, op: str, line: Line) -> None:
        self.op = op
        self.line = line

    def __str__(self) -> str:
        return f"{self.op} at {self.line}"

    def keeps(self, shard: int, num_shards: int, version: Overwrite | None) -> bool:  # noqa: ARG002  (as PartialOverwrite's)
        """Return whether a shard still has the content of an earlier version: never, as the whole was overwritten."""
        return False


class PartialOverwrite(Overwrite):
    """The overwriting of some shards of a buffer.

    Args:
        latest: what overwrote a shard last.
        version: the version of the buffer until then; if it is partial too, this object takes over what it knows.
        place: the shard, as (shard, num_shards).

    Attributes:
        before: the version of the whole buffer before any shard was overwritten.
        shards: the shards overwritten since, by the number of shards that the whole is cut into.
    """

    __slots__ = ("before", "shards")

    def __init__(self, latest: Overwrite, version: Overwrite | None, place: tuple[int, int]) -> None:
        self.op = latest.op
        self.line = latest.line
        if isinstance(version, PartialOverwrite):  # taken over: a copy each time would take quadratic time
            self.before: Overwrite | None = version.before
            self.shards: dict[int, set[int]] = version.shards
        else:
            self.before, self.shards = version, {}
        shard, num_shards = place
        self.shards.setdefault(num_shards, set()).add(shard)

    def keeps(self, shard: int, num_shards: int, version: Overwrite | None) -> bool:
        """Return whether a shard still has the content of an earlier version."""
        return self.before is version and not overlaps_any(shard, num_shards, self.shards)


class Buffer:
    """The memory behind one or more tensors of a rank, one of which owns it.

    Attributes:
        ledger: the rank's.
        usable_by: the ledger again while the owner is up to date, None once the buffer was overwritten. One comparison
            with it tells most valid tensors.
        units: how much the buffer holds, in units; 0 for a view while the whole tensor lives.
        line: the line of the strategy that made it.
        holders: number of entries of stores, and of launched operations, that hold it.
        version: its latest overwriting, None if there was none.
        outdated_version: the version of the owner, if that is not up to date.
        views: the shards cut from it, by (shard, num_shards).
    """

    __slots__ = (
        "__weakref__",
        "holders",
        "ledger",
        "line",
        "outdated_version",
        "units",
        "usable_by",
        "version",
        "views",
    )

    holders: int
    ledger: Ledger
    line: Line
    outdated_version: Overwrite | None
    units: int
    usable_by: Ledger | None
    version: Overwrite | None
    views: dict[tuple[int, int], ReferenceType[Any]] | None

    def __del__(self) -> None:
        ledger, units = self.ledger, self.units
        ledger.units -= units
        if self.holders:
            ledger.stored -= units
        else:
            self.line.outside -= units
        if self.views is not None:
            for found in self.views.values():
                view = found()
                if view is not None:
                    view.outlive_whole()

    @property
    def tensor_version(self) -> Overwrite | None:
        """The version of the buffer when its owner was made."""
        return self.version if self.usable_by is not None else self.outdated_version

    def resize(self, units: int) -> None:
        """Let it hold another amount from now on."""
        change = units - self.units
        self.units = units
        if self.holders:
            self.ledger.stored += change
        else:
            self.line.outside += change
        self.ledger.grow(change)

    def enter(self) -> None:
        """Note that a store, or a launched operation, holds it."""
        self.holders += 1
        if self.holders == 1:
            self.ledger.stored += self.units
            self.line.outside -= self.units

    def leave(self) -> None:
        """Note that a store, or a launched operation, holds it no longer."""
        self.holders -= 1
        if not self.holders:
            self.ledger.stored -= self.units
            self.line.outside += self.units

    def overwrite(self, overwrite: Overwrite) -> None:
        """Note that the buffer and its views have another content from now on; their owners are out of date."""
        self._outdate_owner()
        self.version = overwrite
        if self.views is not None:
            self._overwrite_views(overwrite)

    def _overwrite_views(self, overwrite: Overwrite) -> None:
        """Note that the views have another content too."""
        for found in (self.views or {}).values():
            view = found()
            if view is not None:
                Buffer.overwrite(view, overwrite)  # not the view's own method, which would overwrite the whole in turn

    def overwrite_shard(self, overwrite: Overwrite, place: tuple[int, int]) -> None:
        """Note that one of its views was overwritten, so that the whole has partly new content."""
        self._outdate_owner()
        self.version = PartialOverwrite(overwrite, self.version, place)

    def _outdate_owner(self) -> None:
        """Note that the owner is not up to date any more."""
        if self.usable_by is not None:
            self.outdated_version = self.version
            self.usable_by = None
