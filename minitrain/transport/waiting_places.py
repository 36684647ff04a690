"""Who waits for what, and where in the strategy: the lines of errors and messages about ranks that do not go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from minitrain.source_lines import LOOP, OWNERS, UNKNOWN_PLACE, place_of
from minitrain.transport.calls import Call
from minitrain.transport.task_ownership import context_of, owner_in
from minitrain.transport.wait_for_graph import innermost_frame, joined

MOST_LINES = 16

Task = asyncio.Task[Any]


class Waits:
    """What tasks wait for at one moment.

    Args:
        tasks: unfinished ones.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.tasks = list(tasks)
        self._by_future: dict[Any, Task] = {}
        for task in self.tasks:
            for future in _awaited_by(task):
                self._by_future.setdefault(future, task)

    def place_of_call(self, call: Call) -> str | None:
        """Return the line at which a call of the transport is awaited, None if no task awaits it."""
        return next(
            (self.place(self._by_future[found]) for found in call.live_waiters() if found in self._by_future), None
        )

    def place(self, task: Task) -> str:
        """Return the line of the strategy at which a task is, or at which another task awaits it."""
        found, outer, seen = place_of(task.get_coro()), self._by_future.get(task), {task}
        while found == UNKNOWN_PLACE and outer is not None and outer not in seen:
            seen.add(outer)
            place = place_of(outer.get_coro())
            if place != UNKNOWN_PLACE:
                return f"a task that {place} awaits"
            outer = self._by_future.get(outer)
        return found

    def of_calls(self, calls: Iterable[Call]) -> list[str]:
        """Return a line for each call that is awaited, in the order of ranks."""
        awaited = sorted((call for call in calls if call.is_awaited), key=lambda call: call.rank)
        places = ((call, self.place_of_call(call)) for call in awaited)
        return [
            f"  rank {call.rank} at {call.clock:.6g} s: {call.describe()}" + ("" if place is None else f" ({place})")
            for call, place in places
        ]

    def of_others(self, calls: Iterable[Call]) -> list[tuple[int, str]]:
        """Return rank, and what it waits for in words, for each task that waits for no call and no other task here."""
        known = {waiter for call in calls for waiter in call.live_waiters()} | set(self.tasks)
        found = []
        for task in self.tasks:
            if known.isdisjoint(_awaited_by(task)):
                context = context_of(task)
                rank = 0 if context is None else owner_in(context)[1]
                found.append((rank, f"{_what(task)}, {self.place(task)}"))
        return sorted(found)


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and one that says how many more there are."""
    if len(lines) <= MOST_LINES:
        return list(lines)
    return [*lines[:MOST_LINES], f"  ... and {len(lines) - MOST_LINES} more"]


def _awaited_by(task: Task) -> Iterator[Any]:
    """Yield the futures that a task awaits: one, what it gathers, or those of a TaskGroup or `asyncio.wait`."""
    awaited = getattr(task, "_fut_waiter", None)
    if awaited is None:
        return
    found = [awaited, *(joined(innermost_frame(task)) or ())]
    for future in found:  # the list grows: a gather may be in a gather
        yield future
        found += getattr(future, "_children", None) or ()


def _what(task: Task) -> str:
    """Return what a task waits for, in words."""
    awaited = getattr(task, "_fut_waiter", None)
    if awaited is None or awaited.done():
        return "running"
    frame = innermost_frame(task)
    if frame is None or OWNERS[frame.f_code.co_filename] != LOOP:
        return "a future"
    return frame.f_code.co_qualname
