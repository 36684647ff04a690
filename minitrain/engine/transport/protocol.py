"""The interface between a `Model` and its transport, so that other transports than `Dist` can carry the same ranks.

`Dist` runs all ranks in one process and one event loop. Real processes (torch.distributed) can come later as a second
implementation. A model therefore uses only what is declared here. It never touches asyncio itself: where its task has
to wait, it yields what `suspend` returns, and it wakes tasks by `wake`. Who starts and ends the tasks of the ranks
(`minitrain.run.rank_tasks`) also uses the deadlock detector, `error`, `close` and `unreceived` of `Dist`.

A model hands its operations over as calls (see `minitrain.engine.transport.calls.Call`). The transport matches the
calls of different ranks, makes their results, and settles each call. It knows clocks and values, and no prices.

Process groups: who takes part in a collective, and a mesh that names them by axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, overload

from minitrain.engine.transport.calls import Call, Waiter, Waiters
from minitrain.errors import UsageError
from minitrain.operations import Stream


class ProcessGroup(Protocol):
    """What the ranks of one group share: the point where their collectives meet.

    Attributes:
        busy_until: when the group's stream has finished all it was given, s; kept by whoever prices collectives.
    """

    busy_until: float

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members in ascending order."""
        ...

    @property
    def size(self) -> int:
        """Number of members."""
        ...

    @property
    def is_world(self) -> bool:
        """Whether all ranks of the run are members."""
        ...

    @property
    def stream(self) -> Stream:
        """The stream that the events of the group's collectives name."""
        ...

    def index_of(self, rank: int) -> int:
        """Return a member's place in the group.

        Raises:
            UsageError: the rank is not a member.
        """
        ...

    def join(self, index: int, call: Call) -> None:
        """Start the next collective of one member; the k-th of each member belong together.

        Raises:
            StrategyError, CancelledError: the transport was closed by an error.
            LawError: the members' calls do not belong together; that closes the transport.
        """
        ...


class Transport(Protocol):
    """What connects the ranks of one run."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def world(self) -> ProcessGroup:
        """The group of all ranks."""
        ...

    def communicator(self, ranks: Iterable[int]) -> ProcessGroup:
        """Return the group of some ranks: the same object for each member in this process.

        Raises:
            UsageError: no rank is given, or one is not of this world.
        """
        ...

    def communicator_along(self, lowest: int, axes: tuple[tuple[int, int], ...]) -> ProcessGroup:
        """Return the group of the ranks along some axes of a mesh.

        Args:
            lowest: the lowest rank.
            axes: stride and size of each axis.
        """
        ...

    def channel(self, source: int, dest: int, tag: Any = None) -> Any:
        """Return what `put` and `get` need to find the messages from one rank to another under one tag.

        Raises:
            UsageError: source and dest are not two different ranks of this world.
        """
        ...

    def put(self, channel: Any, call: Call) -> None:
        """Send the value of a call; settle the call once the transport has accepted the message."""
        ...

    def get(self, channel: Any, call: Call) -> None:
        """Receive the oldest message of a channel; `call.deliver` is called once it is there."""
        ...

    def mark_unreceived(self, call: Any) -> None:
        """Note a message that was delivered to a receive whose task was cancelled before it could go on."""
        ...

    def hold(self, call: Call) -> None:
        """Take note of a call that cannot meet those of other ranks yet, as it waits for a result of its own rank."""
        ...

    def release(self, call: Call) -> None:
        """Take note that a call waits no longer: it will meet those of other ranks."""
        ...

    def carry_out_soon(self, go_on: Callable[[], None]) -> None:
        """Call what carries out calls that were held, once what runs now is done; its error ends the run."""
        ...

    def suspend(self, call: Call) -> Waiter:
        """Return what the running task must yield at once, to go on when the call is settled."""
        ...

    def wake(self, waiters: Sequence[Waiters]) -> None:
        """Let the tasks go on that wait for calls which a model has settled."""
        ...


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
            raise UsageError(f"the mesh has no axis {axis!r}; its axes are {', '.join(self.axes)}", axis=axis)

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{axis}={size}' for axis, size in self.axes.items())}, rank={self._rank})"


def require_axes(axes: Mapping[str, int], world_size: int) -> None:
    """Raise a UsageError unless the axes are positive counts whose product is world_size."""
    for axis, size in axes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"axis {axis} of a mesh must be an integer of at least 1, got {size!r}")
    product = math.prod(axes.values())
    if product != world_size:
        shape = " x ".join(f"{axis}={size}" for axis, size in axes.items()) or "no axes"
        raise UsageError(
            f"the product of a mesh's axes must be world_size ({world_size}), got {shape} = {product}",
            axes=dict(axes),
            world_size=world_size,
        )
