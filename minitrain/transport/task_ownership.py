"""Which run, and which rank of it, a task or a timer belongs to.

The task of a rank is claimed for its transport by a context variable. Sub-tasks and timers inherit the variable, as
asyncio copies the context of whoever creates them. Finding deadlocks and reporting the errors of sub-tasks both rely
on it.
"""

from __future__ import annotations

import asyncio
import gc
from contextvars import Context, ContextVar, copy_context
from typing import Any

Owner = tuple[Any, int]  # the transport of the run, and the rank

NO_OWNER: tuple[None, int] = (None, 0)

_OWNER: ContextVar[Owner] = ContextVar("minitrain_run", default=NO_OWNER)


def claim_running_task(transport: object, rank: int) -> None:
    """Make the running task, and everything that it starts from now on, part of a rank's work in a run.

    Args:
        transport: that of the run; compared by identity.
        rank: the rank that runs in the task.
    """
    _OWNER.set((transport, rank))


def running_rank() -> int | None:
    """Return the rank in whose task this is called, None outside of runs."""
    transport, rank = _OWNER.get()
    return None if transport is None else rank


def owner_in(context: Context) -> Owner:
    """Return whom a context belongs to, `NO_OWNER` if to no run."""
    return context.get(_OWNER, NO_OWNER)


def context_of(task: asyncio.Task[Any]) -> Context | None:
    """Return the context of a task, or None if it cannot be found."""
    if hasattr(task, "get_context"):
        return task.get_context()  # type: ignore[no-any-return]  # Python 3.12
    return next((found for found in gc.get_referents(task) if isinstance(found, Context)), None)


def owner_of(future: Any) -> Owner:
    """Return whom a task belongs to.

    A gather belongs to the first of its children that has an owner. Any other future belongs to whoever runs now.
    """
    children = getattr(future, "_children", None)
    if children:
        return next((found for found in map(owner_of, children) if found is not NO_OWNER), NO_OWNER)
    context = context_of(future) if isinstance(future, asyncio.Task) else copy_context()
    return NO_OWNER if context is None else owner_in(context)
