"""Finding deadlocks, exactly and at once: nobody who waits could ever be woken.

While any call waits, one callback an iteration of the event loop looks whether an operation happened since. If none
did, it looks at the tasks. A task can act by itself if it is runnable or awaits something of its own (a sleep, a
lock, an executor); one that awaits the transport, another task of the run, or several of them, cannot (see
`minitrain.transport.blocked_tasks`). If no task of the run can act by itself and no timer of it is set, every
unfinished rank waits for another one for ever.

A task that awaits something of its own can still be known to wait for ever: when the whole loop has nothing to run, no
timer, no file but its own pipe, and there is no other thread.

Which tasks belong to a run is known by a context variable, which sub-tasks and timers inherit. Without `simulate`
(plain `asyncio.gather`) every task of the loop counts, so that nothing is ever called a deadlock that is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

from minitrain.errors import DeadlockError
from minitrain.transport.blocked_tasks import Standstill, context_of, nothing_can_happen, timers
from minitrain.transport.calls import Call, places_of

if TYPE_CHECKING:
    from minitrain.transport.dist import Dist

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
        if Standstill(self.tasks(loop), parked).is_broken:
            return not nothing_can_happen(loop)
        return any(self._is_ours(context) for context in timers(loop))

    def tasks(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
        """Return the tasks of this run that are not over."""
        return [task for task in asyncio.all_tasks(loop) if self._is_ours(context_of(task))]

    def _is_ours(self, context: Context | None) -> bool:
        """Return whether a context belongs to this run; where it cannot be told, it does."""
        return not self.ranks or context is None or (context.get(RUN) or (None,))[0] is self.dist


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
