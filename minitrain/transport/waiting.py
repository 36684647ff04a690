"""How tasks wait for the transport: each on a future of its own, and all of one group are woken by one callback.

Nothing is polled. A future shared by several tasks would be simpler, but cancelling one of these tasks would cancel all
of them. Setting futures one by one would cost a callback of the event loop each, so all tasks that a collective
releases are resumed within one callback.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Iterable, Sequence
from typing import Any

Waiter = Future[None]
Waiters = Waiter | list[Waiter] | None  # of nobody, of one task, or of several


class _NoLoop:
    """The part of an event loop that a future needs if no task waits on it."""

    def get_debug(self) -> bool:
        """Say that nobody debugs it."""
        return False


_DONE: Waiter = Future(loop=_NoLoop())  # type: ignore[arg-type]
_DONE.set_result(None)


def wake_all(waiters: Iterable[Waiters]) -> None:
    """Wake tasks one after the other, all of them even if one leaves the loop (Ctrl-C, SystemExit).

    `Future.set_result` would schedule the next step of each task. Running that step here, in the task's own context and
    with another future that is done, does the same at once. The future on which the task waited is left as it is.
    """
    rest = iter(waiters)
    try:
        for waiter in rest:
            if waiter.__class__ is list:
                wake_all(waiter)  # several tasks await the same call
            elif waiter is not None:
                steps: Any = waiter._callbacks  # type: ignore[union-attr]  # None after a task was cancelled
                for step, context in steps or ():
                    context.run(step, _DONE)
    except BaseException:
        get_running_loop().call_soon(wake_all, rest)
        raise


def wake_soon(waiters: Sequence[Waiters]) -> None:
    """Wake tasks in the next iteration of the loop, all in one callback."""
    if waiters:
        get_running_loop().call_soon(wake_all, waiters)
