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
from types import FrameType
from typing import Any

STRATEGY, ENGINE, PYTHON, LOOP = range(4)

UNKNOWN_PLACE = "a task of its own"
"""What stands for the line of a coroutine in which no strategy runs."""

_HERE = Path(__file__).parent
_STRATEGY_FOLDERS = ("strategies", "exercises")  # an installed package has them inside
_PYTHON_FILES = frozenset({copy.__file__, dataclasses.__file__})  # what makes tensors in the name of its caller
_LOOP = Path(asyncio.__file__).parent


class _Owners(dict[str, int]):
    """Whose a source file is, looked up once a file."""

    def __missing__(self, filename: str) -> int:
        self[filename] = owner = _owner(filename)
        return owner


def _owner(filename: str) -> int:
    """Return whose a source file is."""
    path = Path(filename)
    if path.is_relative_to(_HERE):
        return STRATEGY if path.relative_to(_HERE).parts[0] in _STRATEGY_FOLDERS else ENGINE
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
