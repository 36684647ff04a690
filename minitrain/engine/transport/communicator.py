"""The part of the transport that the ranks of one group share: their collectives meet here.

Collectives are matched by their place in the group's order. The k-th collective that a rank starts in a group meets the
k-th of every other member, and starts at the latest of their clocks.

Point-to-point messages: first in, first out within (source, dest, tag).

A barrier: no rank passes before all ranks have arrived.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakSet, ref

from minitrain.engine.transport.calls import Call, place_of_call, wake_soon
from minitrain.engine.transport.deadlocks import DeadlockDetector
from minitrain.errors import CollectiveMismatchError, LawError, TensorTypeError, UsageError
from minitrain.operations import COMM, Stream
from minitrain.operations.collectives import COLLECTIVES, describe, mismatch, perform
from minitrain.source_lines import calling_frame, present_place

# Both queues of a new channel. A deque takes more memory than the channel itself, which seldom needs both of them.
_EMPTY: deque[Call] = deque(maxlen=0)


class Channel:
    """The messages of one source, destination and tag that were sent and not yet received.

    Args:
        capacity: how many messages may lie here before a blocking send waits, or None for no bound.
        temporary_key: the key of a channel that is dropped once it is empty, as a program may use ever new tags; None
            for a channel that stays.

    Attributes:
        sent: messages that nobody has received, oldest first.
        receivers: receives that wait for a message, oldest first.
    """

    __slots__ = ("capacity", "receivers", "sent", "temporary_key")

    def __init__(self, capacity: int | None, temporary_key: tuple[Any, ...] | None = None) -> None:
        self.capacity = capacity
        self.temporary_key = temporary_key
        self.sent = self.receivers = _EMPTY

    def __len__(self) -> int:
        return len(self.sent)

    def put(self, send: Call) -> None:
        """Deliver a message to the oldest receive that waits, or keep it until one comes."""
        receive = self._next_receiver()
        if receive is not None:
            _deliver(send, receive)
            return
        if self.sent is _EMPTY:
            self.sent = deque()
        self.sent.append(send)
        send.settled = self.capacity is None or len(self.sent) <= self.capacity

    def get(self, receive: Call) -> None:
        """Take the oldest message, which may wake a waiting sender, or wait for one."""
        if not self.sent:
            if self.receivers is _EMPTY:
                self.receivers = deque()
            self.receivers.append(receive)
            return
        _deliver(self.sent.popleft(), receive)
        if self.capacity is not None and len(self.sent) >= self.capacity:
            accepted = self.sent[self.capacity - 1]
            accepted.settled = True
            wake_soon([accepted.waiters])

    def _next_receiver(self) -> Call | None:
        """Return the oldest receive that is still wanted."""
        while self.receivers:
            receive = self.receivers.popleft()
            if not receive.is_abandoned:
                return receive
        return None


def _deliver(send: Call, receive: Call) -> None:
    """Settle both sides of a message."""
    send.settled = True
    receive.deliver(send.value, send.clock)


class Barrier:
    """A barrier that holds ranks until `target` of them have arrived; it can be used again at once.

    Attributes:
        target: number of ranks that must arrive.
        counter: number of ranks that wait now.
    """

    def __init__(self, target: int) -> None:
        if isinstance(target, bool) or not isinstance(target, int) or target < 1:
            raise UsageError(f"target must be an integer of at least 1, got {target!r}")
        self.target = target
        self.counter = 0
        self._arrived: set[int] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._passed: WeakSet[asyncio.Task[Any]] | None = None  # made when needed: a group hardly ever needs it

    def arrive(self, rank: int) -> bool:
        """Count a rank in and return whether it was the last; the last one lets all go on.

        Raises:
            LawError: the rank waits here already.
        """
        if rank in self._arrived:
            raise LawError(f"rank {rank} waits at this barrier already; each rank arrives once", rank=rank)
        self._arrived.add(rank)
        self.counter += 1
        if self.counter < self.target:
            return False
        self._release()
        return True

    def _release(self) -> None:
        """Start the next round and wake those of this one."""
        waiters, self._waiters = self._waiters, []
        self._arrived.clear()
        self.counter = 0
        for waiter in waiters:
            if not waiter.done():  # its task was not cancelled
                waiter.set_result(None)

    async def wait(self, rank: int) -> None:
        """Wait until all ranks have arrived."""
        if not self.arrive(rank):
            await self._round()
        task = asyncio.current_task()
        if task is not None:
            if self._passed is None:
                self._passed = WeakSet()
            self._passed.add(task)

    async def reset(self) -> None:
        """Return once the round in progress is over.

        A task that has passed has nothing to wait for: the barrier is ready for its next round, which others may
        have begun.
        """
        if self.counter and asyncio.current_task() not in (self._passed or ()):
            await self._round()

    def _round(self) -> asyncio.Future[None]:
        """Return the future that is set at the end of this round."""
        waiter: asyncio.Future[None] = asyncio.Future()
        self._waiters.append(waiter)
        return waiter


class Host(Protocol):
    """What a communicator needs of the transport that it is a part of."""

    detector: DeadlockDetector
    error: BaseException | None

    def refuse(self, call: Call) -> None:
        """Refuse an operation of a transport that was closed."""
        ...

    def close(self, error: BaseException) -> None:
        """End every unsettled call with an error."""
        ...


class PendingCollective:
    """One collective of a group while its members arrive.

    Attributes:
        op: what the first member called.
        detail: what the first member's call adds to that (the root of a broadcast, an algorithm), or None.
        calls: those of the members, None for who has not come yet.
        num_missing: number of members that have not come yet.
        is_consistent: whether all members called the same operation.
    """

    __slots__ = ("calls", "detail", "is_consistent", "num_missing", "op")

    def __init__(self, size: int, first: Call) -> None:
        self.calls: list[Call | None] = [None] * size
        self.num_missing = size
        self.op = first.op
        self.detail = first.detail
        self.is_consistent = True


class Communicator:
    """What the ranks of one group share.

    Attributes:
        host: a weak reference to the transport: a strong one would be a reference cycle.
        ranks: the members in ascending order.
        size: number of members.
        is_world: whether all ranks of the run are members.
        pending: collectives that some members have started and others not, by their place in the group's order.
        barrier: the specified barrier, which shows how many members wait in `Model.barrier`.
        stream: the stream that the events of the group's collectives name.
        busy_until: when the stream has finished all it was given, s; kept here for whoever prices collectives.
    """

    __slots__ = (
        "_indices",
        "_num_started",
        "barrier",
        "busy_until",
        "host",
        "is_world",
        "pending",
        "ranks",
        "size",
        "stream",
    )

    def __init__(self, host: Host, ranks: tuple[int, ...], barrier: Barrier, *, is_world: bool) -> None:
        self.host = ref(host)
        self.ranks = ranks
        self.size = len(ranks)
        self.is_world = is_world
        self.stream = Stream(COMM, None if is_world else ranks)
        self.busy_until = 0.0
        self.pending: dict[int, PendingCollective] = {}
        self.barrier = barrier
        self._num_started = [0] * self.size
        self._indices = None if is_world else {rank: index for index, rank in enumerate(ranks)}

    def index_of(self, rank: int) -> int:
        """Return a member's place in the group.

        Raises:
            UsageError: the rank is not a member.
        """
        if self.is_world and (self.size == 1 or 0 <= rank < self.size):
            return rank if self.size > 1 else 0  # in a world of one, the rank may have any number
        if self._indices is None or rank not in self._indices:
            raise UsageError(f"rank {rank} is not in the group {self.ranks}", rank=rank, group=self.ranks)
        return self._indices[rank]

    def join(self, index: int, call: Call) -> None:
        """Let a member start its next collective; the last member to come settles it for all of them.

        Raises:
            StrategyError, CancelledError: the transport was closed by an error.
            LawError: the members' calls do not belong together; that closes the transport.
        """
        host: Any = self.host()  # the caller keeps it alive
        if host.error is not None:
            host.refuse(call)
            return
        host.detector.num_operations += 1
        place = self._num_started[index]
        self._num_started[index] = place + 1
        collective = self.pending.get(place)
        if collective is None:
            collective = self.pending[place] = PendingCollective(self.size, call)
            host.detector.activate()
        elif call.op != collective.op or call.detail != collective.detail:
            collective.is_consistent = False
        collective.calls[index] = call
        collective.num_missing = num_missing = collective.num_missing - 1
        if call.op == "barrier":
            self.barrier.counter = (self.size - num_missing) % self.size
        if not num_missing:
            try:
                self._settle(collective, call)
            except Exception as error:
                host.close(error)
                raise
            del self.pending[place]

    def _settle(self, collective: PendingCollective, last_call: Call) -> None:
        """Give every member its result, and wake those that wait."""
        calls: list[Call] = collective.calls  # type: ignore[assignment]  # all members are here
        if not collective.is_consistent:
            raise self._mismatch(calls, last_call)
        try:
            values = [call.value for call in calls]
            results = perform(collective.op, values, self.ranks, collective.detail, whole=self.is_world)
        except CollectiveMismatchError as error:
            raise self._located(error, calls, last_call) from None
        except TensorTypeError as error:
            where = _called_at(calls, last_call)[0]
            raise TensorTypeError(f"{error} ({where})", rank=calls[0].rank, value=calls[0].value) from error.__cause__
        clocks = [call.clock for call in calls]
        start, last = calls[0].latest(clocks, self.ranks)
        largest_bytes = (
            max([call.sent_bytes() for call in calls]) if COLLECTIVES[collective.op].priced_by == "largest" else 0
        )
        kinds: set[type[Call]] = set(map(type, calls))
        if len(kinds) == 1:
            calls[0].settle_all(calls, results, clocks, start, last, largest_bytes)
        else:  # some came through `Dist` itself, others through their model
            for kind in kinds:
                places = [place for place, call in enumerate(calls) if type(call) is kind]
                kind.settle_all(
                    [calls[place] for place in places],
                    [results[place] for place in places],
                    [clocks[place] for place in places],
                    start,
                    last,
                    largest_bytes,
                )
        wake_soon([call.waiters for call in calls if call.waiters is not None])

    def _mismatch(self, calls: list[Call], last_call: Call) -> Exception:
        """Return the error for members that started different operations."""
        places = _called_at(calls, last_call)
        brought = [f"{call.describe()}{_with_detail(call)} ({at})" for call, at in zip(calls, places, strict=True)]
        return mismatch("a group", brought, self.ranks, "must start the same collectives in the same order")

    def _located(self, error: CollectiveMismatchError, calls: list[Call], last_call: Call) -> Exception:
        """Return the error for members that brought different tensors, with the lines where they did."""
        places = _called_at(calls, last_call)
        brought = [f"{describe(call.value)} ({at})" for call, at in zip(calls, places, strict=True)]
        return mismatch(error.op, brought, self.ranks, error.rule)


def _with_detail(call: Call) -> str:
    """Return what a call adds to its operation, in words."""
    if call.detail is None:
        return ""
    return f" from rank {call.detail}" if COLLECTIVES[call.op].has_root else f" by algorithm={call.detail!r}"


def _called_at(calls: Sequence[Call], last_call: Call) -> list[str]:
    """Return the source line of each member's call.

    The last member called just now, unless its call was held until now; no task awaits launched calls.
    """
    is_calling = calling_frame() is not None
    return [
        present_place() if is_calling and call is last_call else place_of_call(call) or "launched before"
        for call in calls
    ]
