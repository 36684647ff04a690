"""The transport: where ranks meet. It carries values and clocks, and knows nothing of seconds per byte.

Collectives meet in the communicator of their group, messages in the channel of source, destination and tag; a message
carries its sender's clock. Waiting is done on futures, one suspension a rank and operation.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NoReturn

from minitrain.errors import StrategyError, UsageError, require_count
from minitrain.transport.barrier import Barrier
from minitrain.transport.calls import Call, RawCall
from minitrain.transport.channels import Channel
from minitrain.transport.communicator import Communicator
from minitrain.transport.deadlocks import Watch
from minitrain.transport.waiting import wake_soon


class Dist:
    """The transport of one run.

    Args:
        world_size: number of ranks.
        p2p_buffer: untagged messages that may lie unreceived before a blocking send waits, None for no bound. It
            costs no logical time.

    Attributes:
        barrier: the world's barrier.
        queue: channels by (source, dest), made when first used, or by (source, dest, tag) while a message is under way.
    """

    def __init__(self, world_size: int, *, p2p_buffer: int | None = 1) -> None:
        require_count("world_size", world_size)
        if p2p_buffer is not None:
            require_count("p2p_buffer", p2p_buffer)
        self.world_size = world_size
        self.p2p_buffer = p2p_buffer
        self.barrier = Barrier(world_size)
        self.queue: dict[tuple[Any, ...], Channel] = {}
        self.whole_batches: dict[int, dict[int, frozenset[int]]] = {}  # by size and identity, for the ranks' models
        self.error: BaseException | None = None
        self._lost: list[Call] = []
        self.watch = Watch(self)
        self.world = Communicator(self, tuple(range(world_size)), self.barrier, whole=True)
        self._communicators: dict[tuple[int, ...], Communicator] = {self.world.ranks: self.world}
        self._lattices: dict[tuple[Any, ...], Communicator] = {}

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
            found = Communicator(self, members, Barrier(len(members)), whole=False)
            self._communicators[members] = found
        return found

    def lattice(self, lowest: int, spans: tuple[tuple[int, int], ...]) -> Communicator:
        """Return what the ranks along some axes of a mesh share; their list is made once a group, not once a rank.

        Args:
            lowest: the lowest rank.
            spans: stride and size of each axis.
        """
        found = self._lattices.get((lowest, spans))
        if found is None:
            ranks = [lowest]
            for stride, size in spans:
                ranks = [rank + place * stride for rank in ranks for place in range(size)]
            found = self._lattices[lowest, spans] = self.communicator(ranks)
        return found

    def channel(self, source: int, dest: int, tag: Any = None) -> Channel:
        """Return the messages from one rank to another under one tag.

        Raises:
            UsageError: source and dest are not two different ranks of this world.
        """
        key = (source, dest) if tag is None else (source, dest, tag)
        found = self.queue.get(key)
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
        self._begin()
        channel.put(call)
        if channel.passing is not None:
            self._let_go(channel)
        if not call.settled:
            self.watch.begin()

    def get(self, channel: Channel, call: Call) -> None:
        """Ask for a message."""
        self._begin()
        channel.get(call)
        if channel.passing is not None:
            self._let_go(channel)
        if not call.settled:
            self.watch.begin()

    def _let_go(self, channel: Channel) -> None:
        """Forget the channel of a tag when nothing lies there and nobody waits."""
        if not channel.sent and not channel.receivers:
            self.queue.pop(channel.passing, None)  # type: ignore[arg-type]  # it has a key, or it would stay

    def _begin(self) -> None:
        """Count an operation; raise a StrategyError after a run that failed."""
        self.watch.operations += 1
        if self.error is not None:
            self.refuse()

    def refuse(self) -> NoReturn:
        """Raise a StrategyError: this transport was closed."""
        raise StrategyError(
            f"this Dist was closed by an error ({type(self.error).__name__}); make a new one for another run"
        ) from self.error

    def close(self, error: BaseException) -> None:
        """End every waiting call with an error; nothing can be called afterwards."""
        if self.error is not None:
            return
        self.error = error
        calls = self.waiting()
        for call in calls:
            call.fail(error)
        wake_soon([call.waiters for call in calls])

    def waiting(self) -> list[Call]:
        """Return every call that is not settled."""
        calls = []
        for communicator in self._communicators.values():
            for meeting in communicator.meetings.values():
                calls += [call for call in meeting.calls if call is not None]
        for channel in self.queue.values():
            calls += channel.receivers
            calls += [call for call in channel.sent if not call.settled]
        return calls

    def lose(self, call: Any) -> None:
        """Note a message that came to a receive whose task was cancelled before it could go on."""
        self._lost.append(RawCall("send", call.owner.stream.peer, call.outcome, call.carried))

    def unreceived(self) -> list[Call]:
        """Return the sends that nobody has received."""
        return [*self._lost, *(call for channel in self.queue.values() for call in channel.sent)]

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
            call.settle_all([call], [inp], [time], time, rank)
        else:
            communicator.join(communicator.index_of(rank), call)
        return call

    async def send(self, rank_source: int, rank_dest: int, v: Any, *, tag: Any = None) -> None:
        """Send a value to another rank; wait while too many lie there unreceived."""
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
        raise UsageError(f"a group is made of ranks, which are integers; got {ranks!r:.80}", ranks=ranks) from None
