"""Which run, and which rank of it, a task belongs to, and which of its errors nobody has retrieved.

The task of a rank runs in a context that says so. Sub-tasks and timers inherit it, as asyncio copies the context of
whoever creates them. While runs go on in an event loop, its task factory makes the tasks of such contexts `RankTask`s,
which their run knows, and its exception handler keeps the errors of futures that were dropped unread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import Context, ContextVar, copy_context
from typing import Any
from weakref import ref


class Owner:
    """The rank of a run in whose name a context acts.

    Attributes:
        transport: that of the run; compared by identity.
        rank: the rank.
    """

    __slots__ = ("__weakref__", "rank", "transport")

    def __init__(self, transport: Any, rank: int) -> None:
        self.transport = transport
        self.rank = rank
        transport.detector.owners.add(self)


_OWNER: ContextVar[Owner | None] = ContextVar("minitrain_run", default=None)


def running_rank() -> int | None:
    """Return the rank in whose task this is called, None outside of runs."""
    owner = _OWNER.get()
    return None if owner is None else owner.rank


def renew_owner(context: Context) -> None:
    """Let a context act in the name of a new owner for the same rank, so that only its copies have the old one."""
    owner = context.get(_OWNER)
    if owner is not None:
        context.run(_OWNER.set, Owner(owner.transport, owner.rank))


def end_ownership() -> None:
    """Let the running context act for no rank any more."""
    _OWNER.set(None)


def _nobody() -> None:
    """Return None, as a reference to what is gone does."""


class RankTask(asyncio.Task[Any]):
    """A task of a run.

    Args:
        coroutine: what it runs.
        owner: for which rank of which run.
        options: those of `asyncio.Task`.

    Attributes:
        transport: that of the run.
        rank: the rank.
        maker: returns the task of the run that has made it, if there is one still.
        is_read: whether somebody has asked for its outcome.
        is_given_up: whether it never ends, and nobody waits for it any more.
    """

    def __init__(self, coroutine: Any, owner: Owner, **options: Any) -> None:
        super().__init__(coroutine, **options)
        self.transport: Any = owner.transport
        self.rank = owner.rank
        maker = asyncio.current_task(self.get_loop())
        self.maker: Callable[[], RankTask | None] = ref(maker) if isinstance(maker, RankTask) else _nobody
        self.is_read = self.is_given_up = False
        owner.transport.detector.tasks.add(self)

    def result(self) -> Any:
        """Return the result, or raise the error, which somebody knows now."""
        self.is_read = True
        return super().result()

    def exception(self) -> BaseException | None:
        """Return the error, which somebody knows now."""
        self.is_read = True
        return super().exception()

    def __await__(self) -> Generator[Any, None, Any]:
        self.is_read = self.is_read or super().done()  # otherwise, `result` is asked for later
        return super().__await__()

    __iter__ = __await__

    def done(self) -> bool:
        """Return whether it has ended, or is given up: then its event loop waits for it no longer when it closes."""
        return self.is_given_up or super().done()

    def __del__(self) -> None:
        if not self.is_given_up:  # or asyncio would log that it never ended
            super().__del__()


def task_of_rank(transport: Any, rank: int, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Begin the task of a rank; all that it starts acts in the rank's name too."""
    transport.detector.claimed_ranks.add(rank)
    context = copy_context()
    context.run(_OWNER.set, Owner(transport, rank))
    return asyncio.get_running_loop().create_task(coroutine, context=context)


RankErrors = list[tuple[int, Exception]]  # each with the rank whose strategy began the task


@contextlib.contextmanager
def collecting_unretrieved_errors(transport: Any) -> Iterator[RankErrors]:
    """Collect the errors of a run's sub-tasks that nobody retrieves, in a list that is complete afterwards.

    Errors of a gather that outlives the run are not among them; asyncio logs them when it is dropped.

    Args:
        transport: that of the run, whose tasks must begin in here.
    """
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    hooks = handler if isinstance(handler, _Hooks) else _Hooks(loop)
    errors = hooks.errors[transport] = []
    try:
        yield errors
    finally:
        for task in list(transport.detector.tasks):
            if not task.is_read and task.done() and not (task.is_given_up or task.cancelled()):
                error = task.exception()
                if isinstance(error, Exception):
                    errors.append((task.rank, error))
        del hooks.errors[transport]
        if not hooks.errors and loop.get_exception_handler() is hooks:
            loop.set_exception_handler(hooks.handler)
            loop.set_task_factory(hooks.factory)


class _Hooks:
    """What an event loop does while runs go on in it: its exception handler, and its task factory.

    Args:
        loop: the event loop.

    Attributes:
        handler: the loop's exception handler otherwise, which is called for everything that belongs to no run.
        factory: its task factory otherwise, for all other tasks.
        errors: what was collected so far, by the transport of the run.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = loop.get_exception_handler()
        self.factory: Any = loop.get_task_factory()
        self.errors: dict[Any, RankErrors] = {}
        loop.set_exception_handler(self)
        loop.set_task_factory(self.make_task)

    def make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        """Make a task, one of a run where the context says so."""
        context = options.get("context")
        owner = _OWNER.get() if context is None else context.get(_OWNER)
        if owner is not None:
            return RankTask(coroutine, owner, loop=loop, **options)
        return (self.factory or _plain_task)(loop, coroutine, **options)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keep an error that nobody has retrieved, if the run goes on in whose name it came, or was dropped."""
        error, future = context.get("exception"), context.get("future")
        owner = future if isinstance(future, RankTask) else _OWNER.get()
        if owner is not None and owner.transport in self.errors and "never retrieved" in context.get("message", ""):
            if isinstance(error, Exception):  # the others are cancelled, or have ended the loop
                self.errors[owner.transport].append((owner.rank, error))
        elif self.handler is not None:
            self.handler(loop, context)
        else:
            loop.default_exception_handler(context)


def _plain_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Make a task as event loops do."""
    return asyncio.Task(coroutine, loop=loop, **options)
