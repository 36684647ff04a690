"""The transport of one run in one process: collectives and messages between ranks that are tasks of one event loop.

Collectives meet in the communicator of their group, messages in the channel of their source, destination and tag. Every
call carries the clock of its rank. The transport knows nothing of seconds per byte: it gives each call its result and
the clocks of the others, and the rank prices it. Waiting is done on futures, one suspension a rank and operation.

The interface that a `Model` uses is in `minitrain.engine.transport.protocol`.
"""

from __future__ import annotations

import asyncio
import operator
from asyncio import get_running_loop
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar
from weakref import WeakSet

from minitrain.engine.transport.calls import Call, RawCall, Waiter, wake_soon
from minitrain.engine.transport.communicator import Barrier, Channel, Communicator
from minitrain.engine.transport.deadlocks import DeadlockDetector
from minitrain.errors import StrategyError, UsageError, require_count

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
        self._held: dict[Call, None] = {}  # calls that wait for results of their own rank, in the order of submission
        self._refusals: Refusals | None = None  # made when the first operation is refused
        self.detector = DeadlockDetector(self)
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
                raise UsageError(
                    f"a group needs ranks of 0..{self.world_size - 1}, at least one; got {list(members)}",
                    ranks=members,
                )
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
            ranks = [lowest]
            for stride, size in axes:
                ranks = [rank + place * stride for rank in ranks for place in range(size)]
            found = self._communicators_along[lowest, axes] = self.communicator(ranks)
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
                raise UsageError(
                    f"{name} must be a rank of 0..{self.world_size - 1}, got {rank!r}",
                    source=source,
                    dest=dest,
                )
        if source == dest:
            raise UsageError(f"rank {source} cannot send to itself; keep the tensor", source=source, dest=dest)

    def put(self, channel: Channel, call: Call) -> None:
        """Send a message."""
        if not self._begin(call):
            return
        channel.put(call)
        if channel.temporary_key is not None:
            self._drop_if_empty(channel)
        if not call.settled:
            self.detector.activate()

    def get(self, channel: Channel, call: Call) -> None:
        """Ask for a message."""
        if not self._begin(call):
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

    def _begin(self, call: Call) -> bool:
        """Count an operation, and return whether it may be carried out: not after a run that failed."""
        self.detector.num_operations += 1
        if self.error is None:
            return True
        self.refuse(call)
        return False

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

    wake = staticmethod(wake_soon)  # for calls which a model has settled

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
            call.settle_all([call], [inp], [time], time, rank, 0)
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
