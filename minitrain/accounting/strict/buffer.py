"""What a tensor occupies on a device: how much, who holds it, and what its content is."""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType

from minitrain.accounting.strict.ledger import Ledger, Line
from minitrain.accounting.strict.written import Torn, Written


class Buffer:
    """The memory behind one or more tensors of a rank, one of which is its owner.

    Attributes:
        ledger: the rank's.
        usable_by: the ledger too while the owner may be used, or None once that was overwritten.
        units: how much it holds, in units; 0 for a view while the whole lives.
        line: what made it.
        stored: how many entries of stores, and operations in flight, hold it.
        written: what overwrote it last.
        seen: what had overwritten it when the owner was made, if that is not what `written` says.
        views: the shards cut from it, by (shard, num_shards).
    """

    __slots__ = ("__weakref__", "ledger", "line", "seen", "stored", "units", "usable_by", "views", "written")

    ledger: Ledger
    line: Line
    seen: Written | None
    stored: int
    units: int
    usable_by: Ledger | None
    views: dict[tuple[int, int], ReferenceType[Any]] | None
    written: Written | None

    def __del__(self) -> None:
        ledger, units = self.ledger, self.units
        ledger.units -= units
        if self.stored:
            ledger.stored -= units
        else:
            self.line.outside -= units
        if self.views is not None:
            for found in self.views.values():
                view = found()
                if view is not None:
                    view.outlive()

    @property
    def version(self) -> Written | None:
        """What had overwritten the buffer when its owner was made."""
        return self.written if self.usable_by is not None else self.seen

    def enter(self) -> None:
        """Note that a store, or an operation in flight, holds it."""
        self.stored += 1
        if self.stored == 1:
            self.ledger.stored += self.units
            self.line.outside -= self.units

    def leave(self) -> None:
        """Note that a store, or an operation in flight, holds it no longer."""
        self.stored -= 1
        if not self.stored:
            self.ledger.stored -= self.units
            self.line.outside += self.units

    def overwrite(self, written: Written) -> None:
        """Note that its content is another one from now on, and so is that of its views, so that no owner is usable."""
        self._outdate_owner()
        self.written = written
        if self.views is not None:
            self._outdate_views(written)

    def _outdate_views(self, written: Written) -> None:
        """Note that the content of its views is another one too."""
        for found in (self.views or {}).values():
            view = found()
            if view is not None:
                Buffer.overwrite(view, written)  # not as a view: the whole is what it should be

    def tear(self, written: Written, place: tuple[int, int]) -> None:
        """Note that one of its views was overwritten, so that the whole is neither the old nor the new one."""
        self._outdate_owner()
        self.written = Torn(written, self.written, place)

    def _outdate_owner(self) -> None:
        """Let its owner not be used any more."""
        if self.usable_by is not None:
            self.seen = self.written
            self.usable_by = None
