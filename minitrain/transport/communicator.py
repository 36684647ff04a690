"""The part of the transport that the ranks of one group share: where their collectives meet.

Collectives are matched by their place in a group's order: the k-th collective that a rank starts in a group meets the
k-th of every other member, and starts at the latest of their clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minitrain.errors import CollectiveMismatchError, UsageError
from minitrain.events import COMM, Stream
from minitrain.source_lines import present_place
from minitrain.transport.barrier import Barrier
from minitrain.transport.calls import Call, places_of
from minitrain.transport.collectives import describe, mismatch, perform
from minitrain.transport.waiting import wake_soon

if TYPE_CHECKING:
    from minitrain.transport.dist import Dist


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
    """What the ranks of one group share.

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
        dist.watch.operations += 1
        place = self._places[index]
        self._places[index] = place + 1
        meeting = self.meetings.get(place)
        if meeting is None:
            meeting = self.meetings[place] = Meeting(self.size, call)
            dist.watch.begin()
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
