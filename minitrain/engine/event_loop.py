"""The event loop of a run, which notices when nothing can happen any more, and the tasks that act for its ranks.

**The loop** (`RankLoop`) can never go on exactly when its selector is asked to wait without a time limit, and nothing
outside of the loop can wake it: no file but its own pipe, no call in an executor, no signal handler, no thread. Files
are the selector's; the loop counts executor calls and signal handlers by overriding the methods that begin them.
Nothing else of asyncio is looked at. A thread that was started during a run may hold a future of it, and so may always
wake the loop. Those that were there before are named apart: a notebook has several, and only a run that hands them its
futures can be woken by them.

**Tasks.** The task of a rank runs in a context that says which rank of which run it is (`Owner`). Sub-tasks and timers
inherit it, as asyncio copies the context of whoever creates them. While runs go on in an event loop, its task factory
makes the tasks of such contexts `RankTask`s, which their run knows, and its exception handler keeps the errors of
futures that were dropped unread.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import Context, ContextVar, copy_context
from math import inf
from typing import Any, Protocol
from weakref import WeakSet, ref

_TURNS_BETWEEN_LOOKS = 64  # of the loop, while it has callbacks to run


class Watcher(Protocol):
    """Who is asked when a loop has a moment, and when it comes to rest for ever."""

    def look(self, now_s: float) -> float | None:
        """Do what is due at a time on the loop's clock, s; return when to be asked again, None for never."""

    def rest(self, *, beside_old_threads: bool) -> bool:
        """Hear that nothing can happen any more, and return whether something was begun.

        Args:
            beside_old_threads: whether threads live that were there before the loop, and might know of it.
        """


class _Selector(selectors.DefaultSelector):
    """Says when the loop would wait, and asks the system rarely while there are callbacks to run.

    Attributes:
        can_end: returns whether nothing but a file that is ready now can wake the loop.
        before_waiting: called with the time limit of a wait, s, None for no limit, or infinity if nothing can happen
            any more; returns the limit to be taken.
        glance: called now and then while there are callbacks to run.
    """

    can_end: Callable[[], bool]
    before_waiting: Callable[[float | None], float | None]
    glance: Callable[[], object]
    _turns = 0

    def select(self, timeout: float | None = None) -> Any:
        """Return the files that are ready, after a wait if there is nothing to run."""
        if timeout is not None and timeout <= 0:
            self._turns = (self._turns + 1) % _TURNS_BETWEEN_LOOKS
            if self._turns:
                return []
            self.glance()
            return super().select(0)
        is_end = timeout is None and self.can_end()  # asked first: a thread that ends wakes the loop before
        return super().select(0) or super().select(self.before_waiting(inf if is_end else timeout))


class RankLoop(asyncio.SelectorEventLoop):
    """An event loop that tells those who watch it when nothing can happen any more.

    Args:
        waiting: a thread that waits for the loop to end, and so cannot wake it.

    Attributes:
        watchers: whom it tells.
        longest_wait_s: how long it sleeps at most, s; None for any time.
    """

    def __init__(self, waiting: threading.Thread | None = None) -> None:
        self.watchers: dict[Watcher, None] = {}
        self.longest_wait_s: float | None = None
        self._old_threads = set(threading.enumerate())
        self._harmless = WeakSet({waiting, threading.current_thread()} - {None})
        self._num_in_executors = 0
        self._signals: set[int] = set()
        selector = _Selector()
        selector.can_end, selector.before_waiting, selector.glance = self._can_end, self._before_waiting, self._look
        self._files = selector.get_map()
        super().__init__(selector)
        self._num_own_files = len(self._files)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Count the call while it is under way; the threads that it starts are idle afterwards."""
        before = set(threading.enumerate())
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self._harmless.update(set(threading.enumerate()) - before)
        self._num_in_executors += 1
        future.add_done_callback(self._end_in_executor)
        return future

    def _end_in_executor(self, _: object) -> None:
        self._num_in_executors -= 1

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Note that a signal may wake the loop."""
        super().add_signal_handler(sig, callback, *args)
        self._signals.add(sig)

    def remove_signal_handler(self, sig: int) -> bool:
        """Note that it no longer does."""
        self._signals.discard(sig)
        return super().remove_signal_handler(sig)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what went wrong as event loops do, but not what only followed from the end of a run, or of memory."""
        error = context.get("exception")
        if not (isinstance(error, asyncio.CancelledError | MemoryError) or getattr(error, "is_handled", False)):
            super().default_exception_handler(context)

    def _can_end(self) -> bool:
        """Return whether nothing that lasts can wake the loop, but for threads that were there before."""
        if self._num_in_executors or self._signals or len(self._files) > self._num_own_files:
            return False
        return self._other_threads() <= self._old_threads

    def _other_threads(self) -> set[threading.Thread]:
        """Return the threads that might wake the loop."""
        return set(threading.enumerate()) - set(self._harmless)

    def _before_waiting(self, limit_s: float | None) -> float | None:
        """Tell the watchers if this is the end, and return how long to wait, s; None for ever."""
        if limit_s == inf:
            limit_s, are_others = None, bool(self._other_threads())
            if any(watcher.rest(beside_old_threads=are_others) for watcher in list(self.watchers)):
                return 0
        limits = [limit for limit in (limit_s, self._look(), self.longest_wait_s) if limit is not None]
        return min(limits, default=None)

    def _look(self) -> float | None:
        """Let the watchers look; return how long the next one can wait, s."""
        now = self.time()
        times = [watcher.look(now) for watcher in list(self.watchers)]
        return min((max(0.0, time - now) for time in times if time is not None), default=None)


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
