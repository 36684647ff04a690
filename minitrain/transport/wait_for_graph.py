"""Whether any task of a run can proceed without another one doing something first.

Tasks and futures form a wait-for graph. A task waits for a future, and a future for whatever completes it: a gather
for its children, a TaskGroup and `asyncio.wait` for theirs, a `shield` and `as_completed` for the futures whose
callbacks complete them. The graph is read from asyncio's own attributes and callbacks. A future that none of this
explains (a sleep, a lock, an executor, a task of somebody else's) may complete at any time.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterable, Iterator, Set
from contextvars import Context
from functools import cached_property
from types import FrameType
from typing import Any

from minitrain.transport.waiting import Waiter

_Future = asyncio.Future[Any]


class WaitForGraph:
    """What the tasks of a run wait for, at one moment.

    Args:
        tasks: the unfinished tasks of the run.
        transport_waiters: the futures on which tasks wait for an operation of another rank.
    """

    def __init__(self, tasks: Iterable[asyncio.Task[Any]], transport_waiters: Set[Waiter]) -> None:
        self.tasks: Set[_Future] = set(tasks)
        self.transport_waiters = transport_waiters

    @property
    def can_proceed(self) -> bool:
        """Whether some task can proceed although no other task does anything."""
        return any(map(self._can_proceed, self.tasks))

    def _can_proceed(self, task: Any) -> bool:
        """Return whether a task can proceed although no other task does anything."""
        awaited = getattr(task, "_fut_waiter", None)
        if awaited is None or awaited.done():
            return True
        if awaited in self.transport_waiters:
            return False
        frame = innermost_frame(task)
        members = joined(frame)
        if members is None and frame is not None and isinstance(queue := frame.f_locals.get("self"), asyncio.Queue):
            members = self._sources.get(queue)
        return self._can_complete(awaited) if members is None else any(map(self._can_complete, members))

    def _can_complete(self, future: Any) -> bool:
        """Return whether a future is done, or could complete although no task does anything."""
        if future.done():
            return True
        if isinstance(future, asyncio.Task):
            return future not in self.tasks
        children = getattr(future, "_children", None)
        if children:
            missing = [child for child in children if not child.done()]
            if not missing or (any(map(_failed, children)) and not _tolerates_failures(future, missing)):
                return True
            return any(map(self._can_complete, missing))
        sources = self._sources.get(future)
        return future not in self.transport_waiters and (sources is None or any(map(self._can_complete, sources)))

    @cached_property
    def _sources(self) -> dict[Any, list[_Future]]:
        """The futures whose completion completes another future or fills a queue, as asyncio's callbacks show."""
        sources: dict[Any, list[_Future]] = {}
        futures = list(self.tasks)
        for future in futures:  # the list grows meanwhile: a task may be in a gather that is in a shield
            for cells in _cells_of_callbacks(future):
                values = cells.values()
                siblings = [item for value in values if isinstance(value, list | set) for item in value]
                for value in values:
                    if isinstance(value, asyncio.Future) and value not in sources:
                        futures.append(value)
                    if isinstance(value, asyncio.Future | asyncio.Queue):
                        sources.setdefault(value, []).extend((future, *siblings))
        return sources


def _failed(future: Any) -> bool:
    """Return whether a future ended with an error, without marking that error as retrieved."""
    return future.done() and (future.cancelled() or future._exception is not None)


def _tolerates_failures(gather: Any, children: Iterable[_Future]) -> bool:
    """Return whether a gather goes on waiting for its other children after one has failed."""
    cells = (cells for child in children for cells in _cells_of_callbacks(child))
    return any(found.get("outer") is gather and found.get("return_exceptions") for found in cells)


def innermost_frame(task: asyncio.Task[Any]) -> FrameType | None:
    """Return the frame of the coroutine in which a task waits."""
    coroutine: Any = task.get_coro()
    while hasattr(getattr(coroutine, "cr_await", None), "cr_frame"):
        coroutine = coroutine.cr_await
    return getattr(coroutine, "cr_frame", None)


def joined(frame: FrameType | None) -> list[_Future] | None:
    """Return the futures awaited at the end of a TaskGroup or in `asyncio.wait`; None for any other frame."""
    if frame is None:
        return None
    group = frame.f_locals.get("self")
    if isinstance(group, asyncio.TaskGroup):
        return list(group._tasks)
    if frame.f_code is not asyncio.tasks._wait.__code__:  # type: ignore[attr-defined]
        return None
    futures, until = list(frame.f_locals["fs"]), frame.f_locals.get("return_when")
    if until == asyncio.FIRST_COMPLETED:
        return futures
    ends = [future for future in futures if not future.done() or (until == asyncio.FIRST_EXCEPTION and _failed(future))]
    return ends or futures


def _cells_of_callbacks(future: Any) -> Iterator[dict[str, Any]]:
    """Yield the closure variables, by name, of each of asyncio's own callbacks on a future."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        is_own = getattr(callback, "__module__", None) == "asyncio.tasks" and hasattr(callback, "__closure__")
        if is_own and callback.__name__ != "_outer_done_callback":  # that one only detaches what was shielded
            names, cells = callback.__code__.co_freevars, callback.__closure__ or ()
            yield {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def nothing_can_happen(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a loop would wait for ever: nothing to run, no timer, file, signal handler or other thread."""
    ready, selector = getattr(loop, "_ready", None), getattr(loop, "_selector", None)
    if ready is None or selector is None or ready or threading.active_count() > 1:
        return False
    if getattr(loop, "_signal_handlers", None):
        return False
    return not timer_contexts(loop) and len(selector.get_map()) <= 1  # the loop's own pipe


def timer_contexts(loop: asyncio.AbstractEventLoop) -> list[Context | None]:
    """Return the contexts of the loop's live timers, and of the callbacks that it runs next, as a timer may be due."""
    scheduled, ready = getattr(loop, "_scheduled", None), getattr(loop, "_ready", ())
    if scheduled is not None:
        return [handle._context for handle in (*ready, *scheduled) if not handle.cancelled()]
    handles = [found for found in gc.get_objects() if type(found).__name__ == "TimerHandle"]  # uvloop keeps no list
    return [None for handle in handles if not handle.cancelled()]
