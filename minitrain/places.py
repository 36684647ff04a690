"""Where in a strategy something happens: the source line that an error names."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.calls import Call

_ENGINE = str(Path(__file__).parent)


def place_of(coroutine: Any) -> str:
    """Return the innermost line of a suspended coroutine that is not the engine's own, as "file.py:12"."""
    frames = []
    while coroutine is not None and getattr(coroutine, "cr_frame", None) is not None:
        frames.append(coroutine.cr_frame)
        coroutine = coroutine.cr_await
    for frame in reversed(frames):
        if not _is_engine(frame):
            return _line(frame)
    return "a task of its own"


def places_of(calls: Iterable[Call]) -> dict[Call, str]:
    """Return where in the strategy each waiting call is awaited, as far as that is known."""
    tasks = {getattr(task, "_fut_waiter", None): task for task in asyncio.all_tasks()}
    found = {}
    for call in calls:
        for waiter in call.parked():
            if waiter in tasks:
                found[call] = place_of(tasks[waiter].get_coro())
    return found


def present_place() -> str:
    """Return the line of the running strategy that called into the engine, as "file.py:12"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_engine(frame):
        frame = frame.f_back
    return "unknown line" if frame is None else _line(frame)


def _is_engine(frame: FrameType) -> bool:
    """Return whether a frame runs minitrain's own code (shipped strategies are not its own here)."""
    return str(Path(frame.f_code.co_filename).parent) == _ENGINE


def _line(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
