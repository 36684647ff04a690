"""Whether the tasks of a run can go on by themselves, as far as asyncio tells what each of them awaits.

A task waits for a future, and a future for whatever fulfils it: a gather for its children, a TaskGroup and
`asyncio.wait` for theirs, a `shield` and `as_completed` for the futures that carry their callbacks. Whatever none of
that explains (a sleep, a lock, an executor, a task of somebody else's) may be over at any time.
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


class Standstill:
    """What the tasks of a run wait for, at one moment.

    Args:
        tasks: those of the run that are not over.
        parked: the futures on which tasks wait for an operation of another rank's.
    """

    def __init__(self, tasks: Iterable[asyncio.Task[Any]], parked: Set[Waiter]) -> None:
        self.tasks: Set[_Future] = set(tasks)
        self.parked = parked

    @property
    def is_broken(self) -> bool:
        """Whether any task could do something although no other task does."""
        return any(map(self._acts, self.tasks))

    def _acts(self, task: Any) -> bool:
        """Return whether a task could do something although no other task does."""
        awaited = getattr(task, "_fut_waiter", None)
        if awaited is None or awaited.done():
            return True
        if awaited in self.parked:
            return False
        frame = _innermost_frame(task)
        joined = _joined(frame)
        if joined is None and frame is not None and isinstance(queue := frame.f_locals.get("self"), asyncio.Queue):
            joined = self._sources.get(queue)
        return self._may_end(awaited) if joined is None else any(map(self._may_end, joined))

    def _may_end(self, future: Any) -> bool:
        """Return whether a future is over, or could be although no task does anything."""
        if future.done():
            return True
        if isinstance(future, asyncio.Task):
            return future not in self.tasks
        children = getattr(future, "_children", None)
        if children:
            missing = [child for child in children if not child.done()]
            if not missing or (any(map(_failed, children)) and not _tolerates_failures(future, missing)):
                return True
            return any(map(self._may_end, missing))
        sources = self._sources.get(future)
        return future not in self.parked and (sources is None or any(map(self._may_end, sources)))

    @cached_property
    def _sources(self) -> dict[Any, list[_Future]]:
        """The futures whose ends fulfil another one, or fill a queue, by asyncio's own callbacks."""
        sources: dict[Any, list[_Future]] = {}
        futures = list(self.tasks)
        for future in futures:  # which grow: a task may be in a gather that is in a shield
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
    """Return whether a future ended with an error, without looking at it as somebody does who handles it."""
    return future.done() and (future.cancelled() or future._exception is not None)


def _tolerates_failures(gather: Any, children: Iterable[_Future]) -> bool:
    """Return whether a gather waits for its other children when one has failed."""
    cells = (cells for child in children for cells in _cells_of_callbacks(child))
    return any(found.get("outer") is gather and found.get("return_exceptions") for found in cells)


def _innermost_frame(task: asyncio.Task[Any]) -> FrameType | None:
    """Return the frame of the coroutine in which a task waits."""
    coroutine: Any = task.get_coro()
    while hasattr(getattr(coroutine, "cr_await", None), "cr_frame"):
        coroutine = coroutine.cr_await
    return getattr(coroutine, "cr_frame", None)


def _joined(frame: FrameType | None) -> list[_Future] | None:
    """Return what is waited for at the end of a TaskGroup or in `asyncio.wait`; None if it is something else."""
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
    """Yield what each callback at a future's end closes over, by name, where it is asyncio's own."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        is_own = getattr(callback, "__module__", None) == "asyncio.tasks" and hasattr(callback, "__closure__")
        if is_own and callback.__name__ != "_outer_done_callback":  # which only lets go of what was shielded
            names, cells = callback.__code__.co_freevars, callback.__closure__ or ()
            yield {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def nothing_can_happen(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a loop would wait for ever: nothing to run, no timer, file, signal handler or other thread."""
    ready, selector = getattr(loop, "_ready", None), getattr(loop, "_selector", None)
    if ready is None or selector is None or ready or threading.active_count() > 1:
        return False
    if getattr(loop, "_signal_handlers", None):
        return False
    return not timers(loop) and len(selector.get_map()) <= 1  # the loop's own pipe


def timers(loop: asyncio.AbstractEventLoop) -> list[Context | None]:
    """Return the contexts of the loop's live timers, and of the callbacks that it runs next: timers that are due."""
    scheduled, ready = getattr(loop, "_scheduled", None), getattr(loop, "_ready", ())
    if scheduled is not None:
        return [handle._context for handle in (*ready, *scheduled) if not handle.cancelled()]
    handles = [found for found in gc.get_objects() if type(found).__name__ == "TimerHandle"]  # uvloop keeps no list
    return [None for handle in handles if not handle.cancelled()]


def context_of(task: asyncio.Task[Any]) -> Context | None:
    """Return the context of a task, or None if it cannot be found."""
    if hasattr(task, "get_context"):
        return task.get_context()  # type: ignore[no-any-return]  # Python 3.12
    return next((found for found in gc.get_referents(task) if isinstance(found, Context)), None)
