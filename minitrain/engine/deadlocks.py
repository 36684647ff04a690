"""Finding deadlocks, without a false alarm: no task that waits could ever be woken.

In a `RankLoop`, which `simulate` runs, that is exact and at once: the loop tells when nothing can happen in it. What
tasks wait for makes no difference, an operation of another rank or something of their own. One case is uncertain. Where
threads live that were there before the run, each unfinished rank must wait for an operation, since a thread may have
been handed whatever else a strategy waits for.

Other loops do not tell what they have left to do. There, a run is known to wait for ever if every context in which a
task, a timer or a callback of it could act is that of a task that waits for an operation (see `_is_all_waiting`).
Whoever waits for a task of its own, a gather for one, might as well wait for a timer.

What is not certain (a far timer, a task that polls, another loop, ranks driven by a plain `asyncio.gather`) is told:
who waits where appears on stderr, once some seconds of real time have passed without progress. No result and no
logical time depends on that clock.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Protocol
from weakref import ReferenceType, WeakSet

from minitrain.engine.event_loop import Owner, RankLoop, RankTask, renew_owner
from minitrain.engine.protocol import MOST_LINES, Call, Waiter, lines_of_calls, other_places, shortened
from minitrain.errors import DeadlockError
from minitrain.operations import RECV, SEND

OPERATIONS_BETWEEN_HOUSEKEEPING = 2**20
FIRST_REPORT_S = 3.0
"""Real time without progress after which the detector says who waits, s; ten times as long before it says so again."""

_LONGEST_PAUSE_S = 0.05


class WatchedTransport(Protocol):
    """What the deadlock detector needs of its transport."""

    world_size: int

    def unsettled_calls(self) -> list[Call]:
        """Return every call without an outcome."""

    def close(self, error: BaseException) -> None:
        """End every unsettled call with an error."""


@dataclass(slots=True, eq=False, repr=False)
class DeadlockDetector:
    """Finds deadlocks among the tasks of one transport.

    Args:
        _transport: a weak reference to the transport: a cycle would live until Python's cycle collector runs.

    Attributes:
        num_operations: number of operations begun so far.
        claimed_ranks: ranks whose tasks are known: in `simulate` all, or the lowest of each folded class; without
            `simulate` none.
        finished_ranks: ranks whose strategy has returned.
        tasks: those of the run that somebody still has.
        owners: what says in whose name a context of the run acts, for each of them.
        waiters: what the task of a rank waits on for operations, in the present loop.
        is_active: whether it looks.
        loop: the event loop in which the calls wait; None before anybody waited.
        run_is_over: whether the run has ended already, well or not.
        watches_run: whether to look even while no call waits, as all ranks may wait for something else.
        on_deadlock: called with the unfinished tasks of a run that has come to a deadlock.
        progress: returns a value that changes while ranks get on, called every few seconds; None to count operations.
        num_reports: how often it has said that ranks still wait.
        housekeeping: called every million operations or so, between two of them.
    """

    _transport: ReferenceType[WatchedTransport]
    num_operations: int = 0
    claimed_ranks: set[int] = field(default_factory=set)
    finished_ranks: set[int] = field(default_factory=set)
    tasks: WeakSet[RankTask] = field(default_factory=WeakSet)
    owners: WeakSet[Owner] = field(default_factory=WeakSet)
    waiters: dict[int, Waiter] = field(default_factory=dict)
    run_is_over: bool = False
    on_deadlock: Callable[[list[RankTask]], None] | None = None
    housekeeping: Callable[[], None] | None = None
    watches_run: bool = False
    progress: Callable[[], object] | None = None
    num_reports: int = 0
    _last_progress: object = field(default_factory=object)  # unequal to every real value
    _waiting_since: float = 0.0  # on the loop's clock, s
    _next_look_s: float = 0.0
    _last_num_operations: int = 0
    _last_housekeeping: int = 0
    is_active: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    _is_suspected: bool = False  # whether the last look found that all wait
    _old_threads: set[threading.Thread] = field(default_factory=set)
    _old_tasks: WeakSet[asyncio.Task[object]] = field(default_factory=WeakSet)
    _pause_s: float = 0.0

    @property
    def transport(self) -> WatchedTransport:
        """The transport, which must still be there."""
        transport = self._transport()
        assert transport is not None  # the tasks that wait keep it alive
        return transport

    def watch_run(self) -> None:
        """Look from now on until the run is over, also while no call waits."""
        self.watches_run = True
        self.activate()

    def activate(self) -> None:
        """Look for deadlocks from now on, as a call waits; what an earlier loop was asked may never have come."""
        if self.is_active and self.loop is not None and self.loop.is_running():
            return  # looked at first: to find the running loop takes a system call
        self.is_active = True
        loop = asyncio.get_running_loop()
        if loop is not self.loop:
            self.loop = loop
            self.waiters = {}
        if isinstance(loop, RankLoop):
            loop.watchers[self] = None
        else:
            self._old_threads = set(threading.enumerate())
            self._old_tasks = WeakSet(asyncio.all_tasks(loop))
            self._pause_s = 0.0
            self._last_num_operations = self.num_operations
            loop.call_soon(self._check, loop, context=Context())

    def look(self, now_s: float) -> float | None:
        """Keep house, and say who waits if no rank gets on; return when to look again, None for never."""
        if self.num_operations - self._last_housekeeping >= OPERATIONS_BETWEEN_HOUSEKEEPING and self.housekeeping:
            self._last_housekeeping = self.num_operations
            self.housekeeping()
        if self._unsettled() is None:
            return None
        self._report_long_wait(now_s)
        return self._next_look_s

    def rest(self, *, beside_old_threads: bool) -> bool:
        """End the deadlock that there is if nothing can happen in the event loop any more."""
        waiting = self._unsettled()
        if waiting is None:
            return False
        if beside_old_threads:
            unfinished = {task.rank for task in self.unfinished_tasks()}
            ranks = unfinished if self.claimed_ranks else set(range(self.transport.world_size))
            if not ranks <= {call.rank for call in waiting if call.is_awaited}:
                return False
        self._end(waiting)
        return True

    def _unsettled(self) -> list[Call] | None:
        """Return the calls without an outcome; None, and look no more, if there is nothing to watch."""
        transport = self._transport()
        waiting = [] if transport is None else transport.unsettled_calls()
        if transport is not None and not self.run_is_over and (waiting or self.watches_run):
            return waiting
        self.is_active = False
        if isinstance(self.loop, RankLoop):
            self.loop.watchers.pop(self, None)
        return None

    def _end(self, waiting: Sequence[Call]) -> None:
        """End a run that has come to a deadlock."""
        tasks = self.unfinished_tasks()
        self.transport.close(self._deadlock(waiting))
        if self.on_deadlock is not None:
            self.on_deadlock(tasks)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look in a loop that does not tell when nothing can happen: often while operations come, then rarely."""
        self.look(loop.time())
        waiting = self._unsettled()
        if waiting is None:
            return
        was_suspected, self._is_suspected = self._is_suspected, False
        if self._last_num_operations != self.num_operations:
            self._last_num_operations = self.num_operations
            self._pause_s = 0.0
            loop.call_soon(self._check, loop, context=Context())
        elif not self._is_all_waiting(waiting, loop):
            self._pause_s = min(max(2 * self._pause_s, 1e-5), _LONGEST_PAUSE_S)
            loop.call_later(self._pause_s, self._check, loop, context=Context())
        elif not was_suspected:
            self._is_suspected = True  # what a thread has left behind comes first
            loop.call_soon(self._check, loop, context=Context())
        else:
            self.is_active = False
            self._end(waiting)

    def _is_all_waiting(self, waiting: Sequence[Call], loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether all that could act in the run's name are tasks that wait for an operation.

        A context refers to its owner, and so do all of its copies: those of sub-tasks, timers, callbacks and threads.
        Whoever waits gets a new owner. If one of the others lives on, so does a context whose doings are unknown. Those
        of threads and of tasks of nobody that have begun since are unknown too.
        """
        if not self.claimed_ranks or not self._old_threads.issuperset(threading.enumerate()):
            return False
        if asyncio.all_tasks(loop) - set(self.tasks) - set(self._old_tasks):
            return False
        contexts = [waiter.step[1] for call in waiting for waiter in call.live_waiters() if waiter.step is not None]
        for context in contexts:
            renew_owner(context)
        return len(self.owners) == len(contexts)

    def unfinished_tasks(self) -> list[RankTask]:
        """Return the unfinished tasks of this run."""
        return [task for task in list(self.tasks) if not task.done()]

    def _report_long_wait(self, now: float) -> None:
        """Say who waits if no rank gets on for some seconds of real time, and then rarely."""
        if now < self._next_look_s:
            return
        progress = self.num_operations if self.progress is None else self.progress()
        if progress != self._last_progress:
            self._last_progress, self._waiting_since = progress, now
            self._next_look_s = now + FIRST_REPORT_S
        else:
            waited_s = now - self._waiting_since
            self.report(f"still waiting: nothing has happened for {waited_s:.0f} s of real time")
            self._next_look_s = now + 9 * waited_s

    def report(self, what: str) -> None:
        """Say on stderr who waits for what.

        Args:
            what: the first line.
        """
        self.num_reports += 1
        waiting = self.transport.unsettled_calls()
        others = [f"  rank {rank}: {text}" for rank, text in other_places(self.unfinished_tasks(), waiting)]
        lines = [f"minitrain: {what}", *shortened([*lines_of_calls(waiting), *others])]
        print("\n".join(lines), file=sys.stderr, flush=True)

    def _deadlock(self, waiting: Sequence[Call]) -> DeadlockError:
        """Return the error that says what every rank waits for."""
        lines = lines_of_calls(waiting)
        ranks = tuple(sorted(call.rank for call in waiting if call.is_awaited))
        silent = (self.claimed_ranks or set(range(self.transport.world_size))) - set(ranks)
        finished = sorted(silent & self.finished_ranks if self.claimed_ranks else silent)
        others = other_places(self.unfinished_tasks(), waiting)
        return DeadlockError(
            f"deadlock: every unfinished rank waits for another one. {_rules(waiting)}\n"
            + "\n".join(shortened(lines) + _not_waiting(finished, sorted(silent - set(finished)), dict(others))),
            ranks=ranks,
            waiting=tuple(line.strip() for line in lines),
            finished=tuple(finished),
        )


def _rules(waiting: Sequence[Call]) -> str:
    """Return what is broken where ranks wait for messages, for collectives, or for both."""
    kinds = {call.op in (SEND, RECV) for call in waiting if call.is_awaited} or {True, False}
    rules = {True: "every receive needs a send", False: "all ranks of a group must start the same collectives in order"}
    return ", and ".join(rule for is_message, rule in rules.items() if is_message in kinds).capitalize()


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
