"""One rank's part in an operation of the transport, and the wait for its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any

from minitrain.tensors import clone
from minitrain.waiting import Waiter, wake_soon


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
        result: the outcome, once it is settled.
        error: why there is none, or None.
        waiter: what the last task that awaits it is parked on; the others are linked to it.
    """

    __slots__ = ("clock", "detail", "error", "op", "rank", "result", "settled", "value", "waiter")

    op: str
    rank: int
    value: Any
    clock: float
    detail: Any
    settled: bool
    result: Any
    error: BaseException | None
    waiter: Waiter | None

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
        waiter = self.waiter
        while waiter is not None:
            if waiter.parked:
                yield waiter
            waiter = waiter.next


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
        self.result = None
        self.error = None
        self.waiter = None

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
            call.result = result
            call.start = start
            call.settled = True

    def describe(self) -> str:
        """Return the operation's name."""
        return self.op

    def deliver(self, value: Any, sent: float, source: int) -> None:  # noqa: ARG002
        """Keep the message."""
        self.result = clone(value)
        self.settled = True
        if self.waiter is not None:
            wake_soon([self.waiter])

    def __await__(self) -> Generator[Any, None, tuple[Any, float]]:
        if not self.settled:
            self.waiter = waiter = Waiter(self.waiter)
            yield waiter
        if self.error is not None:
            raise self.error.with_traceback(None)
        return self.result, self.start
