"""Errors of sub-tasks that nobody looked at, which asyncio would only log: each run is given its own.

asyncio tells the loop's exception handler of such an error when its future is dropped. One handler serves all runs that
are on their way in a loop; a task's context variables say to which run, and to which rank of it, the task belongs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from minitrain.transport.blocked_tasks import context_of
from minitrain.transport.deadlocks import RUN

if TYPE_CHECKING:
    from minitrain.transport.dist import Dist

Lost = list[tuple[int, Exception]]  # with the rank in whose strategy each was

_NOBODY = (None, 0)
_Handler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


@contextlib.contextmanager
def hearing_lost_errors(dist: Dist, ranks: Iterable[asyncio.Task[Any]]) -> Iterator[Lost]:
    """Find the errors that nobody looks at in the sub-tasks of a run, into a list that is whole afterwards.

    Args:
        dist: the run's transport.
        ranks: the tasks of its ranks.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    listener = before if isinstance(before, _Listener) else _Listener(before)
    loop.set_exception_handler(listener)
    lost = listener.lost[dist] = []
    try:
        yield lost
    finally:
        lost += _overlooked(dist, set(ranks))
        del listener.lost[dist]
        if not listener.lost and loop.get_exception_handler() is listener:
            loop.set_exception_handler(listener.before)


class _Listener:
    """An event loop's exception handler while runs are on their way.

    Args:
        before: the handler in whose place it stands, which hears of all that is no run's.

    Attributes:
        lost: what was heard of so far, by run.
    """

    def __init__(self, before: _Handler | None) -> None:
        self.before = before
        self.lost: dict[Dist, Lost] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        dist, rank = _origin(context.get("future"))
        if dist in self.lost and "never retrieved" in context.get("message", ""):
            if isinstance(error, Exception):  # the others are cancelled, or have ended the loop
                self.lost[dist].append((rank, error))
        elif self.before is not None:
            self.before(loop, context)
        else:
            loop.default_exception_handler(context)


def _origin(future: Any) -> tuple[Any, int]:
    """Return the run and the rank that began a task, or those that a gather waits for; else those that run now."""
    children = getattr(future, "_children", None)
    if children:
        return next((found for found in map(_origin, children) if found is not _NOBODY), _NOBODY)
    context = context_of(future) if isinstance(future, asyncio.Task) else copy_context()
    return (None if context is None else context.get(RUN)) or _NOBODY


def _overlooked(dist: Dist, ranks: set[asyncio.Task[Any]]) -> Lost:
    """Return the errors of a run's sub-tasks and gathers that are not dropped yet; asyncio will not log them then."""
    name = "_all_tasks" if hasattr(asyncio.tasks, "_all_tasks") else "_scheduled_tasks"  # since Python 3.12
    known: Iterable[asyncio.Future[Any]] = getattr(asyncio.tasks, name, ())
    ended = [task for task in list(known) if task not in ranks and task.done() and _origin(task)[0] is dist]
    if ended:  # a gather keeps its tasks, and nobody keeps a list of gathers
        gathers = [found for found in gc.get_objects() if type(found) is asyncio.tasks._GatheringFuture]  # type: ignore[attr-defined]
        ended += [gather for gather in gathers if gather.done() and _origin(gather)[0] is dist]
    unseen = [(_origin(future)[1], future) for future in ended if getattr(future, "_log_traceback", False)]
    errors = [(rank, future.exception()) for rank, future in unseen if not future.cancelled()]
    return [(rank, error) for rank, error in errors if isinstance(error, Exception)]
