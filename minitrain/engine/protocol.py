"""The interface between a `Model` and its transport, so that other transports than `Dist` can carry the same ranks.

A model hands its operations over as calls: one rank's part in each (`Call`). The transport matches the calls of
different ranks, makes their results, and settles each call. It knows clocks and values, and no prices. Process groups
(`Group`) say who takes part in a collective, and a `Mesh` names them by axis.

`Dist` runs all ranks in one process and one event loop; the transport of `minitrain.training.wire` carries one rank of
real processes. A model uses only what is declared here. It never touches asyncio itself: where its task has to wait, it
yields what `suspend` returns, and it wakes tasks by `wake`. Who starts and ends the tasks of the ranks
(`minitrain.run.rank_tasks`) also uses the deadlock detector, `error`, `close` and `unreceived` of `Dist`.

Tasks wait on a future each (`Waiter`), and nothing is polled. A future shared by several tasks would be simpler, but
cancelling one of these tasks would cancel all of them. Setting futures one by one would cost a callback of the event
loop each, so all tasks that a collective releases are resumed within one callback.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from asyncio import Future, get_running_loop
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from typing import Any, Literal, Protocol, overload

from minitrain.engine.event_loop import RankTask
from minitrain.errors import UsageError, require_count
from minitrain.operations import COMM, Stream
from minitrain.source_lines import UNKNOWN_PLACE, place_of, waits_in
from minitrain.tensors import clone


class ProcessGroup(ABC):
    """What the ranks of one group share: the point where their collectives meet.

    Args:
        ranks: the members in ascending order.
        is_world: whether all ranks of the run are members.

    Attributes:
        size: number of members.
        stream: the stream that the events of the group's collectives name.
        busy_until: when the stream has finished all it was given, s; kept here for whoever prices collectives.
    """

    def __init__(self, ranks: tuple[int, ...], *, is_world: bool) -> None:
        self.ranks = ranks
        self.size = len(ranks)
        self.is_world = is_world
        self.stream = Stream(COMM, None if is_world else ranks)
        self.busy_until = 0.0
        self._indices = None if is_world else {rank: index for index, rank in enumerate(ranks)}

    def index_of(self, rank: int) -> int:
        """Return a member's place in the group.

        Raises:
            UsageError: the rank is not a member.
        """
        if self.is_world and (self.size == 1 or 0 <= rank < self.size):
            return rank if self.size > 1 else 0  # in a world of one, the rank may have any number
        if self._indices is None or rank not in self._indices:
            raise UsageError(f"rank {rank} is not in the group {self.ranks}", rank=rank)
        return self._indices[rank]

    @abstractmethod
    def join(self, index: int, call: Call) -> None:
        """Start the next collective of one member; the k-th of each member belong together.

        Raises:
            StrategyError, CancelledError: the transport was closed by an error.
            LawError: the members' calls do not belong together; that closes the transport.
        """


def ranks_along(lowest: int, axes: tuple[tuple[int, int], ...]) -> list[int]:
    """Return the ranks along some axes of a mesh.

    Args:
        lowest: the lowest rank.
        axes: stride and size of each axis.

    >>> ranks_along(1, ((4, 2), (2, 2)))
    [1, 3, 5, 7]
    """
    ranks = [lowest]
    for stride, size in axes:
        ranks = [rank + place * stride for rank in ranks for place in range(size)]
    return ranks


class Transport(Protocol):
    """What connects the ranks of one run."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def world(self) -> ProcessGroup:
        """The group of all ranks."""

    def communicator(self, ranks: Iterable[int]) -> ProcessGroup:
        """Return the group of some ranks: the same object for each member in this process.

        Raises:
            UsageError: no rank is given, or one is not of this world.
        """

    def communicator_along(self, lowest: int, axes: tuple[tuple[int, int], ...]) -> ProcessGroup:
        """Return the group of the ranks along some axes of a mesh.

        Args:
            lowest: the lowest rank.
            axes: stride and size of each axis.
        """

    def channel(self, source: int, dest: int, tag: Any = None) -> Any:
        """Return what `put` and `get` need to find the messages from one rank to another under one tag.

        Raises:
            UsageError: source and dest are not two different ranks of this world.
        """

    def put(self, channel: Any, call: Call) -> None:
        """Send the value of a call; settle the call once the transport has accepted the message."""

    def get(self, channel: Any, call: Call) -> None:
        """Receive the oldest message of a channel; `call.deliver` is called once it is there."""

    def mark_unreceived(self, call: Any) -> None:
        """Note a message that was delivered to a receive whose task was cancelled before it could go on."""

    def hold(self, call: Call) -> None:
        """Take note of a call that cannot meet those of other ranks yet, as it waits for a result of its own rank."""

    def release(self, call: Call) -> None:
        """Take note that a call waits no longer: it will meet those of other ranks."""

    def carry_out_soon(self, go_on: Callable[[], None]) -> None:
        """Call what carries out calls that were held, once what runs now is done; its error ends the run."""

    def suspend(self, call: Call) -> Waiter:
        """Return what the running task must yield at once, to go on when the call is settled."""

    def wake(self, waiters: Sequence[Waiters]) -> None:
        """Let the tasks go on that wait for calls which a model has settled."""


class Group:
    """Some ranks that communicate among themselves, as one of them sees it.

    Attributes:
        ranks: the members in ascending order, each once.
        size: number of members.
        index: the place of this rank among them: its shard index.
    """

    __slots__ = ("communicator", "index", "rank", "stream")

    def __init__(self, communicator: ProcessGroup, rank: int) -> None:
        self.communicator = communicator
        self.rank = rank
        self.index = communicator.index_of(rank)
        self.stream = communicator.stream

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members in ascending order."""
        return self.communicator.ranks

    @property
    def size(self) -> int:
        """Number of members."""
        return self.communicator.size

    def __repr__(self) -> str:
        return f"Group(ranks={self.ranks}, index={self.index})"


class Mesh:
    """The ranks of a run laid out on named axes, last axis fastest, as one rank sees them.

    Args:
        rank: this rank.
        axes: size of each axis, in order.
        group_of: returns this rank's group from its lowest rank and the strides and sizes of its axes.
    """

    def __init__(
        self, rank: int, axes: Mapping[str, int], group_of: Callable[[int, tuple[tuple[int, int], ...]], Group]
    ) -> None:
        self._rank = rank
        self.axes = dict(axes)
        self._group_of = group_of
        self._strides: dict[str, int] = {}
        stride = 1
        for axis, size in reversed(self.axes.items()):
            self._strides[axis] = stride
            stride *= size

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    def size(self, axis: str) -> int:
        """Return the number of ranks along an axis."""
        self._require(axis)
        return self.axes[axis]

    def coord(self, axis: str) -> int:
        """Return this rank's place along an axis, 0 to size - 1."""
        self._require(axis)
        return self._rank // self._strides[axis] % self.axes[axis]

    def group(self, *axes: str) -> Group:
        """Return the group of ranks that differ from this one along the given axes alone."""
        lowest, spans = self._rank, []
        for axis in dict.fromkeys(axes):
            lowest -= self.coord(axis) * self._strides[axis]
            spans.append((self._strides[axis], self.axes[axis]))
        return self._group_of(lowest, tuple(spans))

    @overload
    def peer(self, axis: str, offset: int, *, wrap: Literal[True]) -> int: ...
    @overload
    def peer(self, axis: str, offset: int, *, wrap: bool = False) -> int | None: ...
    def peer(self, axis: str, offset: int, *, wrap: bool = False) -> int | None:
        """Return the rank `offset` places further along an axis, or None beyond its end unless it wraps."""
        size, coord = self.size(axis), self.coord(axis)
        place = coord + offset
        if wrap:
            place %= size
        if not 0 <= place < size:
            return None
        return self._rank + (place - coord) * self._strides[axis]

    def _require(self, axis: str) -> None:
        """Raise a UsageError for an axis that the mesh does not have."""
        if axis not in self.axes:
            raise UsageError(f"the mesh has no axis {axis!r}; its axes are {', '.join(self.axes)}")

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{axis}={size}' for axis, size in self.axes.items())}, rank={self._rank})"


def require_axes(axes: Mapping[str, int], world_size: int) -> None:
    """Raise a UsageError unless the axes are positive counts whose product is world_size."""
    for axis, size in axes.items():
        require_count(f"axis {axis} of a mesh", size)
    product = math.prod(axes.values())
    if product != world_size:
        shape = " x ".join(f"{axis}={size}" for axis, size in axes.items()) or "no axes"
        message = f"the product of a mesh's axes must be world_size ({world_size}), got {shape} = {product}"
        raise UsageError(message, world_size=world_size)


class Call(ABC):
    """What a rank asks of the transport: an operation, its value, and the clock at which the rank was ready.

    The transport settles a call once, with its result or with an error. Tasks that await the call go on then.

    Attributes:
        op: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, barrier, send or recv.
        rank: who calls.
        value: what it brings.
        clock: when it was ready, s.
        detail: what else must agree between the callers (the root of a broadcast, an algorithm), or None.
        settled: whether the call has its result or an error.
        outcome: its result, once it is settled.
        error: why there is none, or None.
        waiters: the futures on which tasks wait for the call.
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
    def settle_all(calls: Sequence[Any], results: Sequence[Any], start: float, last: int, largest_bytes: int) -> None:
        """Settle the calls of one collective whose ranks run in this process: all are of this class.

        What a call needs to know of the other members is in the arguments, so that one call can be settled alone.
        Several calls are settled at once for speed, and only because what they compute is the same for all of them.

        Args:
            calls: in rank order.
            results: one for each call.
            start: when the last member of the group was ready, s.
            last: the lowest rank of the group that was ready then.
            largest_bytes: the most that a member sends in an exchange of different tensors (all_to_all), else 0.
        """

    @staticmethod
    def latest(clocks: Sequence[float], ranks: Sequence[int]) -> tuple[float, int]:
        """Return when the last member of a group was ready, s, and the lowest rank that was ready then.

        Args:
            clocks: when each member was ready, s.
            ranks: the members.
        """
        start = max(clocks)
        return start, ranks[clocks.index(start)]

    @abstractmethod
    def sent_bytes(self) -> int:
        """Return the bytes that the call's value puts on the wire, 0 if the caller does not price it."""

    @abstractmethod
    def deliver(self, value: Any, sent: float) -> None:
        """Take the message that was sent at `sent`, s, and wake those that wait for it."""

    @abstractmethod
    def describe(self) -> str:
        """Return the operation in words, for error messages."""

    def fail(self, error: BaseException) -> None:
        """End the call with an error."""
        self.settled = True
        self.error = error

    def live_waiters(self) -> Iterator[Waiter]:
        """Yield the futures on which tasks still wait for this call."""
        if self.waiters is not None:
            for waiter in self.waiters if isinstance(self.waiters, list) else (self.waiters,):
                if not waiter.done():
                    yield waiter

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits for the call now."""
        waiters = self.waiters
        if isinstance(waiters, list):
            return any(self.live_waiters())
        return waiters is not None and not waiters.done()

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody wants the outcome any more: tasks have awaited the call, and all of them were cancelled."""
        return self.waiters is not None and not self.is_awaited

    def add_waiter(self, waiter: Waiter) -> Waiter:
        """Let one more task wait for the call, and return what it must yield at once."""
        self.waiters = waiter if self.waiters is None else [*self.live_waiters(), waiter]
        return waiter.offer()


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
    def settle_all(calls: Sequence[Any], results: Sequence[Any], start: float, last: int, largest_bytes: int) -> None:  # noqa: ARG004  (only priced calls need all)
        """Keep results and start."""
        for call, result in zip(calls, results, strict=True):
            call.outcome = result
            call.start = start
            call.settled = True

    def describe(self) -> str:
        """Return the operation's name."""
        return self.op

    def sent_bytes(self) -> int:
        """Return 0: the call is not priced."""
        return 0

    def deliver(self, value: Any, sent: float) -> None:  # noqa: ARG002
        """Keep the message."""
        self.outcome = clone(value)
        self.settled = True
        wake_soon([self.waiters])

    def __await__(self) -> Generator[Any, None, tuple[Any, float]]:
        if not self.settled:
            yield self.add_waiter(Waiter(loop=get_running_loop()))
        if self.error is not None:
            raise self.error.with_traceback(None)
        return self.outcome, self.start


MOST_LINES = 16

_JOINS = ("a future", "TaskGroup.__aexit__", "_wait", "wait", "wait_for")  # what may wait for other tasks


def lines_of_calls(calls: Iterable[Call]) -> list[str]:
    """Return a line for each call that is awaited, in the order of ranks."""
    awaited = sorted((call for call in calls if call.is_awaited), key=lambda call: call.rank)
    places = ((call, place_of_call(call)) for call in awaited)
    return [
        f"  rank {call.rank} at {call.clock:.6g} s: {call.describe()}" + ("" if place is None else f" ({place})")
        for call, place in places
    ]


def place_of_call(call: Call) -> str | None:
    """Return the line at which a call of the transport is awaited, None if no task awaits it."""
    return next((_place(waiter.task) for waiter in call.live_waiters() if waiter.task is not None), None)


def _place(task: asyncio.Task[Any]) -> str:
    """Return the line of the strategy at which a task is, or else that of the task which has made it."""
    found, maker = place_of(task.get_coro()), task.maker() if isinstance(task, RankTask) else None
    while found == UNKNOWN_PLACE and maker is not None:
        place = place_of(maker.get_coro())
        if place != UNKNOWN_PLACE:
            return f"a task that {place} awaits"
        maker = maker.maker()
    return found


def other_places(tasks: Iterable[RankTask], calls: Iterable[Call]) -> list[tuple[int, str]]:
    """Return rank, and what it waits for in words, for each task that waits for no call, nor for tasks of its own."""
    waiting = {waiter.task for call in calls for waiter in call.live_waiters()}
    unfinished = list(tasks)
    makers = {task.maker() for task in unfinished}
    found = []
    for task in unfinished:
        what = waits_in(task.get_coro())
        if task not in waiting and not (task in makers and what in _JOINS):
            found.append((task.rank, f"{what}, {_place(task)}"))
    return sorted(found)


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and one that says how many more there are."""
    if len(lines) <= MOST_LINES:
        return list(lines)
    return [*lines[:MOST_LINES], f"  ... and {len(lines) - MOST_LINES} more"]


class Waiter(Future[None]):
    """A future on which one task waits, any number of times; nothing but a cancellation ever sets it.

    A task that awaits a future asks it to call back. `Future.set_result` would have the event loop call, one callback a
    task; `wake_all` calls at once, and with another future that is done.

    Attributes:
        step: what resumes the task, and the context to do it in, from when it is offered to a task on; None otherwise.
    """

    __slots__ = ("step",)

    def __init__(self, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(loop=loop)
        self.step: tuple[Callable[[Future[None]], object], Context] | None = None

    def add_done_callback(self, step: Any, /, *, context: Any = None) -> None:
        """Keep what resumes the task, as the task asks when it begins to wait."""
        self.step = step, context

    def cancel(self, msg: Any = None) -> bool:
        """Resume the task with a cancellation; nobody waits here again."""
        step, self.step = self.step, None
        if step is None or not super().cancel(msg):
            return False
        self.get_loop().call_soon(step[0], self, context=step[1])
        return True

    def offer(self) -> Waiter:
        """Return what a task must yield at once to wait, as a future's own `await` does."""
        self.step = _OFFERED
        next(iter(self))  # yields the future itself, once it has noted that a task is to wait
        return self

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that waits now."""
        return None if self.step is None else getattr(self.step[0], "__self__", None)


_OFFERED: tuple[Callable[[Future[None]], object], Context] = (lambda _: None, Context())  # not taken by a task (yet)

Waiters = Waiter | list[Waiter] | None  # of nobody, of one task, or of several


class _NoLoop:
    """The part of an event loop that a future needs if no task waits on it."""

    def get_debug(self) -> bool:
        """Say that nobody debugs it."""
        return False


_DONE: Future[None] = Future(loop=_NoLoop())  # type: ignore[arg-type]
_DONE.set_result(None)


def wake_all(waiters: Iterable[Waiters]) -> None:
    """Wake tasks one after the other, all of them even if one leaves the loop (Ctrl-C, SystemExit).

    The next step of each task runs here, in the task's own context.
    """
    rest = iter(waiters)
    try:
        for waiter in rest:
            if waiter.__class__ is list:
                wake_all(waiter)  # several tasks await the same call
            elif waiter is not None:
                step = waiter.step  # type: ignore[union-attr]
                if step is not None:  # the task was not cancelled meanwhile
                    waiter.step = None  # type: ignore[union-attr]  # before it waits again
                    step[1].run(step[0], _DONE)
    except BaseException:
        get_running_loop().call_soon(wake_all, rest)
        raise


def wake_soon(waiters: Sequence[Waiters]) -> None:
    """Wake tasks in the next iteration of the loop, all in one callback."""
    if waiters:
        get_running_loop().call_soon(wake_all, waiters)
