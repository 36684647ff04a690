"""How a task waits: parked on a `Waiter`, woken with its whole group by one callback, never by polling.

A `Waiter` is the least that an asyncio task can wait for. A shared `asyncio.Future` would do, but cancelling one task
that awaits it cancels everybody's, and it costs one loop callback a task; here all tasks that a collective releases
are woken by one.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError, get_running_loop
from collections.abc import Callable, Generator, Iterable, Sequence
from contextvars import Context
from typing import Any


class Waiter:
    """What one parked task waits for: `yield` it from an `__await__` right after making it, or `await` it.

    Args:
        following: the waiter of another task that waits for the same, woken with this one.
    """

    __slots__ = ("_asyncio_future_blocking", "_context", "_loop", "_step", "cancelled", "next")

    def __init__(self, following: Waiter | None = None) -> None:
        self._loop: AbstractEventLoop = get_running_loop()
        self._asyncio_future_blocking = True  # asyncio's sign that a task may wait for it
        self._step: Callable[[Waiter], object] | None = None
        self.cancelled = False
        self.next = following

    def __await__(self) -> Generator[Any, None, Any]:
        yield self

    def add_done_callback(self, step: Callable[[Waiter], object], *, context: Context) -> None:
        """Keep the task's next step (asyncio's protocol)."""
        self._step = step
        self._context = context

    def result(self) -> None:
        """Tell the task how to go on (asyncio's protocol).

        Raises:
            asyncio.CancelledError: the task was cancelled meanwhile.
        """
        if self.cancelled:
            raise CancelledError

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  (asyncio's protocol)
        """Wake the task with a cancellation, unless it is on its way already."""
        if self._step is None or self.cancelled:
            return False
        self.cancelled = True
        self._loop.call_soon(self.wake)
        return True

    @property
    def is_parked(self) -> bool:
        """Whether a task waits here and nobody has begun to wake it."""
        return self._step is not None and not self.cancelled

    def wake(self) -> None:
        """Run the task's next step, in the task's own context."""
        step = self._step
        if step is not None:
            self._step = None
            self._context.run(step, self)


def wake_all(waiters: Iterable[Waiter]) -> None:
    """Wake tasks one after the other, all of them even if one leaves the loop (Ctrl-C, SystemExit)."""
    rest = iter(waiters)
    try:
        for waiter in rest:
            step = waiter._step
            if step is not None:
                waiter._step = None
                waiter._context.run(step, waiter)
            if waiter.next is not None:
                wake_all([waiter.next])
    except BaseException:
        get_running_loop().call_soon(wake_all, rest)
        raise


def wake_soon(waiters: Sequence[Waiter]) -> None:
    """Wake tasks in the next iteration of the loop, all in one callback."""
    if waiters:
        get_running_loop().call_soon(wake_all, waiters)
