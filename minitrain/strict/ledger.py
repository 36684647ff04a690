"""What a rank really holds: one buffer for every tensor alive, wherever a strategy keeps it.

A buffer is what a tensor occupies on a device. It lives as long as a tensor refers to it, whatever variable, closure or
container holds that tensor, and it counts once however many tensors share it: `update`, the reductions and `+` work in
place, so that old and new share one. A shard cut from a whole tensor is a view of the whole's buffer: it counts nothing
while that lives, and for itself afterwards.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import ReferenceType, ref

from minitrain.places import strategy_frame
from minitrain.storage import UNITS_PER_ELEMENT, Account


class Line:
    """A line of a strategy that makes tensors, and how much of what it made is held outside the stores now.

    Args:
        code: the function.
        instruction: the byte offset of the call in it, which gives the line when somebody asks.

    Attributes:
        outside: units.
    """

    __slots__ = ("code", "instruction", "outside")

    def __init__(self, code: CodeType | None, instruction: int) -> None:
        self.code = code
        self.instruction = instruction
        self.outside = 0

    def __str__(self) -> str:
        if self.code is None:
            return "unknown line"
        number = next((line for start, end, line in self.code.co_lines() if start <= self.instruction < end), None)
        return f"{Path(self.code.co_filename).name}:{number or self.code.co_firstlineno}"


class Written:
    """What overwrote a buffer: an object of its own each time, which tells contents apart.

    Args:
        op: the operation.
        line: where.
        before: what had overwritten it before, if only shards of it were overwritten since.
        shards: those, as (shard, num_shards).
    """

    __slots__ = ("before", "line", "op", "shards")

    def __init__(
        self, op: str, line: Line, before: Written | None = None, shards: frozenset[tuple[int, int]] = frozenset()
    ) -> None:
        self.op = op
        self.line = line
        self.before = before
        self.shards = shards

    def __str__(self) -> str:
        return f"{self.op} at {self.line}"

    def spares(self, shard: int, num_shards: int) -> bool:
        """Return whether a shard is still what it was before."""
        return bool(self.shards) and not any(
            other * num_shards < (shard + 1) * count and shard * count < (other + 1) * num_shards
            for other, count in self.shards
        )


class Buffer:
    """What one or more tensors of a rank occupy.

    Args:
        ledger: the rank's.
        units: how much it holds, in units; 0 for a view while the whole lives.
        line: what made it.

    Attributes:
        stored: how many entries of stores, and operations in flight, hold it.
        written: what overwrote it last.
        views: the shards cut from it.
    """

    __slots__ = ("__weakref__", "ledger", "line", "stored", "units", "views", "written")

    def __init__(self, ledger: Ledger, units: int, line: Line) -> None:
        self.ledger = ledger
        self.units = units
        self.line = line
        self.stored = 0
        self.written: Written | None = None
        self.views: dict[tuple[int, int], ReferenceType[View]] | None = None
        line.outside += units

    def __del__(self) -> None:
        ledger, units = self.ledger, self.units
        ledger.units -= units
        if self.stored:
            ledger.stored -= units
        else:
            self.line.outside -= units
        if self.views is not None:
            for view in self.living_views():
                view.outlive()

    def living_views(self) -> list[View]:
        """Return the shards cut from it that still live."""
        return [view for found in (self.views or {}).values() if (view := found()) is not None]

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
        """Note that its content is another one from now on, and so is that of its views."""
        self.written = written
        if self.views is not None:
            for view in self.living_views():
                Buffer.overwrite(view, written)

    def view(self, units: int, shard: int, num_shards: int, line: Line) -> View:
        """Return the buffer of one shard: the same one each time."""
        if isinstance(self, View) and self.whole is not None:  # the only shard of a whole is the whole
            whole = self.whole()
            if whole is not None:
                return whole.view(units, shard, num_shards, line)
        if self.views is None:
            self.views = {}
        found = self.views.get((shard, num_shards))
        known = None if found is None else found()
        if known is None:
            known = View(self, units, line, (shard, num_shards))
            self.views[shard, num_shards] = ref(known)
        return known


class View(Buffer):
    """A shard of a whole tensor, as long as the whole lives; then a buffer like any other.

    Args:
        whole: what it is cut from.
        units: how much it holds once it stands for itself.
        line: what made it.
        place: (shard, num_shards).
    """

    __slots__ = ("place", "size", "whole")

    def __init__(self, whole: Buffer, units: int, line: Line, place: tuple[int, int]) -> None:
        self.ledger = whole.ledger
        self.units = 0
        self.line = line
        self.stored = 0
        self.written = whole.written
        if self.written is not None and self.written.spares(*place):
            self.written = self.written.before
        self.views = None
        self.place = place
        self.size = units
        self.whole: ReferenceType[Buffer] | None = ref(whole)

    def overwrite(self, written: Written) -> None:
        """Note that its content is another one, so that the whole is neither the old nor the new one."""
        super().overwrite(written)
        whole = None if self.whole is None else self.whole()
        if whole is not None:
            last = whole.written
            before, shards = (last.before, last.shards) if last is not None and last.shards else (last, frozenset())
            whole.written = Written(written.op, written.line, before, shards | {self.place})

    def outlive(self) -> None:
        """Stand for itself from now on."""
        self.whole = None
        self.ledger.hold(self, self.size)


_NOWHERE = Line(None, 0)


class Ledger(Account):
    """What one rank holds over all buffers alive.

    Args:
        account: that of the rank's stores.
        rank: whose it is, for messages.

    Attributes:
        stored: units of what the stores and operations in flight hold now.
        most_outside: the most that was, when an operation began.
        at_most: how much of it each line had made, in units.
        at_row: the row of the rank's log that the operation got.
        sizes: units by kind, shards held and shards of the whole.
        updated: the shards that were updated, by layer and step.
    """

    __slots__ = ("at_most", "at_row", "lines", "most_outside", "rank", "sizes", "stored", "updated")

    def __init__(self, account: Account, rank: int) -> None:
        super().__init__(account.measure)
        self.rank = rank
        self.stored = 0
        self.most_outside = 0
        self.at_most: dict[str, int] = {}
        self.at_row = 0
        self.lines: dict[tuple[int, int], Line] = {}
        self.sizes: dict[tuple[type, int, int], int] = {}
        self.updated: dict[tuple[int, int], set[tuple[int, int]]] = {}

    def line(self, frame: FrameType | None) -> Line:
        """Return the line of the strategy that runs in a frame or further out."""
        assert frame is not None  # somebody calls
        try:
            return self.lines[id(frame.f_code), frame.f_lasti]
        except KeyError:  # a new line, or the engine
            return self._outer_line(frame)

    def _outer_line(self, frame: FrameType) -> Line:
        """Return the line of the strategy that called into the engine."""
        found = strategy_frame(frame)
        if found is None:
            return _NOWHERE
        key = id(found.f_code), found.f_lasti  # a code object takes longer to hash than all else; `Line` keeps it alive
        if key not in self.lines:
            self.lines[key] = Line(found.f_code, found.f_lasti)
        return self.lines[key]

    def hold(self, buffer: Buffer, units: int) -> None:
        """Count what a buffer holds from now on."""
        buffer.units = units
        if buffer.stored:
            self.stored += units
        else:
            buffer.line.outside += units
        self.grow(units)

    def sample(self, row: int) -> None:
        """Note what is held outside the stores while an operation begins, if it was never more."""
        self.most_outside = self.units - self.stored
        self.at_row = row
        self.at_most = {}
        for line in self.lines.values():
            if line.outside:
                self.at_most[str(line)] = self.at_most.get(str(line), 0) + line.outside

    def held_outside(self) -> dict[str, float]:
        """Return the elements held outside the stores when it was most, by line, most first."""
        by_size = sorted(self.at_most.items(), key=lambda item: -item[1])
        return {line: units / UNITS_PER_ELEMENT for line, units in by_size}


def interval(shard: int, num_shards: int) -> tuple[Fraction, Fraction]:
    """Return the part of the whole that a shard is: [shard / num_shards, (shard + 1) / num_shards)."""
    return Fraction(shard, num_shards), Fraction(shard + 1, num_shards)


def parts(tensor: Any) -> list[tuple[Fraction, Fraction]]:
    """Return the parts of the whole that a tensor holds, those that touch joined, in order."""
    joined: list[tuple[Fraction, Fraction]] = []
    for start, end in sorted(interval(shard, tensor.num_shards) for shard in tensor.shards):
        if joined and joined[-1][1] >= start:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined
