"""The steps that a strategy's operations are recorded as, and the names of the tensors in them."""

from __future__ import annotations

import sys
from typing import Any

from minitrain.grading.wire import MOST_STEPS
from minitrain.source_lines import line_of, strategy_frame
from minitrain.tensors import Tensor

Step = list[Any]


class Program:
    """The steps of one rank.

    Attributes:
        steps: so far.
        lines: where in the strategy each of them stands, as "file.py:12"; None where nothing is known.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.lines: list[str | None] = []

    def add(self, *step: Any) -> int:
        """Add a step and return its number."""
        if len(self.steps) >= MOST_STEPS:
            raise RuntimeError(f"a rank did {MOST_STEPS} operations; is there a loop that never ends?")
        self.steps.append([*step])
        frame = strategy_frame(sys._getframe(2))
        self.lines.append(None if frame is None else line_of(frame))
        return len(self.steps) - 1

    def add_late(self, *step: Any) -> None:
        """Add that a tensor or an operation was freed; Python may do that at any point of the program."""
        self.steps.append([*step])
        self.lines.append(None)


class Made:
    """The origin of a tensor, which it carries while a run is recorded: the step that made it.

    Args:
        program: of the rank that has it.
        step: number of the step.
        place: among the step's results.
    """

    __slots__ = ("place", "program", "step")

    def __init__(self, program: Program, step: int, place: int = 0) -> None:
        self.program = program
        self.step = step
        self.place = place

    def __del__(self) -> None:
        self.program.add_late("free", [self.step, self.place])

    def add(self, other: Any) -> Made:
        """Record a sum."""
        return self._record("add", name_of(other))

    def combine(self, other: Any) -> Made:
        """Record a combination."""
        return self._record("combine", name_of(other))

    def shard(self, shard: int, num_shards: int) -> Made:
        """Record a cut."""
        return self._record("shard", shard, num_shards)

    def _record(self, kind: str, *what: Any) -> Made:
        """Record a step on this tensor."""
        return Made(self.program, self.program.add(kind, [self.step, self.place], *what))


def name_of(value: Any) -> Any:
    """Return how a step names a tensor: by its origin, or by its fields if the strategy itself made it."""
    content = value if isinstance(value, Made) else getattr(value, "_content", None)
    if isinstance(content, Made):
        return [content.step, content.place]
    if isinstance(value, list | tuple):
        return {"bucket": [name_of(item) for item in value]}
    if isinstance(value, Tensor):
        fields = {name: getattr(value, name) for name in value.__dataclass_fields__}  # type: ignore[attr-defined]
        plain = {name: sorted(field) if isinstance(field, frozenset) else field for name, field in fields.items()}
        plain.pop("load", None)  # how tokens fall on experts, which is no plain value
        return {"made": type(value).__name__, "fields": plain}
    return {"alien": repr(value)[:200]}
