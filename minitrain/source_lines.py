"""Where in a strategy something happens: the source line that an error names.

This is the only file that looks at frames.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import os
import traceback
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar

STRATEGY, ENGINE, PYTHON, LOOP = range(4)

UNKNOWN_PLACE = "a task of its own"
"""What stands for the line of a coroutine in which no strategy runs."""

_HERE = Path(__file__).parent
_STRATEGY_FOLDERS = ("strategies", "learn/exercises")  # an installed package has them inside
_PYTHON_FILES = frozenset({copy.__file__, dataclasses.__file__})  # what makes tensors in the name of its caller
_LOOP = Path(asyncio.__file__).parent
_LIBRARY = Path(traceback.__file__).parent


class _Owners(dict[str, int]):
    """Whose a source file is, looked up once a file."""

    def __missing__(self, filename: str) -> int:
        self[filename] = owner = _owner(filename)
        return owner


def _owner(filename: str) -> int:
    """Return whose a source file is."""
    path = Path(filename)
    if path.is_relative_to(_HERE):
        return STRATEGY if path.relative_to(_HERE).as_posix().startswith(_STRATEGY_FOLDERS) else ENGINE
    if filename in _PYTHON_FILES or filename.startswith("<frozen "):  # the latter: collections.abc, for one
        return PYTHON
    return LOOP if path.parent == _LOOP else STRATEGY


OWNERS = _Owners()


def count_as_strategy(filename: str) -> None:
    """Let errors name the lines of one of minitrain's own files, as they name those of a strategy.

    Args:
        filename: the `__file__` of a module that uses the public API of `Model` alone.
    """
    OWNERS[filename] = STRATEGY


def place_of(coroutine: Any) -> str:
    """Return the innermost line of a strategy in a suspended coroutine, as "file.py:12"."""
    frames = [found.cr_frame for found in _awaited(coroutine) if getattr(found, "cr_frame", None) is not None]
    for frame in reversed(frames):
        if OWNERS[frame.f_code.co_filename] == STRATEGY:
            return line_of(frame)
    return UNKNOWN_PLACE


def waits_in(coroutine: Any) -> str:
    """Return in which of asyncio's own coroutines ("Event.wait") a suspended coroutine waits, or "a future"."""
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) != inspect.CORO_SUSPENDED:
        return "running"
    innermost: Any = [found for found in _awaited(coroutine) if inspect.iscoroutine(found)][-1:]
    in_asyncio = innermost and OWNERS[innermost[0].cr_code.co_filename] == LOOP
    return innermost[0].__qualname__ if in_asyncio else "a future"


def _awaited(coroutine: Any) -> Iterator[Any]:
    """Yield a coroutine, what it awaits, what that awaits, and so on, as far as Python tells."""
    while coroutine is not None:
        yield coroutine
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def passed_by(error: BaseException) -> str | None:
    """Return the innermost line of a strategy that called what raised an error, as "file.py:12"; None if none did."""
    passed = [(Path(frame.f_code.co_filename), number) for frame, number in traceback.walk_tb(error.__traceback__)]
    lines = [at for at in passed if OWNERS[str(at[0])] == STRATEGY and at[0].parent != _LIBRARY]
    return f"{lines[-1][0].name}:{lines[-1][1]}" if lines and lines[-1] != passed[-1] else None


def present_place() -> str:
    """Return the line of the running strategy that called into the engine, as "file.py:12"."""
    frame = calling_frame()
    return "unknown line" if frame is None else line_of(frame)


def calling_frame() -> FrameType | None:
    """Return the frame of the running strategy that called into the engine; None if none did."""
    return strategy_frame(inspect.currentframe())


def caller(depth: int) -> FrameType:
    """Return the frame in which the function that asks was called (depth 1), the one around it (2), and so on."""
    return next(islice(traceback.walk_stack(inspect.currentframe()), depth + 1, None))[0]


def strategy_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, from the given one outwards, that runs a strategy; None if there is none."""
    for found, _ in traceback.walk_stack(frame):
        owner = OWNERS[found.f_code.co_filename]
        if owner == STRATEGY:
            return found
        if owner == LOOP:
            break
    return None


def line_of(frame: FrameType) -> str:
    """Return the line at which a frame is, as "file.py:12"."""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119  (recorded with each step)


class Place:
    """A call of a strategy into the engine: one object however often the call runs.

    Args:
        code: the function of the strategy; None where no strategy is known.
        instruction: the byte offset of the call in it, which gives the line when somebody asks.
    """

    __slots__ = ("code", "instruction")

    def __init__(self, code: CodeType | None, instruction: int) -> None:
        self.code = code
        self.instruction = instruction

    def __str__(self) -> str:
        if self.code is None:
            return "unknown line"
        number = next((line for start, end, line in self.code.co_lines() if start <= self.instruction < end), None)
        return f"{os.path.basename(self.code.co_filename)}:{number or self.code.co_firstlineno}"  # noqa: PTH119  (as above)


P = TypeVar("P", bound=Place)


class Places(Generic[P]):
    """The calls of strategies into the engine that somebody has asked for, found again in less time than a line is.

    Args:
        kind: what stands for a call: `Place`, or a class that extends it.
    """

    def __init__(self, kind: type[P]) -> None:
        self._kind = kind
        self._nowhere = kind(None, 0)
        self._known: dict[tuple[int, int], P] = {}
        self._recent: dict[int, P] = {}  # by instruction alone: the function that was there last

    def __iter__(self) -> Iterator[P]:
        """Iterate over all that were asked for."""
        return iter((self._nowhere, *self._known.values()))

    def calling(self) -> P:
        """Return the place of the running strategy that called into the engine, through at least two functions of it.

        `walk_stack(None)` begins beyond two callers in Python 3.11 to 3.13, and here in 3.14. To begin here takes twice
        as long, since it computes the line of each frame.
        """
        recent = self._recent
        for frame, _ in traceback.walk_stack(None):
            place = recent.get(frame.f_lasti)
            if place is not None and place.code is frame.f_code:
                return place
            if OWNERS[frame.f_code.co_filename] != ENGINE:
                return self._outer(frame)
        return self._nowhere

    def _outer(self, frame: FrameType) -> P:
        """Return the place of the strategy that runs in a frame or further out."""
        found = strategy_frame(frame)
        if found is None:
            return self._nowhere
        key = id(found.f_code), found.f_lasti  # a code object takes longer to hash; `Place` keeps it alive
        place = self._known.get(key)
        if place is None:
            place = self._known[key] = self._kind(found.f_code, found.f_lasti)
        self._recent[place.instruction] = place
        return place
