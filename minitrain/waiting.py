"""How a task waits: parked on a future of its own, woken with its whole group by one callback, never by polling.

A future shared by all would be simpler, but cancelling one task that awaits it cancels everybody's. Futures that are
set one by one would cost a callback of the loop each; here all tasks that a collective releases are woken by one.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Iterable, Sequence
from typing import Any

Waiter = Future[None]
Waiters = Waiter | list[Waiter] | None  # of nobody, of one task, or of several


def wake_all(waiters: Iterable[Waiters]) -> None:
    """Wake tasks one after the other, all of them even if one leaves the loop (Ctrl-C, SystemExit).

    `Future.set_result` would schedule each task's next step; taking the step off the future and running it here, in
    the task's own context, does the same at once.
    """
    rest = iter(waiters)
    try:
        for waiter in rest:
            if isinstance(waiter, list):
                wake_all(waiter)
            elif waiter is not None and not waiter.done():  # a cancelled task is on its way already
                steps: list[Any] = waiter._callbacks or []
                for step, _ in steps:
                    waiter.remove_done_callback(step)
                waiter.set_result(None)
                for step, context in steps:
                    context.run(step, waiter)
    except BaseException:
        get_running_loop().call_soon(wake_all, rest)
        raise


def wake_soon(waiters: Sequence[Waiters]) -> None:
    """Wake tasks in the next iteration of the loop, all in one callback."""
    if waiters:
        get_running_loop().call_soon(wake_all, waiters)
