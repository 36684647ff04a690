"""Finding deadlocks, exactly and at once: no task that waits could ever be woken.

While any call waits, one callback in each iteration of the event loop checks whether an operation happened since the
last check. If none did, it looks at the tasks of the run. A task can proceed by itself if it is runnable, or if it
awaits something of its own (a sleep, a lock, an executor). A task that awaits the transport or other tasks of the run
cannot (see `minitrain.transport.wait_for_graph`). If no task of the run can proceed and no timer of the run is set,
every unfinished rank waits for another one for ever.

A task that awaits something of its own is still known to wait for ever if the whole loop is idle for ever: nothing to
run, no timer, no file but its own pipe, and no other thread.

The tasks of a run are known by their context (see `minitrain.transport.task_ownership`). Without `simulate` (plain
`asyncio.gather` over ranks) every task of the loop counts, so that no deadlock is ever reported where there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from typing import Any, Protocol

from minitrain.errors import DeadlockError
from minitrain.transport.calls import Call, awaiting_lines
from minitrain.transport.task_ownership import claim_running_task, context_of, owner_in
from minitrain.transport.wait_for_graph import WaitForGraph, nothing_can_happen, timer_contexts

OPERATIONS_BETWEEN_HOUSEKEEPING = 2**20
_LONGEST_PAUSE_S = 0.05
_MAX_LINES = 16


class WatchedTransport(Protocol):
    """What the deadlock detector needs of its transport."""

    world_size: int

    def unsettled_calls(self) -> list[Call]:
        """Return every call without an outcome."""
        ...

    def close(self, error: BaseException) -> None:
        """End every unsettled call with an error."""
        ...


class DeadlockDetector:
    """Finds deadlocks among the tasks of one transport.

    Args:
        transport: the transport.

    Attributes:
        num_operations: number of operations begun so far.
        claimed_ranks: ranks whose tasks are known by their context: in `simulate` all, or the lowest of each folded
            class; without `simulate` none.
        started_ranks: ranks whose model was used.
        finished_ranks: ranks whose strategy has returned.
        is_active: whether a check is scheduled.
        loop: the event loop in which the calls wait; None before anybody waited.
        run_is_over: whether the run has ended already, well or not.
        on_deadlock: called with the unfinished tasks of a run that has come to a deadlock.
        housekeeping: called every million operations or so, between two of them.
    """

    __slots__ = (
        "_last_housekeeping",
        "_last_num_operations",
        "_pause_s",
        "claimed_ranks",
        "finished_ranks",
        "housekeeping",
        "is_active",
        "loop",
        "num_operations",
        "on_deadlock",
        "run_is_over",
        "started_ranks",
        "transport",
    )

    def __init__(self, transport: WatchedTransport) -> None:
        self.transport = transport
        self.num_operations = 0
        self.claimed_ranks: set[int] = set()
        self.started_ranks: set[int] = set()
        self.finished_ranks: set[int] = set()
        self.run_is_over = False
        self.on_deadlock: Callable[[list[asyncio.Task[Any]]], None] | None = None
        self.housekeeping: Callable[[], None] | None = None
        self._last_num_operations = self._last_housekeeping = 0
        self.is_active = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pause_s = 0.0

    def claim_running_task(self, rank: int) -> None:
        """Count the running task of a rank, and all that it starts from now on, as part of this run."""
        self.claimed_ranks.add(rank)
        claim_running_task(self.transport, rank)

    def activate(self) -> None:
        """Check for deadlocks from now on, as a call waits; a check of an earlier loop may never have come."""
        loop = asyncio.get_running_loop()
        if not self.is_active or self.loop is not loop:
            self.is_active = True
            self._pause_s = 0.0
            self._last_num_operations = self.num_operations
            self.loop = loop
            loop.call_soon(self._check)

    def _check(self) -> None:
        """Check whether anything happened since the last time; if nothing did, whether anything can."""
        loop = asyncio.get_running_loop()
        if self._last_num_operations != self.num_operations:
            self._last_num_operations = self.num_operations
            self._keep_house()
            self._pause_s = 0.0
            loop.call_soon(self._check)
            return
        waiting = self.transport.unsettled_calls()
        if not waiting or self.run_is_over:
            self.is_active = False
        elif self._can_proceed(loop, waiting):
            self._pause_s = min(max(2 * self._pause_s, 1e-5), _LONGEST_PAUSE_S)
            loop.call_later(self._pause_s, self._check)
        else:
            self.is_active = False
            tasks = self.unfinished_tasks(loop)
            self.transport.close(self._deadlock(waiting))
            if self.on_deadlock is not None:
                self.on_deadlock(tasks)

    def _keep_house(self) -> None:
        """Do the housekeeping if enough operations have passed since the last time."""
        if self.num_operations - self._last_housekeeping >= OPERATIONS_BETWEEN_HOUSEKEEPING and self.housekeeping:
            self._last_housekeeping = self.num_operations
            self.housekeeping()

    def _can_proceed(self, loop: asyncio.AbstractEventLoop, waiting: Iterable[Call]) -> bool:
        """Return whether a task or a timer of this run can do something by itself."""
        if not self.claimed_ranks and len(self.started_ranks) < self.transport.world_size:
            return True
        waiters = {waiter for call in waiting for waiter in call.live_waiters()}
        if WaitForGraph(self.unfinished_tasks(loop), waiters).can_proceed:
            return not nothing_can_happen(loop)
        return any(self._may_belong(context) for context in timer_contexts(loop))

    def unfinished_tasks(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks of this run."""
        return [task for task in asyncio.all_tasks(loop) if self._may_belong(context_of(task))]

    def _may_belong(self, context: Context | None) -> bool:
        """Return whether a context belongs to this run; True if that cannot be known."""
        return not self.claimed_ranks or context is None or owner_in(context)[0] is self.transport

    def _deadlock(self, waiting: list[Call]) -> DeadlockError:
        """Return the error that says what every rank waits for."""
        places = awaiting_lines(waiting)
        calls = sorted((call for call in waiting if call.is_awaited), key=lambda call: call.rank)
        lines = [
            f"  rank {call.rank} at {call.clock:.6g} s: {call.describe()}{_in_brackets(places.get(call))}"
            for call in calls
        ]
        silent = (self.claimed_ranks or set(range(self.transport.world_size))) - {call.rank for call in calls}
        finished = sorted(silent & self.finished_ranks if self.claimed_ranks else silent)
        return DeadlockError(
            "deadlock: every unfinished rank waits for another one. Every receive needs a send, and all ranks of a "
            "group must start the same collectives in the same order\n"
            + "\n".join(_shortened(lines) + _not_waiting(finished, sorted(silent - set(finished)))),
            ranks=tuple(call.rank for call in calls),
            waiting=tuple(line.strip() for line in lines),
            finished=tuple(finished),
        )


def _in_brackets(place: str | None) -> str:
    """Return a source line in brackets, or nothing if it is not known."""
    return "" if place is None else f" ({place})"


def _shortened(lines: list[str]) -> list[str]:
    """Return the first lines, and how many there are more."""
    return lines if len(lines) <= _MAX_LINES else [*lines[:_MAX_LINES], f"  ... and {len(lines) - _MAX_LINES} more"]


def _not_waiting(finished: Sequence[int], others: Sequence[int]) -> list[str]:
    """Return the lines about the ranks that wait for no operation."""
    kinds = (
        ("not waiting, because finished", finished),
        ("waiting for something of their own that nobody can give", others),
    )
    return [f"  {what}: {_names(ranks)}" for what, ranks in kinds if ranks]


def _names(ranks: Sequence[int]) -> str:
    """Return ranks in words."""
    more = ", ..." if len(ranks) > _MAX_LINES else ""
    return f"rank{'s' if len(ranks) > 1 else ''} " + ", ".join(map(str, ranks[:_MAX_LINES])) + more
