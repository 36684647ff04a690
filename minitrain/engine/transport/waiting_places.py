"""Who waits for what, and where in the strategy: the lines of errors and messages about ranks that do not go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from minitrain.engine.transport.calls import Call
from minitrain.engine.transport.task_ownership import RankTask
from minitrain.source_lines import UNKNOWN_PLACE, place_of, waits_in

MOST_LINES = 16

_JOINS = ("a future", "TaskGroup.__aexit__", "_wait", "wait", "wait_for")  # what may wait for other tasks


def lines_of_calls(calls: Iterable[Call]) -> list[str]:
    """Return a line for each call that is awaited, in the order of ranks."""
    awaited = sorted((call for call in calls if call.is_awaited), key=lambda call: call.rank)
    places = ((call, place_of_call(call)) for call in awaited)
    return [
        f"  rank {call.rank} at {call.clock:.6g} s: {call.describe()}" + ("" if place is None else f" ({place})")
        for call, place in places
    ]


def place_of_call(call: Call) -> str | None:
    """Return the line at which a call of the transport is awaited, None if no task awaits it."""
    return next((_place(waiter.task) for waiter in call.live_waiters() if waiter.task is not None), None)


def _place(task: asyncio.Task[Any]) -> str:
    """Return the line of the strategy at which a task is, or else that of the task which has made it."""
    found, maker = place_of(task.get_coro()), task.maker() if isinstance(task, RankTask) else None
    while found == UNKNOWN_PLACE and maker is not None:
        place = place_of(maker.get_coro())
        if place != UNKNOWN_PLACE:
            return f"a task that {place} awaits"
        maker = maker.maker()
    return found


def other_places(tasks: Iterable[RankTask], calls: Iterable[Call]) -> list[tuple[int, str]]:
    """Return rank, and what it waits for in words, for each task that waits for no call, nor for tasks of its own."""
    waiting = {waiter.task for call in calls for waiter in call.live_waiters()}
    unfinished = list(tasks)
    makers = {task.maker() for task in unfinished}
    found = []
    for task in unfinished:
        what = waits_in(task.get_coro())
        if task not in waiting and not (task in makers and what in _JOINS):
            found.append((task.rank, f"{what}, {_place(task)}"))
    return sorted(found)


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and one that says how many more there are."""
    if len(lines) <= MOST_LINES:
        return list(lines)
    return [*lines[:MOST_LINES], f"  ... and {len(lines) - MOST_LINES} more"]
