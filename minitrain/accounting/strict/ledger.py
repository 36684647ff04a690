"""What a rank really holds: every tensor alive counts, wherever a strategy keeps it, by the line that made it."""

from __future__ import annotations

from pathlib import Path
from types import CodeType
from typing import Any

from minitrain.events import UNITS_PER_ELEMENT
from minitrain.rank.stores import Account
from minitrain.source_lines import calling_frame
from minitrain.tensors import Sharded


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


_NOWHERE = Line(None, 0)


class Ledger(Account):
    """What one rank holds over all buffers alive.

    Args:
        account: that of the rank's stores.
        rank: whose it is, for messages.
        is_uniform: whether shards of one kind are of the same size in all layers, as the workload says.

    Attributes:
        stored: units of what the stores and operations in flight hold now.
        most_outside: the most that was held outside of them, when an operation began.
        at_most: how much of it each line had made, in units.
        at_row: the row of the rank's log that the operation got.
        updated: the shards that were updated, by the number of shards, by layer and step.
    """

    __slots__ = (
        "_lines",
        "_recent",
        "_sizes",
        "at_most",
        "at_row",
        "is_uniform",
        "most_outside",
        "rank",
        "stored",
        "updated",
    )

    def __init__(self, account: Account, rank: int, *, is_uniform: bool) -> None:
        super().__init__(account.measure)
        self.rank = rank
        self.is_uniform = is_uniform
        self.stored = 0
        self.most_outside = 0
        self.at_most: dict[Line, int] = {}
        self.at_row = 0
        self.updated: dict[tuple[int, int], dict[int, set[int]]] = {}
        self._sizes: dict[tuple[type, int, int, int, int], int] = {}
        self._lines: dict[tuple[int, int], Line] = {}
        self._recent: dict[int, Line] = {}  # by instruction alone: the function that was there last

    def line(self) -> Line:
        """Return the line of the strategy that called into the engine."""
        frame = calling_frame()
        if frame is None:
            return _NOWHERE
        line = self._recent.get(frame.f_lasti)
        if line is not None and line.code is frame.f_code:
            return line
        # A code object takes longer to hash than all else; `Line` keeps it alive.
        key = id(frame.f_code), frame.f_lasti
        if key not in self._lines:
            self._lines[key] = Line(frame.f_code, frame.f_lasti)
        self._recent[frame.f_lasti] = self._lines[key]
        return self._lines[key]

    def units_of(self, tensor: Any) -> int:
        """Return the size of a tensor in units; shards of one kind (and layer) are measured once."""
        units: int | None = getattr(tensor, "_units", None)
        if units is not None:
            return units
        if not isinstance(tensor, Sharded):
            return self.size(tensor)
        layer = 0 if self.is_uniform else tensor.layer
        key = tensor.__class__, layer, len(tensor.shards), tensor.num_shards, tensor.num_parts
        units = self._sizes.get(key)
        if units is None:
            units = self._sizes[key] = self.size(tensor)
        tensor._units = units
        return units

    def sample(self, row: int) -> None:
        """Note what is held outside the stores while an operation begins, if it was never more."""
        self.most_outside = self.units - self.stored
        self.at_row = row
        self.at_most = {line: line.outside for line in self._lines.values() if line.outside}

    def held_outside(self) -> dict[str, float]:
        """Return the elements held outside the stores when it was most, by line, most first."""
        by_name: dict[str, int] = {}
        for line, units in self.at_most.items():
            by_name[str(line)] = by_name.get(str(line), 0) + units
        by_size = sorted(by_name.items(), key=lambda item: -item[1])
        return {line: units / UNITS_PER_ELEMENT for line, units in by_size}
