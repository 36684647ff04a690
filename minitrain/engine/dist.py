"""The transport of one run in one process: collectives and messages between ranks that are tasks of one event loop.

`Dist` implements the interface of `minitrain.engine.protocol`. Collectives meet in the `Communicator` of their group,
messages in the `Channel` of their source, destination and tag. Every call carries the clock of its rank. The transport
knows nothing of seconds per byte: it gives each call its result and the clocks of the others, and the rank prices it.
Waiting is done on futures, one suspension a rank and operation.

Collectives are matched by their place in the group's order: the k-th that a rank starts in a group meets the k-th of
every other member, and starts at the latest of their clocks. Messages are first in, first out within a channel. No
rank passes a `Barrier` before all have arrived.
"""

from __future__ import annotations

import asyncio
import operator
from asyncio import get_running_loop
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar
from weakref import WeakSet, ref

from minitrain.engine.deadlocks import DeadlockDetector
from minitrain.engine.protocol import (
    Call,
    ProcessGroup,
    RawCall,
    Waiter,
    Waiters,
    place_of_call,
    ranks_along,
    wake_all,
    wake_soon,
)
from minitrain.errors import (
    CollectiveMismatchError,
    LawError,
    StrategyError,
    TensorTypeError,
    UsageError,
    require_count,
)
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
        self.target = require_count("target", target)
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


class Communicator(ProcessGroup):
    """What the ranks of one group share.

    Attributes:
        host: a weak reference to the transport: a strong one would be a reference cycle.
        pending: collectives that some members have started and others not, by their place in the group's order.
        barrier: the specified barrier, which shows how many members wait in `Model.barrier`.
    """

    def __init__(self, host: Dist, ranks: tuple[int, ...], barrier: Barrier, *, is_world: bool) -> None:
        super().__init__(ranks, is_world=is_world)
        self.host = ref(host)
        self.pending: dict[int, PendingCollective] = {}
        self.barrier = barrier
        self._num_started = [0] * self.size

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
        start, last = calls[0].latest([call.clock for call in calls], self.ranks)
        has_sizes = COLLECTIVES[collective.op].priced_by == "largest"
        largest_bytes = max([call.sent_bytes() for call in calls]) if has_sizes else 0
        kinds: set[type[Call]] = set(map(type, calls))
        if len(kinds) == 1:
            calls[0].settle_all(calls, results, start, last, largest_bytes)
        else:  # some came through `Dist` itself, others through their model
            for kind in kinds:
                of_kind = [(call, result) for call, result in zip(calls, results, strict=True) if type(call) is kind]
                own, theirs = zip(*of_kind, strict=True)
                kind.settle_all(own, theirs, start, last, largest_bytes)
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


_MOST_REFUSALS = 16  # of one rank: a few tasks may clean up


class Refusals:
    """The operations that were refused since an error closed the transport of a run.

    Attributes:
        held: calls that never get an outcome, of tasks that have swallowed their cancellation.
    """

    def __init__(self) -> None:
        self.held: list[Call] = []
        self._tasks: WeakSet[Any] = WeakSet()
        self._num_calls: Counter[int] = Counter()  # by rank

    def refuse(self, call: Call) -> None:
        """Cancel the running task, or hold its call for ever if cancelling does not end it.

        Raises:
            CancelledError: the task has not been refused anything yet, nor many tasks of its rank.
        """
        task = _running_task()
        self._num_calls[call.rank] += 1
        if task is not None and task not in self._tasks and self._num_calls[call.rank] <= _MOST_REFUSALS:
            self._tasks.add(task)
            raise asyncio.CancelledError("the run has ended with an error")
        self.held.append(call)


class Dist:
    """The transport of one run.

    Args:
        world_size: number of ranks.
        p2p_buffer: untagged messages that may be unreceived before a blocking send waits, None for no bound. It
            costs no logical time.

    Attributes:
        barrier: the world's barrier.
        queue: channels by (source, dest), made when first used, or by (source, dest, tag) while a message is under way.
        error: what has closed the transport, or None.
        detector: finds deadlocks among the ranks.
        world: the communicator of all ranks.
        communicator_kind: class of what the ranks of a group share.
    """

    communicator_kind: ClassVar[type[Communicator]] = Communicator

    def __init__(self, world_size: int, *, p2p_buffer: int | None = 1) -> None:
        require_count("world_size", world_size)
        if p2p_buffer is not None:
            require_count("p2p_buffer", p2p_buffer)
        self.world_size = world_size
        self.p2p_buffer = p2p_buffer
        self.barrier = Barrier(world_size)
        self.queue: dict[tuple[Any, ...], Channel] = {}
        self.error: BaseException | None = None
        self._undelivered: list[Call] = []
        self._woken: list[Waiters] = []  # whose calls models have settled in this iteration of the loop
        self._held: dict[Call, None] = {}  # calls that wait for results of their own rank, in the order of submission
        self._refusals: Refusals | None = None  # made when the first operation is refused
        self.detector = DeadlockDetector(ref(self))
        self.world = self.communicator_kind(self, tuple(range(world_size)), self.barrier, is_world=True)
        self._communicators: dict[tuple[int, ...], Communicator] = {self.world.ranks: self.world}
        self._communicators_along: dict[tuple[Any, ...], Communicator] = {}

    def communicator(self, ranks: Iterable[int]) -> Communicator:
        """Return what the given ranks share.

        Raises:
            UsageError: no rank is given, or one is not of this world.
        """
        members = _members(ranks)
        found = self._communicators.get(members)
        if found is None:
            if not members or members[0] < 0 or members[-1] >= self.world_size:
                message = f"a group needs ranks of 0..{self.world_size - 1}, at least one; got {list(members)}"
                raise UsageError(message, ranks=members)
            found = self.communicator_kind(self, members, Barrier(len(members)), is_world=False)
            self._communicators[members] = found
        return found

    def communicator_along(self, lowest: int, axes: tuple[tuple[int, int], ...]) -> Communicator:
        """Return what the ranks along some axes of a mesh share.

        Their list is made once for the group, and not once for each of its ranks.

        Args:
            lowest: the lowest rank.
            axes: stride and size of each axis.
        """
        found = self._communicators_along.get((lowest, axes))
        if found is None:
            found = self._communicators_along[lowest, axes] = self.communicator(ranks_along(lowest, axes))
        return found

    def channel(self, source: int, dest: int, tag: Any = None) -> Channel:
        """Return the messages from one rank to another under one tag.

        Raises:
            UsageError: source and dest are not two different ranks of this world.
        """
        key = (source, dest) if tag is None else (source, dest, tag)
        try:
            found = self.queue.get(key)
        except TypeError:  # what cannot be looked up
            found = None
            self._require_peers(source, dest)
            raise UsageError(f"tag must be hashable, such as a number or a tuple, got {tag!r:.80}", tag=tag) from None
        if found is None:
            self._require_peers(source, dest)
            found = self.queue[key] = Channel(self.p2p_buffer) if tag is None else Channel(None, key)
        return found

    def _require_peers(self, source: int, dest: int) -> None:
        """Raise a UsageError unless both are ranks of this world and different."""
        for name, rank in (("source", source), ("dest", dest)):
            if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.world_size:
                message = f"{name} must be a rank of 0..{self.world_size - 1}, got {rank!r}"
                raise UsageError(message, source=source, dest=dest)
        if source == dest:
            message = f"rank {source} cannot send to itself; keep the tensor, and receive from another rank"
            raise UsageError(message, source=source, dest=dest)

    def put(self, channel: Channel, call: Call) -> None:
        """Send a message."""
        self.detector.num_operations += 1
        if self.error is not None:
            self.refuse(call)
            return
        channel.put(call)
        if channel.temporary_key is not None:
            self._drop_if_empty(channel)
        if not call.settled:
            self.detector.activate()

    def get(self, channel: Channel, call: Call) -> None:
        """Ask for a message."""
        self.detector.num_operations += 1
        if self.error is not None:
            self.refuse(call)
            return
        channel.get(call)
        if channel.temporary_key is not None:
            self._drop_if_empty(channel)
        if not call.settled:
            self.detector.activate()

    def _drop_if_empty(self, channel: Channel) -> None:
        """Forget the channel of a tag when it has no message and nobody waits for one."""
        if not channel.sent and not channel.receivers:
            self.queue.pop(channel.temporary_key, None)  # type: ignore[arg-type]  # only a temporary channel is dropped

    def refuse(self, call: Call) -> None:
        """Refuse an operation after an error has closed the transport, so that no task can go on for ever.

        In a run, that error is what the run ends with. The task is cancelled, which `except Exception` does not catch.
        If it swallows this too and calls again, or if its rank makes new tasks again and again, the call is held: it
        never gets an outcome, so that its task waits and others can go on.

        Raises:
            StrategyError: outside of runs.
            CancelledError: in a run.
        """
        if not self.detector.claimed_ranks:
            raise StrategyError(
                f"this Dist was closed by an error ({type(self.error).__name__}); make a new one for another run"
            ) from self.error
        if self._refusals is None:
            self._refusals = Refusals()
        self._refusals.refuse(call)

    def suspend(self, call: Call) -> Waiter:
        """Return what the running task must yield at once, to go on when the call is settled."""
        waiters = self.detector.waiters
        waiter = waiters.get(call.rank)
        if waiter is None or waiter.step is not None or waiter.done():  # new, or another task of the rank waits on it
            waiter = waiters[call.rank] = Waiter(loop=self.detector.loop)
        if call.waiters is not None:
            return call.add_waiter(waiter)
        call.waiters = waiter  # as `add_waiter` does, without a call: every wait comes here
        return waiter.offer()

    def hold(self, call: Call) -> None:
        """Take note of a call that cannot meet those of other ranks yet, as it waits for a result of its own rank."""
        if self.error is not None:
            self.refuse(call)
            return
        self._held[call] = None
        self.detector.activate()

    def release(self, call: Call) -> None:
        """Take note that a call waits no longer: it will meet those of other ranks."""
        self._held.pop(call, None)

    def carry_out_soon(self, go_on: Callable[[], None]) -> None:
        """Call what carries out calls that were held, in the next iteration of the loop; its error ends the run."""
        get_running_loop().call_soon(self._carry_out, go_on)

    def _carry_out(self, go_on: Callable[[], None]) -> None:
        """Carry out calls that were held, unless an error has closed the transport."""
        if self.error is None:
            try:
                go_on()
            except Exception as error:  # it is no task's own
                self.close(error)

    def wake(self, waiters: Iterable[Waiters]) -> None:
        """Wake tasks in the next iteration of the loop, by one callback for all calls that models settle in this."""
        if not self._woken:
            get_running_loop().call_soon(self._wake_all)
        self._woken += waiters

    def _wake_all(self) -> None:
        """Wake the tasks whose calls models have settled."""
        woken, self._woken = self._woken, []
        wake_all(woken)

    @property
    def num_operations(self) -> int:
        """Number of operations begun so far."""
        return self.detector.num_operations

    def close(self, error: BaseException) -> None:
        """End every waiting call with an error; nothing can be called afterwards."""
        if self.error is not None:
            return
        self.error = error
        calls = self.unsettled_calls()
        for call in calls:
            call.fail(error)
        wake_soon([call.waiters for call in calls])

    def unsettled_calls(self) -> list[Call]:
        """Return every call without an outcome."""
        calls = [] if self._refusals is None else [call for call in self._refusals.held if call.is_awaited]
        calls += self._held
        for communicator in self._communicators.values():
            for collective in communicator.pending.values():
                calls += [call for call in collective.calls if call is not None]
        for channel in self.queue.values():
            calls += channel.receivers
            calls += [call for call in channel.sent if not call.settled]
        return [call for call in calls if not call.settled]  # after an error, those that it ended are still there

    def mark_unreceived(self, call: Any) -> None:
        """Note a message that was delivered to a receive whose task was cancelled before it could go on."""
        self._undelivered.append(RawCall("send", call.owner.stream.peer, call.outcome, call.carried))

    def unreceived(self) -> list[Call]:
        """Return the sends that nobody has received."""
        return [*self._undelivered, *(call for channel in self.queue.values() for call in channel.sent)]

    async def all_reduce(self, rank: int, inp: Any, time: float, *, group: Iterable[int] | None = None) -> Any:
        """Sum a value over all ranks.

        Returns:
            The sum, and the latest of the ranks' times.
        """
        return await self._collective("all_reduce", rank, inp, time, group)

    async def all_gather(self, rank: int, inp: Any, time: float, *, group: Iterable[int] | None = None) -> Any:
        """Combine the shards of all ranks.

        Returns:
            The combination, and the latest of the ranks' times.
        """
        return await self._collective("all_gather", rank, inp, time, group)

    async def reduce_scatter(self, rank: int, inp: Any, time: float, *, group: Iterable[int] | None = None) -> Any:
        """Sum a value over all ranks and keep this rank's shard.

        Returns:
            The shard, and the latest of the ranks' times.
        """
        return await self._collective("reduce_scatter", rank, inp, time, group)

    def _collective(self, op: str, rank: int, inp: Any, time: float, group: Iterable[int] | None) -> RawCall:
        """Start a collective of a group."""
        communicator = self.world if group is None else self.communicator(group)
        call = RawCall(op, rank, inp, time)
        if communicator.size == 1:
            call.settle_all([call], [inp], time, rank, 0)
        else:
            communicator.join(communicator.index_of(rank), call)
        return call

    async def send(self, rank_source: int, rank_dest: int, v: Any, *, tag: Any = None) -> None:
        """Send a value to another rank; wait while too many are unreceived."""
        call = RawCall("send", rank_source, v, 0.0)
        self.put(self.channel(rank_source, rank_dest, tag), call)
        await call

    async def receive(self, rank_source: int, rank_dest: int, *, tag: Any = None) -> Any:
        """Return the oldest value that another rank sent and nobody received."""
        call = RawCall("recv", rank_dest, None, 0.0)
        self.get(self.channel(rank_source, rank_dest, tag), call)
        value, _ = await call
        return value


def _members(ranks: Iterable[int]) -> tuple[int, ...]:
    """Return the members of a group in ascending order, each once.

    Raises:
        UsageError: one is no integer.
    """
    try:
        return tuple(sorted({operator.index(rank) for rank in ranks}))
    except TypeError:
        raise UsageError(
            "a group must be a list of ranks, which are integers, such as [0, 1] or mesh.group('dp'), got "
            f"{ranks!r:.80}",
            ranks=ranks,
        ) from None


def _running_task() -> asyncio.Task[Any] | None:
    """Return the task that runs now; None in a callback, and in a coroutine that Python closes after its loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
