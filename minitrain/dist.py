"""The transport: where ranks meet. It carries values and clocks, and knows nothing of seconds per byte.

Collectives are matched by their place in a group's order: the k-th collective that a rank starts in a group meets the
k-th of every other member, and starts at the latest of their clocks. A message carries its sender's clock. Waiting is
done on futures, one suspension a rank and operation.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from minitrain.barrier import Barrier
from minitrain.calls import Call, RawCall
from minitrain.channels import Channel
from minitrain.collectives import describe, mismatch, perform
from minitrain.errors import CollectiveMismatchError, StrategyError, UsageError, require_count
from minitrain.events import COMM, Stream
from minitrain.places import places_of, present_place
from minitrain.waiting import wake_soon
from minitrain.watch import Watch


class Meeting:
    """One collective of a group while its members arrive."""

    __slots__ = ("agrees", "calls", "detail", "missing", "op")

    def __init__(self, size: int, first: Call) -> None:
        self.calls: list[Call | None] = [None] * size
        self.missing = size
        self.op = first.op
        self.detail = first.detail
        self.agrees = True


class Communicator:
    """The part of the transport that the ranks of one group share.

    Attributes:
        ranks: the members in ascending order.
        size: number of members.
        whole: whether it spans the world.
        meetings: collectives that some members have started and others not, by their place in the group's order.
        barrier: the specified barrier, which shows how many members wait in `Model.barrier`.
        stream: what events say of it.
        free: when the group's stream has done all it was given, s; kept for those who price.
    """

    __slots__ = ("_indices", "_places", "barrier", "dist", "free", "meetings", "ranks", "size", "stream", "whole")

    def __init__(self, dist: Dist, ranks: tuple[int, ...], barrier: Barrier, *, whole: bool) -> None:
        self.dist = dist
        self.ranks = ranks
        self.size = len(ranks)
        self.whole = whole
        self.stream = Stream(COMM, None if whole else ranks)
        self.free = 0.0
        self.meetings: dict[int, Meeting] = {}
        self.barrier = barrier
        self._places = [0] * self.size
        self._indices = None if whole else {rank: index for index, rank in enumerate(ranks)}

    def index_of(self, rank: int) -> int:
        """Return a member's place in the group.

        Raises:
            UsageError: the rank is not a member.
        """
        if self.whole and (self.size == 1 or 0 <= rank < self.size):
            return rank if self.size > 1 else 0  # in a world of one, the rank may have any number
        if self._indices is None or rank not in self._indices:
            raise UsageError(f"rank {rank} is not in the group {self.ranks}", rank=rank, group=self.ranks)
        return self._indices[rank]

    def join(self, index: int, call: Call) -> None:
        """Let a member take part in its next collective; the last one to come settles it for all.

        Raises:
            StrategyError: the transport was closed by an error.
            LawError: the members' calls do not belong together; that closes the transport.
        """
        dist = self.dist
        if dist.error is not None:
            dist.refuse()
        watch = dist.watch
        watch.operations += 1
        place = self._places[index]
        self._places[index] = place + 1
        meeting = self.meetings.get(place)
        if meeting is None:
            meeting = self.meetings[place] = Meeting(self.size, call)
            watch.begin()
        elif call.op != meeting.op or call.detail != meeting.detail:
            meeting.agrees = False
        meeting.calls[index] = call
        meeting.missing = missing = meeting.missing - 1
        if call.op == "barrier":
            self.barrier.counter = (self.size - missing) % self.size
        if not missing:
            try:
                self._settle(meeting, call)
            except Exception as error:
                dist.close(error)
                raise
            del self.meetings[place]
        elif not watch.looking:
            watch.begin()

    def _settle(self, meeting: Meeting, last_call: Call) -> None:
        """Give every member its result, and wake those that wait."""
        calls: list[Call] = meeting.calls  # type: ignore[assignment]  # nobody is missing
        if not meeting.agrees:
            raise self._mismatch(calls, last_call)
        try:
            results = perform(meeting.op, [call.value for call in calls], self.ranks, meeting.detail, whole=self.whole)
        except CollectiveMismatchError as error:
            raise self._located(error, calls, last_call) from None
        clocks = [call.clock for call in calls]
        start = max(clocks)
        last = self.ranks[clocks.index(start)]
        kinds: set[type[Call]] = set(map(type, calls))
        if len(kinds) == 1:
            calls[0].settle_all(calls, results, clocks, start, last)
        else:  # some came through `Dist` itself, others through their model
            for kind in kinds:
                places = [place for place, call in enumerate(calls) if type(call) is kind]
                kind.settle_all(
                    [calls[place] for place in places],
                    [results[place] for place in places],
                    [clocks[place] for place in places],
                    start,
                    last,
                )
        wake_soon([call.waiters for call in calls if call.waiters is not None])

    def _mismatch(self, calls: list[Call], last_call: Call) -> Exception:
        """Return the error for members that started different operations."""
        roots = ["" if call.detail is None else f" from rank {call.detail}" for call in calls]
        places = _called_at(calls, last_call)
        brought = [f"{call.describe()}{root} ({at})" for call, root, at in zip(calls, roots, places, strict=True)]
        return mismatch("a group", brought, self.ranks, "must start the same collectives in the same order")

    def _located(self, error: CollectiveMismatchError, calls: list[Call], last_call: Call) -> Exception:
        """Return the error for members that brought different tensors, with the lines where they did."""
        places = _called_at(calls, last_call)
        brought = [f"{describe(call.value)} ({at})" for call, at in zip(calls, places, strict=True)]
        return mismatch(error.op, brought, self.ranks, error.rule)


def _called_at(calls: Sequence[Call], last_call: Call) -> list[str]:
    """Return where each member called, the last one just now; what was launched waits nowhere."""
    found = places_of(calls)
    return [present_place() if call is last_call else found.get(call, "launched before") for call in calls]


def members_of(ranks: Iterable[int]) -> tuple[int, ...]:
    """Return the members of a group in ascending order, each once.

    Raises:
        UsageError: one is no integer.
    """
    try:
        return tuple(sorted({operator.index(rank) for rank in ranks}))
    except TypeError:
        raise UsageError(f"a group is made of ranks, which are integers; got {ranks!r:.80}", ranks=ranks) from None


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
        members = members_of(ranks)
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
