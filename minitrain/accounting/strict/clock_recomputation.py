"""The check that the times in the logs of a finished run are what the clock arithmetic gives.

Every row of a log must follow from the other rows: an operation is launched when its rank's compute stream has done
what came before and awaited what it needed; a collective begins when the last member is there and the group's stream is
free; a send when its stream is free, a receive also when the message is there. Each time is checked to the last float,
so that all of them together have one solution: the run's own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from minitrain.errors import StrategyError
from minitrain.events import (
    COMM,
    HOST_MOVES,
    NOTE,
    ON_COMPUTE,
    PRICE,
    RECV,
    SEND,
    STREAM,
    STRIDE,
    TIME,
    TYP,
    Note,
    Stream,
)
from minitrain.events import LAUNCHED as LAUNCHED_AT
from minitrain.hardware.price import PENDING
from minitrain.rank.model import Model

Collective = tuple[Any, ...]
"""A rank's part in a collective: when it launched it, began and ended, s, and what it was.

The end is None for what was never settled.
"""


class MessageSide:
    """One rank's part in a message that was settled.

    Args:
        rank: the rank.
        stream: the stream that it took.
        tag: the message's tag.
        launched: when it was launched, s.
        time: when it began, s.
        end: when it ended, s.
    """

    __slots__ = ("channel", "end", "kind", "launched", "peer", "rank", "time")

    def __init__(self, rank: int, stream: Stream, tag: Hashable, launched: float, time: float, end: float) -> None:
        self.rank = rank
        self.kind = stream.kind
        self.peer = stream.peer
        self.launched = launched
        self.time = time
        self.end = end
        self.channel = (rank, stream.peer, tag) if stream.kind == SEND else (stream.peer, rank, tag)


class ClockRecomputation:
    """The communications of a run, rank by rank, as `add` finds them in the logs.

    Attributes:
        sequences: collectives of a group in the order in which a rank started them, by group and rank.
        messages: the sides of messages that were sent and received.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.sequences: dict[tuple[int, ...] | None, dict[int, list[Collective]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.messages: list[MessageSide] = []
        self._num_messages = 0
        self._host_busy_until: dict[tuple[int, str], float] = defaultdict(float)
        self._latest: tuple[Sequence[Any], int, float] | None = None  # columns, rank and clock at the end, s

    @property
    def num_operations(self) -> int:
        """How many operations the transport must have carried out; a group of one rank needs none."""
        num_collectives = sum(
            len(sequence)
            for group, members in self.sequences.items()
            for sequence in members.values()
            if (self.world_size if group is None else len(group)) > 1
        )
        return num_collectives + self._num_messages

    def add(self, model: Model) -> None:
        """Follow the compute stream of a rank, and note its communications.

        Raises:
            StrategyError: an operation did not begin when the one before it was over.
        """
        rows = model._log._rows
        columns = [rows[index::STRIDE] for index in (TYP, STREAM, TIME, PRICE, LAUNCHED_AT, NOTE)]
        clock = self._repeat(model._rank) if self._is_repeated(columns) else self._follow(model._rank, columns)
        if model.time != clock:
            raise clock_error(model._rank, "model.time at the end", model.time, clock)

    def _is_repeated(self, columns: Sequence[Any]) -> bool:
        """Return whether a rank did the same, at the same times, as the one before: collectives alone, as many do."""
        return self._latest is not None and columns == self._latest[0]

    def _repeat(self, rank: int) -> float:
        """Note that a rank took part in the collectives of the one before it, and return its clock at the end, s."""
        assert self._latest is not None
        _, before, clock = self._latest
        for members in self.sequences.values():
            if before in members:
                members[rank] = members[before]
        return clock

    def _follow(self, rank: int, columns: Sequence[Any]) -> float:
        """Follow the compute stream of a rank, note its communications, and return its clock at the end, s."""
        clock, num_own = 0.0, self._num_own
        awaits: dict[int, float] = {}  # ends of launched operations, by the index of the event after their await
        for place, (typ, stream, time, price, launched, note) in enumerate(zip(*columns, strict=True)):
            if awaits and awaits.get(place, 0.0) > clock:
                clock = awaits[place]
            if stream is ON_COMPUTE and time == launched == clock:
                clock += price.seconds
                continue
            if launched != clock:
                raise clock_error(rank, f"the launch of event {place}", launched, clock)
            if stream is ON_COMPUTE:
                raise clock_error(rank, f"the start of event {place}", time, clock)
            end = None if price is PENDING else time + price.seconds
            self._note(rank, typ, stream, note, launched, time, end)
            went_on = end if note is None else _end_of_wait(note, end, awaits)
            if went_on is not None and went_on > clock:
                clock = went_on
        clock = max(clock, awaits.get(len(columns[0]), 0.0))
        self._latest = (columns, rank, clock) if self._num_own == num_own else None
        return clock

    @property
    def _num_own(self) -> int:
        """How much was noted that belongs to one rank: its messages, and the host moves of its streams."""
        return self._num_messages + len(self._host_busy_until)

    def _note(
        self, rank: int, typ: str, stream: Stream, note: Note | None, launched: float, time: float, end: float | None
    ) -> None:
        """Note a communication."""
        if stream.kind == COMM:
            self.sequences[stream.group][rank].append((launched, time, end, typ))
        elif stream.kind in HOST_MOVES:
            self._require_host_start(rank, stream.kind, launched, time, end)
        else:
            self._num_messages += 1
            if end is not None:
                tag = None if note is None else note.tag
                self.messages.append(MessageSide(rank, stream, tag, launched, time, end))

    def _require_host_start(self, rank: int, kind: str, launched: float, time: float, end: float | None) -> None:
        """Require that a move to or from the host began when the one before it was over."""
        start = max(launched, self._host_busy_until[rank, kind])
        if time != start:
            raise clock_error(rank, f"the start of a {kind}", time, start)
        self._host_busy_until[rank, kind] = time if end is None else end

    def check_collectives(self) -> None:
        """Check when collectives began: each meets those at the same place of its group's order.

        Raises:
            StrategyError: one began at another time.
        """
        for members in self.sequences.values():
            columns: list[Any] = [(rank, *zip(*sequence, strict=True)) for rank, sequence in members.items()]
            busy_until = 0.0
            starts: list[float | None] = []
            ends = columns[0][3]
            # zip ends where some member has started no more: such a collective was never carried out
            for end, *launched in zip(ends, *(launched for _, launched, *_ in columns), strict=False):
                if end is None:
                    starts.append(None)
                else:
                    starts.append(max(busy_until, *launched))
                    busy_until = end
            for rank, _, times, _, types in columns:
                if times[: len(starts)] != tuple(starts):
                    _require_starts(rank, zip(times, starts, types, strict=False))

    def check_messages(self) -> None:
        """Check when sends and receives began: each receive gets the message at its place of its channel's order.

        Raises:
            StrategyError: one began at another time.
        """
        sent: dict[Hashable, list[float]] = defaultdict(list)
        for message in self.messages:
            if message.kind == SEND:
                sent[message.channel].append(message.time)
        busy_until: dict[Hashable, float] = defaultdict(float)
        taken: Counter[Hashable] = Counter()
        for message in self.messages:
            stream = message.rank, message.kind, message.peer
            start = max(message.launched, busy_until[stream])
            if message.kind == RECV:
                times, place = sent[message.channel], taken[message.channel]
                start = max(start, times[place] if place < len(times) else 0.0)
                taken[message.channel] += 1
            if message.time != start:
                raise clock_error(message.rank, f"the start of a {message.kind}", message.time, start)
            busy_until[stream] = message.end


def _end_of_wait(note: Note, end: float | None, awaits: dict[int, float]) -> float | None:
    """Return when a rank went on that had to wait for a communication's end at once; None if it went on before.

    Args:
        note: that of the communication's event.
        end: when it ended, s; None for what was never settled.
        awaits: ends of launched operations, by the index of the event after their await; this one may be added.
    """
    if not note.overlaps:
        return end
    if end is not None and note.awaited is not None:
        awaits[note.awaited] = max(awaits.get(note.awaited, 0.0), end)
    return None


def _require_starts(rank: int, collectives: Iterable[tuple[float, float | None, str]]) -> None:
    """Require that a rank's collectives began when they could; those without a time were never settled.

    Args:
        rank: the rank.
        collectives: when each began, when it could, and what it was.
    """
    for time, start, typ in collectives:
        if start is not None and time != start:
            raise clock_error(rank, f"the start of a {typ}", time, start)


def clock_error(rank: int, what: str, found: float, expected: float) -> StrategyError:
    """Return the error for a time that does not follow from the rest of the logs."""
    return StrategyError(
        f"the clock of rank {rank} does not add up: {what} is {found!r} s, and its operations give {expected!r} s; "
        "model.time and model.log are for reading",
        rank=rank,
    )
