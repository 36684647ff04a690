"""How tasks wait for the transport: each on a future of its own, and all of one group are woken by one callback.

Nothing is polled. A future shared by several tasks would be simpler, but cancelling one of these tasks would cancel all
of them. Setting futures one by one would cost a callback of the event loop each, so all tasks that a collective
releases are resumed within one callback.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, get_running_loop
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from typing import Any


class Waiter(Future[None]):
    """A future on which one task waits, any number of times; nothing but a cancellation ever sets it.

    A task that awaits a future asks it to call back. `Future.set_result` would have the event loop call, one callback a
    task; `wake_all` calls at once, and with another future that is done.

    Attributes:
        step: what resumes the task, and the context to do it in, from when it is offered to a task on; None otherwise.
    """

    __slots__ = ("step",)

    def __init__(self, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(loop=loop)
        self.step: tuple[Callable[[Future[None]], object], Context] | None = None

    def add_done_callback(self, step: Any, /, *, context: Any = None) -> None:
        """Keep what resumes the task, as the task asks when it begins to wait."""
        self.step = step, context

    def cancel(self, msg: Any = None) -> bool:
        """Resume the task with a cancellation; nobody waits here again."""
        step, self.step = self.step, None
        if step is None or not super().cancel(msg):
            return False
        self.get_loop().call_soon(step[0], self, context=step[1])
        return True

    def offer(self) -> Waiter:
        """Return what a task must yield at once to wait, as a future's own `await` does."""
        self.step = _OFFERED
        next(iter(self))  # yields the future itself, once it has noted that a task is to wait
        return self

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that waits now."""
        return None if self.step is None else getattr(self.step[0], "__self__", None)


_OFFERED: tuple[Callable[[Future[None]], object], Context] = (lambda _: None, Context())  # not taken by a task (yet)

Waiters = Waiter | list[Waiter] | None  # of nobody, of one task, or of several


class _NoLoop:
    """The part of an event loop that a future needs if no task waits on it."""

    def get_debug(self) -> bool:
        """Say that nobody debugs it."""
        return False


_DONE: Future[None] = Future(loop=_NoLoop())  # type: ignore[arg-type]
_DONE.set_result(None)


def wake_all(waiters: Iterable[Waiters]) -> None:
    """Wake tasks one after the other, all of them even if one leaves the loop (Ctrl-C, SystemExit).

    The next step of each task runs here, in the task's own context.
    """
    rest = iter(waiters)
    try:
        for waiter in rest:
            if waiter.__class__ is list:
                wake_all(waiter)  # several tasks await the same call
            elif waiter is not None:
                step = waiter.step  # type: ignore[union-attr]
                if step is not None:  # the task was not cancelled meanwhile
                    waiter.step = None  # type: ignore[union-attr]  # before it waits again
                    step[1].run(step[0], _DONE)
    except BaseException:
        get_running_loop().call_soon(wake_all, rest)
        raise


def wake_soon(waiters: Sequence[Waiters]) -> None:
    """Wake tasks in the next iteration of the loop, all in one callback."""
    if waiters:
        get_running_loop().call_soon(wake_all, waiters)
