"""One rank's part in an operation of the transport, and the wait for its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
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
    """

    __slots__ = ("clock", "detail", "error", "op", "rank", "result", "settled", "value", "waiter")

    def __init__(self, op: str, rank: int, value: Any, clock: float, detail: Any = None) -> None:
        self.op = op
        self.rank = rank
        self.value = value
        self.clock = clock
        self.detail = detail
        self.settled = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.waiter: Waiter | None = None

    @abstractmethod
    def terms(self, calls: list[Call], results: list[Any]) -> Any:
        """Return what all participants of a collective share beside the start; asked of the lowest rank's call."""

    @abstractmethod
    def settle(self, result: Any, start: float, waited_for: int | None, terms: Any) -> None:
        """Take the result of a collective that starts at `start`, s, because of rank `waited_for`."""

    @abstractmethod
    def deliver(self, value: Any, sent: float, source: int) -> None:
        """Take the message that `source` sent at `sent`, s, and wake those that wait for it."""

    def fail(self, error: BaseException) -> None:
        """End the call with an error."""
        if not self.settled:
            self.settled = True
            self.error = error

    @abstractmethod
    def describe(self) -> str:
        """Return the operation in words, as an error tells it."""

    def parked(self) -> Generator[Waiter, None, None]:
        """Yield what tasks are parked on that nobody has begun to wake."""
        waiter = self.waiter
        while waiter is not None:
            if waiter.parked:
                yield waiter
            waiter = waiter.next

    def waiters(self) -> Generator[Waiter, None, None]:
        """Yield what the waiting tasks are parked on."""
        waiter, self.waiter = self.waiter, None
        while waiter is not None:
            yield waiter
            waiter = waiter.next

    def wait(self) -> Generator[Any, None, None]:
        """Suspend the running task until the call is settled; raise its error."""
        if not self.settled:
            self.waiter = waiter = Waiter(self.waiter)
            yield from waiter.__await__()
        if self.error is not None:
            raise self.error.with_traceback(None)


class RawCall(Call):
    """A call made through `Dist` itself: its outcome is the result and the start time, unpriced."""

    __slots__ = ("start",)

    def __init__(self, op: str, rank: int, value: Any, clock: float) -> None:
        super().__init__(op, rank, value, clock)
        self.start = clock

    def terms(self, calls: list[Call], results: list[Any]) -> None:
        """Share nothing."""

    def settle(self, result: Any, start: float, waited_for: int | None, terms: Any) -> None:  # noqa: ARG002
        """Keep result and start."""
        self.settled = True
        self.result = result
        self.start = start

    def describe(self) -> str:
        """Return the operation's name."""
        return self.op

    def deliver(self, value: Any, sent: float, source: int) -> None:
        """Keep the message."""
        self.settle(clone(value), sent, source, None)
        wake_soon(list(self.waiters()))

    def __await__(self) -> Generator[Any, None, tuple[Any, float]]:
        yield from self.wait()
        return self.result, self.start
