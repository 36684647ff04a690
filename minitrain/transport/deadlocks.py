"""Finding deadlocks, exactly and at once: no task that waits could ever be woken.

While any call waits, one callback in each iteration of the event loop checks whether an operation happened since the
last check. If none did, it looks at the tasks of the run. A task can proceed by itself if it is runnable, or if it
awaits something of its own (a sleep, a lock, an executor). A task that awaits the transport or other tasks of the run
cannot (see `minitrain.transport.wait_for_graph`). If no task of the run can proceed and no timer of the run is set,
every unfinished rank waits for another one for ever.

A task that awaits something of its own is still known to wait for ever if the whole loop is idle for ever: nothing to
run, no timer, no file but its own pipe, and no other thread. Where neither is certain (a far timer, a task that polls),
the detector says on stderr who waits where, once some seconds of real time have passed without progress. No result and
no logical time depends on that clock.

The tasks of a run are known by their context (see `minitrain.transport.task_ownership`). Without `simulate` (plain
`asyncio.gather` over ranks) every task of the loop counts, so that no deadlock is ever reported where there is none.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context
from typing import Any, Protocol
from weakref import ref

from minitrain.errors import DeadlockError
from minitrain.transport.calls import Call
from minitrain.transport.task_ownership import claim_running_task, context_of, owner_in
from minitrain.transport.wait_for_graph import WaitForGraph, nothing_can_happen, timer_contexts
from minitrain.transport.waiting_places import MOST_LINES, Waits, shortened

OPERATIONS_BETWEEN_HOUSEKEEPING = 2**20
FIRST_REPORT_S = 3.0
"""Real time without progress after which the detector says who waits, s; ten times as long before it says so again."""

_LONGEST_PAUSE_S = 0.05


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
        watches_run: whether to look even while no call waits, as all ranks may wait for something else.
        on_deadlock: called with the unfinished tasks of a run that has come to a deadlock.
        progress: returns a value that changes while ranks get on, called every few seconds; None to count operations.
        num_reports: how often it has said that ranks still wait.
        housekeeping: called every million operations or so, between two of them.
    """

    __slots__ = (
        "_last_housekeeping",
        "_last_num_operations",
        "_last_progress",
        "_next_look_s",
        "_pause_s",
        "_transport",
        "_waiting_since",
        "claimed_ranks",
        "finished_ranks",
        "housekeeping",
        "is_active",
        "loop",
        "num_operations",
        "num_reports",
        "on_deadlock",
        "progress",
        "run_is_over",
        "started_ranks",
        "watches_run",
    )

    def __init__(self, transport: WatchedTransport) -> None:
        self._transport = ref(transport)  # weak: a reference cycle would live until Python's cycle collector runs
        self.num_operations = 0
        self.claimed_ranks: set[int] = set()
        self.started_ranks: set[int] = set()
        self.finished_ranks: set[int] = set()
        self.run_is_over = False
        self.on_deadlock: Callable[[list[asyncio.Task[Any]]], None] | None = None
        self.housekeeping: Callable[[], None] | None = None
        self.watches_run = False
        self.progress: Callable[[], object] | None = None
        self.num_reports = 0
        self._last_progress: object = self  # unequal to every real value
        self._waiting_since = self._next_look_s = 0.0  # on the loop's clock, s
        self._last_num_operations = self._last_housekeeping = 0
        self.is_active = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pause_s = 0.0

    @property
    def transport(self) -> WatchedTransport:
        """The transport, which must still be there."""
        transport = self._transport()
        assert transport is not None  # the tasks that wait keep it alive
        return transport

    def claim_running_task(self, rank: int) -> None:
        """Count the running task of a rank, and all that it starts from now on, as part of this run."""
        self.claimed_ranks.add(rank)
        claim_running_task(self.transport, rank)

    def watch_run(self) -> None:
        """Look from now on until the run is over, also while no call waits."""
        self.watches_run = True
        self.activate()

    def activate(self) -> None:
        """Check for deadlocks from now on, as a call waits; a check of an earlier loop may never have come."""
        if self.is_active and self.loop is not None and self.loop.is_running():
            return  # looked at first: to find the running loop takes a system call
        self.is_active = True
        self._pause_s = 0.0
        self._last_num_operations = self.num_operations
        self.loop = asyncio.get_running_loop()
        self.loop.call_soon(self._check, self.loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check whether anything happened since the last time; if nothing did, whether anything can."""
        if self._last_num_operations != self.num_operations:
            self._last_num_operations = self.num_operations
            self._keep_house()
            self._pause_s = 0.0
            self._report_long_wait(loop)
            loop.call_soon(self._check, loop)
            return
        transport = self._transport()
        waiting = [] if transport is None else transport.unsettled_calls()
        if transport is None or self.run_is_over or not (waiting or self.watches_run):
            self.is_active = False
        elif self._can_proceed(loop, waiting):
            self._report_long_wait(loop)
            self._pause_s = min(max(2 * self._pause_s, 1e-5), _LONGEST_PAUSE_S)
            loop.call_later(self._pause_s, self._check, loop)
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
        tasks = self.unfinished_tasks(loop)
        if not (waiting or tasks):
            return True  # the last task has just ended
        if WaitForGraph(tasks, waiters).can_proceed:
            return not nothing_can_happen(loop)
        return any(self._may_belong(context) for context in timer_contexts(loop))

    def unfinished_tasks(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks of this run."""
        return [task for task in asyncio.all_tasks(loop) if self._may_belong(context_of(task))]

    def _may_belong(self, context: Context | None) -> bool:
        """Return whether a context belongs to this run; True if that cannot be known."""
        return not self.claimed_ranks or context is None or owner_in(context)[0] is self.transport

    def _report_long_wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say who waits if no rank gets on for some seconds of real time, and then rarely."""
        now = loop.time()
        if now < self._next_look_s:
            return
        progress = self.num_operations if self.progress is None else self.progress()
        if progress != self._last_progress:
            self._last_progress, self._waiting_since = progress, now
            self._next_look_s = now + FIRST_REPORT_S
        else:
            waited_s = now - self._waiting_since
            self.report(loop, f"still waiting: nothing has happened for {waited_s:.0f} s of real time")
            self._next_look_s = now + 9 * waited_s

    def report(self, loop: asyncio.AbstractEventLoop, what: str) -> None:
        """Say on stderr who waits for what.

        Args:
            loop: the event loop.
            what: the first line.
        """
        self.num_reports += 1
        waiting = self.transport.unsettled_calls()
        waits = Waits(self.unfinished_tasks(loop))
        others = [f"  rank {rank}: {text}" for rank, text in waits.of_others(waiting)]
        lines = [f"minitrain: {what}", *shortened([*waits.of_calls(waiting), *others])]
        print("\n".join(lines), file=sys.stderr, flush=True)

    def _deadlock(self, waiting: Sequence[Call]) -> DeadlockError:
        """Return the error that says what every rank waits for."""
        loop = asyncio.get_running_loop()
        waits = Waits(asyncio.all_tasks(loop))
        lines = waits.of_calls(waiting)
        ranks = tuple(sorted(call.rank for call in waiting if call.is_awaited))
        silent = (self.claimed_ranks or set(range(self.transport.world_size))) - set(ranks)
        finished = sorted(silent & self.finished_ranks if self.claimed_ranks else silent)
        others = Waits(self.unfinished_tasks(loop)).of_others(waiting) if self.claimed_ranks else []
        return DeadlockError(
            "deadlock: every unfinished rank waits for another one. Every receive needs a send, and all ranks of a "
            "group must start the same collectives in the same order\n"
            + "\n".join(shortened(lines) + _not_waiting(finished, sorted(silent - set(finished)), dict(others))),
            ranks=ranks,
            waiting=tuple(line.strip() for line in lines),
            finished=tuple(finished),
        )


def _not_waiting(finished: Sequence[int], others: Sequence[int], places: Mapping[int, str]) -> list[str]:
    """Return the lines about the ranks that wait for no operation.

    Args:
        finished: those that have returned.
        others: those that wait for something else.
        places: what they wait for and where, as far as it is known.
    """
    kinds: list[tuple[str, Sequence[int], Mapping[int, str]]] = [
        ("not waiting, because finished", finished, {}),
        ("waiting for something of their own that nobody can give", others, places),
        ("a sub-task waits for what nobody can give", [rank for rank in finished if rank in places], places),
    ]
    return [f"  {what}: {_names(ranks, known)}" for what, ranks, known in kinds if ranks]


def _names(ranks: Sequence[int], places: Mapping[int, str]) -> str:
    """Return ranks in words."""
    more = ", ..." if len(ranks) > MOST_LINES else ""
    names = (f"{rank} ({places[rank]})" if rank in places else str(rank) for rank in ranks[:MOST_LINES])
    return f"rank{'s' if len(ranks) > 1 else ''} " + ", ".join(names) + more
