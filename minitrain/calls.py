"""One rank's part in an operation of the transport, and the wait for its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import get_running_loop
from collections.abc import Generator, Sequence
from typing import Any

from minitrain.tensors import clone
from minitrain.waiting import Waiter, wake_soon


class Call(Waiter, ABC):
    """What a rank asked of the transport: an operation, its value, and the clock at which the rank was ready.

    The transport settles a call once, with its result or with an error; whoever awaits it goes on then. The first
    task that awaits it is parked on the call itself, any other one on a `Waiter` linked to it.

    Attributes:
        op: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, barrier, send or recv.
        rank: who calls.
        value: what it brings.
        clock: when it was ready, s.
        detail: what else must agree between the callers (the root of a broadcast), or None.
        settled: whether the outcome is known.
        outcome: its result, once it is settled.
        error: why there is none, or None.
    """

    __slots__ = ("clock", "detail", "error", "op", "outcome", "rank", "settled", "value")

    op: str
    rank: int
    value: Any
    clock: float
    detail: Any
    settled: bool
    outcome: Any
    error: BaseException | None

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
    def deliver(self, value: Any, sent: float, source: int) -> None:
        """Take the message that `source` sent at `sent`, s, and wake those that wait for it."""

    @abstractmethod
    def describe(self) -> str:
        """Return the operation in words, as an error tells it."""

    def fail(self, error: BaseException) -> None:
        """End the call with an error."""
        self.settled = True
        self.error = error

    def parked(self) -> Generator[Waiter, None, None]:
        """Yield what tasks are parked on that nobody has begun to wake."""
        waiter: Waiter | None = self
        while waiter is not None:
            if waiter.is_parked:
                yield waiter
            waiter = waiter.next

    @property
    def is_wanted(self) -> bool:
        """Whether anybody may still ask for the outcome: no task that awaited it has given up, or another has not."""
        return not self.cancelled or getattr(self, "flight", None) is not None or any(self.parked())

    def park(self) -> Waiter:
        """Return what the running task is to be parked on: `yield` it at once."""
        if self._step is not None or self.cancelled:
            self.next = Waiter(self.next)
            return self.next
        self._loop = get_running_loop()
        self._asyncio_future_blocking = True
        return self


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
        self._step = None
        self.cancelled = False
        self.next = None

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

    def deliver(self, value: Any, sent: float, source: int) -> None:  # noqa: ARG002
        """Keep the message."""
        self.outcome = clone(value)
        self.settled = True
        wake_soon([self])

    def __await__(self) -> Generator[Any, None, tuple[Any, float]]:
        if not self.settled:
            yield self.park()
        if self.error is not None:
            raise self.error.with_traceback(None)
        return self.outcome, self.start
