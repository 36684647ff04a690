"""Finding deadlocks, exactly and at once: nobody who waits could ever be woken.

While any call waits, one callback an iteration of the event loop looks whether an operation happened since. If none
did, it looks at the tasks. A task can act by itself if it is runnable or awaits something of its own (a sleep, a
lock, an executor); one that awaits the transport, another task, a `gather` or a `TaskGroup` cannot. If no task of the
run can act by itself and no timer of it is set, every unfinished rank waits for another one for ever.

A task that awaits something of its own can still be known to wait for ever: when the whole loop has nothing to run, no
timer, no file but its own pipe, and there is no other thread.

Which tasks belong to a run is known by a context variable, which sub-tasks and timers inherit. Without `simulate`
(plain `asyncio.gather`) every task of the loop counts, so that nothing is ever called a deadlock that is none.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

from minitrain.calls import Call
from minitrain.errors import DeadlockError
from minitrain.places import places_of
from minitrain.waiting import Waiter

if TYPE_CHECKING:
    from minitrain.dist import Dist

RUN: ContextVar[tuple[Dist, int] | None] = ContextVar("minitrain_run", default=None)  # and the rank in it

OPERATIONS_A_TIDYING = 2**20
_LONGEST_PAUSE_S = 0.05
_MAX_LINES = 16


class Watch:
    """The look-out of one transport.

    Args:
        dist: the transport.

    Attributes:
        operations: number of operations begun so far.
        ranks: those whose tasks carry the run's mark: in `simulate` all, or the lowest of each folded class.
        entered: ranks whose model was used.
        looking: whether it looks out now.
        loop: the event loop in which it does, and calls wait; None before anybody waited.
        over: whether the run has ended already, well or not.
        alarm: called with the tasks of a run that has come to a deadlock.
        returned: ranks that are done.
        tidy: called every million operations or so, between two of them.
    """

    __slots__ = (
        "_pause_s",
        "_seen",
        "_tidied",
        "alarm",
        "dist",
        "entered",
        "looking",
        "loop",
        "operations",
        "over",
        "ranks",
        "returned",
        "tidy",
    )

    def __init__(self, dist: Dist) -> None:
        self.dist = dist
        self.operations = 0
        self.ranks: set[int] = set()
        self.over = False
        self.alarm: Callable[[list[asyncio.Task[Any]]], None] | None = None
        self.returned: set[int] = set()
        self.entered: set[int] = set()
        self.tidy: Callable[[], None] | None = None
        self._seen = self._tidied = 0
        self.looking = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pause_s = 0.0

    def mark(self, rank: int) -> None:
        """Mark the running task of a rank, and all that it will begin, as part of this run."""
        self.ranks.add(rank)
        RUN.set((self.dist, rank))

    def begin(self) -> None:
        """Look out while calls wait; the last loop may have ended with a look still to come."""
        loop = asyncio.get_running_loop()
        if not self.looking or self.loop is not loop:
            self.looking = True
            self._pause_s = 0.0
            self._seen = self.operations
            self.loop = loop
            loop.call_soon(self._look)

    def _look(self) -> None:
        """Look whether anything happened since the last time; if nothing did, whether anything can."""
        loop = asyncio.get_running_loop()
        if self._seen != self.operations:
            self._seen = self.operations
            if self._seen - self._tidied >= OPERATIONS_A_TIDYING and self.tidy is not None:
                self._tidied = self._seen
                self.tidy()
            self._pause_s = 0.0
            loop.call_soon(self._look)
            return
        waiting = self.dist.waiting()
        if not waiting or self.over:
            self.looking = False
        elif self._can_act(loop, waiting):
            self._pause_s = min(max(2 * self._pause_s, 1e-5), _LONGEST_PAUSE_S)
            loop.call_later(self._pause_s, self._look)
        else:
            self.looking = False
            tasks = self.tasks(loop)
            self.dist.close(_deadlock(self.dist, waiting))
            if self.alarm is not None:
                self.alarm(tasks)

    def _can_act(self, loop: asyncio.AbstractEventLoop, waiting: Iterable[Call]) -> bool:
        """Return whether a task or timer of this run can do something by itself."""
        if not self.ranks and len(self.entered) < self.dist.world_size:
            return True
        parked = {waiter for call in waiting for waiter in call.parked()}
        tasks = self.tasks(loop)
        if any(_acts(task, parked, tasks) for task in tasks):
            return not _nothing_can_happen(loop)
        return any(self._is_ours(context) for context in _timers(loop))

    def tasks(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
        """Return the tasks of this run that are not over."""
        return [task for task in asyncio.all_tasks(loop) if self._is_ours(context_of(task))]

    def _is_ours(self, context: Context | None) -> bool:
        """Return whether a context belongs to this run; where it cannot be told, it does."""
        return not self.ranks or context is None or (context.get(RUN) or (None,))[0] is self.dist


def _nothing_can_happen(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a loop would wait for ever: nothing to run, no timer, file, signal handler or other thread."""
    ready, selector = getattr(loop, "_ready", None), getattr(loop, "_selector", None)
    if ready is None or selector is None or ready or threading.active_count() > 1:
        return False
    if getattr(loop, "_signal_handlers", None):
        return False
    return not _timers(loop) and len(selector.get_map()) <= 1  # the loop's own pipe


def _acts(task: asyncio.Task[Any], parked: set[Waiter], tasks: Sequence[asyncio.Task[Any]]) -> bool:
    """Return whether a task could do something although no other task does."""
    awaited = getattr(task, "_fut_waiter", None)
    if awaited is None:
        return True
    if awaited in parked:
        return False
    if isinstance(awaited, asyncio.Task) or hasattr(awaited, "_children"):  # a task, or a gather of some
        return _ends(awaited)
    joined = None if awaited.done() else _joined(task) or _sources(task, awaited, tasks)
    return joined is None or any(_ends(future) for future in joined)


def _ends(future: Any) -> bool:
    """Return whether a task or a gather is over, or will be as soon as the loop comes to it."""
    children = getattr(future, "_children", None)
    if future.done() or not children:
        return bool(future.done())
    return all(_ends(child) for child in children) or any(_failed(child) for child in children)


def _failed(future: Any) -> bool:
    """Return whether a future ended with an error."""
    return future.done() and (future.cancelled() or future.exception() is not None)


def _joined(task: asyncio.Task[Any]) -> list[Any] | None:
    """Return what a task waits for at the end of a TaskGroup or in `asyncio.wait`; None if it is something else."""
    coroutine: Any = task.get_coro()
    while hasattr(getattr(coroutine, "cr_await", None), "cr_frame"):
        coroutine = coroutine.cr_await
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None:
        return None
    group = frame.f_locals.get("self")
    if isinstance(group, asyncio.TaskGroup):
        return list(group._tasks)
    if frame.f_code is asyncio.tasks._wait.__code__ and frame.f_locals.get("timeout") is None:  # type: ignore[attr-defined]
        futures = list(frame.f_locals["fs"])
        if frame.f_locals.get("return_when") == asyncio.FIRST_COMPLETED:
            return futures
        return [future for future in futures if not future.done() or _failed(future)] or futures
    return None


def _sources(
    task: asyncio.Task[Any], awaited: asyncio.Future[Any], tasks: Sequence[asyncio.Task[Any]]
) -> list[Any] | None:
    """Return the tasks whose end fulfils what a task waits for (`shield`, `as_completed`); None if there are none."""
    coroutine: Any = task.get_coro()
    while hasattr(getattr(coroutine, "cr_await", None), "cr_frame"):
        coroutine = coroutine.cr_await
    frame = getattr(coroutine, "cr_frame", None)
    wanted = {id(awaited), id(None if frame is None else frame.f_locals.get("self"))} - {id(None)}
    return [other for other in tasks if wanted & {id(value) for value in _closed_over(other)}] or None


def _closed_over(task: asyncio.Task[Any]) -> Iterator[Any]:
    """Yield what the callbacks at a task's end refer to, where they are asyncio's own."""
    for callback, _ in getattr(task, "_callbacks", None) or ():
        if getattr(callback, "__module__", None) == "asyncio.tasks":
            yield from (cell.cell_contents for cell in getattr(callback, "__closure__", None) or ())


def context_of(task: asyncio.Task[Any]) -> Context | None:
    """Return the context of a task, or None if it cannot be found."""
    if hasattr(task, "get_context"):
        return task.get_context()  # type: ignore[no-any-return]  # Python 3.12
    return next((found for found in gc.get_referents(task) if isinstance(found, Context)), None)


def _timers(loop: asyncio.AbstractEventLoop) -> list[Context | None]:
    """Return the contexts of the loop's live timers."""
    scheduled = getattr(loop, "_scheduled", None)
    if scheduled is not None:
        return [handle._context for handle in scheduled if not handle.cancelled()]
    handles = [found for found in gc.get_objects() if type(found).__name__ == "TimerHandle"]  # uvloop keeps no list
    return [None for handle in handles if not handle.cancelled()]


def _at(place: str | None) -> str:
    """Return a place in brackets, if it is known."""
    return "" if place is None else f" ({place})"


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words."""
    more = ", ..." if len(ranks) > _MAX_LINES else ""
    return f"rank{'s' if len(ranks) > 1 else ''} " + ", ".join(map(str, ranks[:_MAX_LINES])) + more


def _deadlock(dist: Dist, waiting: list[Call]) -> DeadlockError:
    """Return the error that says what every rank waits for."""
    places = places_of(waiting)
    calls = sorted((call for call in waiting if call.is_parked), key=lambda call: call.rank)
    lines = [f"  rank {call.rank} at {call.clock:.6g} s: {call.describe()}{_at(places.get(call))}" for call in calls]
    shown = lines if len(lines) <= _MAX_LINES else [*lines[:_MAX_LINES], f"  ... and {len(lines) - _MAX_LINES} more"]
    silent = (dist.watch.ranks or set(range(dist.world_size))) - {call.rank for call in calls}
    finished = sorted(silent & dist.watch.returned if dist.watch.ranks else silent)
    shown += [
        f"  {what}: {_ranks(ranks)}"
        for what, ranks in (
            ("not waiting, because finished", finished),
            ("waiting for something of their own that nobody can give", sorted(silent - set(finished))),
        )
        if ranks
    ]
    return DeadlockError(
        "deadlock: every unfinished rank waits for another one. Every receive needs a send, and all ranks of a group "
        "must start the same collectives in the same order\n" + "\n".join(shown),
        ranks=tuple(call.rank for call in calls),
        waiting=tuple(line.strip() for line in lines),
        finished=tuple(finished),
    )
