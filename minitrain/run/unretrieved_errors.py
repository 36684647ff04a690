"""Errors of sub-tasks that nobody retrieved: each run is given its own, which asyncio would only log.

When a future is dropped whose error nobody has looked at, asyncio calls the exception handler of the event loop. One
handler serves all runs that go on in a loop. The context of a task says to which run, and to which rank of it, the task
belongs (see `minitrain.transport.task_ownership`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from minitrain.transport.task_ownership import owner_of

if TYPE_CHECKING:
    from minitrain.transport.dist import Dist

RankErrors = list[tuple[int, Exception]]  # each with the rank whose strategy began the task

_Handler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


@contextlib.contextmanager
def collecting_unretrieved_errors(dist: Dist, ranks: Iterable[asyncio.Task[Any]]) -> Iterator[RankErrors]:
    """Collect the errors of a run's sub-tasks that nobody retrieves, in a list that is complete afterwards.

    Args:
        dist: the run's transport.
        ranks: the tasks of its ranks.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    handler = before if isinstance(before, _ExceptionHandler) else _ExceptionHandler(before)
    loop.set_exception_handler(handler)
    errors = handler.errors[dist] = []
    try:
        yield errors
    finally:
        errors += _not_dropped_yet(dist, set(ranks))
        del handler.errors[dist]
        if not handler.errors and loop.get_exception_handler() is handler:
            loop.set_exception_handler(handler.before)


class _ExceptionHandler:
    """An event loop's exception handler while runs go on in it.

    Args:
        before: the loop's handler otherwise, which is called for everything that belongs to no run.

    Attributes:
        errors: what was collected so far, by the transport of the run.
    """

    def __init__(self, before: _Handler | None) -> None:
        self.before = before
        self.errors: dict[Dist, RankErrors] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        dist, rank = owner_of(context.get("future"))
        if dist in self.errors and "never retrieved" in context.get("message", ""):
            if isinstance(error, Exception):  # the others are cancelled, or have ended the loop
                self.errors[dist].append((rank, error))
        elif self.before is not None:
            self.before(loop, context)
        else:
            loop.default_exception_handler(context)


def _not_dropped_yet(dist: Dist, ranks: set[asyncio.Task[Any]]) -> RankErrors:
    """Return the unretrieved errors of a run's sub-tasks and gathers that still exist; asyncio then logs none of them.

    A gather keeps its tasks, and nobody keeps a list of gathers. So they are searched for among all objects, which is
    slow and done only if a sub-task of the run has ended.
    """
    name = "_all_tasks" if hasattr(asyncio.tasks, "_all_tasks") else "_scheduled_tasks"  # since Python 3.12
    known: Iterable[asyncio.Future[Any]] = getattr(asyncio.tasks, name, ())
    ended = [task for task in list(known) if task not in ranks and task.done() and owner_of(task)[0] is dist]
    if ended:
        gathers = [found for found in gc.get_objects() if type(found) is asyncio.tasks._GatheringFuture]  # type: ignore[attr-defined]
        ended += [gather for gather in gathers if gather.done() and owner_of(gather)[0] is dist]
    unretrieved = [(owner_of(future)[1], future) for future in ended if getattr(future, "_log_traceback", False)]
    errors = [(rank, future.exception()) for rank, future in unretrieved if not future.cancelled()]
    return [(rank, error) for rank, error in errors if isinstance(error, Exception)]
