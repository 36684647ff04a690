"""The interface between a `Model` and its transport, so that other transports than `Dist` can carry the same ranks.

`Dist` runs all ranks in one process and one event loop. Real processes (torch.distributed) can come later as a second
implementation. A model therefore uses only what is declared here. It never touches asyncio itself: where its task has
to wait, it yields what `suspend` returns, and it wakes tasks by `wake`. Who starts and ends the tasks of the ranks
(`minitrain.run.rank_tasks`) also uses the deadlock detector, `error`, `close` and `unreceived` of `Dist`.

A model hands its operations over as calls (see `minitrain.engine.transport.calls.Call`). The transport matches the
calls of different ranks, makes their results, and settles each call. It knows clocks and values, and no prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from minitrain.engine.transport.calls import Call
from minitrain.engine.transport.waiting import Waiter, Waiters
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
