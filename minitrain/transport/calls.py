"""One rank's part in an operation of the transport, and the wait for its result."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from minitrain.source_lines import place_of
from minitrain.tensors import clone
from minitrain.transport.waiting import Waiter, Waiters, wake_soon


class Call(ABC):
    """What a rank asked of the transport: an operation, its value, and the clock at which the rank was ready.

    The transport settles a call once, with its result or with an error; whoever awaits it goes on then.

    Attributes:
        op: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, barrier, send or recv.
        rank: who calls.
        value: what it brings.
        clock: when it was ready, s.
        detail: what else must agree between the callers (the root of a broadcast), or None.
        settled: whether the outcome is known.
        outcome: its result, once it is settled.
        error: why there is none, or None.
        waiters: what the tasks that await it are parked on.
    """

    __slots__ = ("clock", "detail", "error", "op", "outcome", "rank", "settled", "value", "waiters")

    op: str
    rank: int
    value: Any
    clock: float
    detail: Any
    settled: bool
    outcome: Any
    error: BaseException | None
    waiters: Waiters

    @staticmethod
    @abstractmethod
    def settle_all(
        calls: Sequence[Any], results: Sequence[Any], clocks: Sequence[float], start: float, last: int
    ) -> None:
        """Give the calls of one collective, all of this class, their results.

        Args:
            calls: in rank order.
            results: one a call.
            clocks: when each was ready, s.
            start: when the last one was, s.
            last: the lowest rank that was ready then.
        """

    @abstractmethod
    def deliver(self, value: Any, sent: float) -> None:
        """Take the message that was sent at `sent`, s, and wake those that wait for it."""

    @abstractmethod
    def describe(self) -> str:
        """Return the operation in words, as an error tells it."""

    def fail(self, error: BaseException) -> None:
        """End the call with an error."""
        self.settled = True
        self.error = error

    def parked(self) -> Iterator[Waiter]:
        """Yield what tasks are parked on, of a call that is not settled."""
        if self.waiters is not None:
            for waiter in self.waiters if isinstance(self.waiters, list) else (self.waiters,):
                if not waiter.done():
                    yield waiter

    @property
    def is_parked(self) -> bool:
        """Whether a task waits here for the call to be settled."""
        waiters = self.waiters
        if isinstance(waiters, list):
            return any(self.parked())
        return waiters is not None and not waiters.done()

    @property
    def is_wanted(self) -> bool:
        """Whether anybody may still ask for the outcome: no task that awaited it has given up, or another has not."""
        return self.waiters is None or self.is_parked

    def park(self, loop: AbstractEventLoop | None) -> Waiter:
        """Return what the running task is to be parked on: `yield` it at once.

        Args:
            loop: the running loop; given by who knows it, as asking for it takes a tenth of a wait.
        """
        waiter: Waiter = Future(loop=loop)
        waiter._asyncio_future_blocking = True  # asyncio's sign that the task may wait for it
        if self.waiters is None:
            self.waiters = waiter
        else:
            self.waiters = [*self.parked(), waiter]
        return waiter


class RawCall(Call):
    """A call made through `Dist` itself: its outcome is the result and the start time, unpriced."""

    __slots__ = ("start",)

    def __init__(self, op: str, rank: int, value: Any, clock: float) -> None:
        self.op = op
        self.rank = rank
        self.value = value
        self.clock = self.start = clock
        self.detail = None
        self.settled = False
        self.outcome = None
        self.error = None
        self.waiters = None

    @staticmethod
    def settle_all(
        calls: Sequence[Any],
        results: Sequence[Any],
        clocks: Sequence[float],  # noqa: ARG004  (nobody waits longer than another here)
        start: float,
        last: int,  # noqa: ARG004
    ) -> None:
        """Keep results and start."""
        for call, result in zip(calls, results, strict=True):
            call.outcome = result
            call.start = start
            call.settled = True

    def describe(self) -> str:
        """Return the operation's name."""
        return self.op

    def deliver(self, value: Any, sent: float) -> None:  # noqa: ARG002
        """Keep the message."""
        self.outcome = clone(value)
        self.settled = True
        wake_soon([self.waiters])

    def __await__(self) -> Generator[Any, None, tuple[Any, float]]:
        if not self.settled:
            yield self.park(get_running_loop())
        if self.error is not None:
            raise self.error.with_traceback(None)
        return self.outcome, self.start


def places_of(calls: Iterable[Call]) -> dict[Call, str]:
    """Return where in the strategy each waiting call is awaited, as far as that is known."""
    tasks = {getattr(task, "_fut_waiter", None): task for task in asyncio.all_tasks()}
    found = {}
    for call in calls:
        for waiter in call.parked():
            if waiter in tasks:
                found[call] = place_of(tasks[waiter].get_coro())
    return found
