"""Whether the times in the logs of a finished run are what the clock arithmetic gives.

Every row of a log must follow from the other rows: an operation is launched when its rank's compute stream has done
what came before and awaited what it needed; a collective begins when the last member is there and the group's stream is
free; a send when its stream is free, a receive also when the message is there. Each time is checked to the last float,
so that all of them together have one solution: the run's own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

from minitrain.errors import StrategyError
from minitrain.events import COMM, HOST_MOVES, NOTE, ON_COMPUTE, PRICE, RECV, SEND, STREAM, STRIDE, TIME, TYP, Stream
from minitrain.events import LAUNCHED as LAUNCHED_AT
from minitrain.hardware.price import PENDING
from minitrain.rank.model import Model


class GroupSequence:
    """One rank's part in the collectives of a group, in the order in which it started them.

    Attributes:
        rank: the rank.
        launched: when it launched each, s.
        times: when each began, s.
        ends: when each ended, s; None for what was never settled.
        types: what each was.
    """

    __slots__ = ("ends", "launched", "rank", "times", "types")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.launched: list[float] = []
        self.times: list[float] = []
        self.ends: list[float | None] = []
        self.types: list[str] = []

    def add(self, launched: float, time: float, end: float | None, typ: str) -> None:
        """Add a collective."""
        self.launched.append(launched)
        self.times.append(time)
        self.ends.append(end)
        self.types.append(typ)


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
        sequences: collectives, by group and rank.
        messages: the sides of messages that were sent and received.
        num_operations: how many operations the transport must have carried out.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.sequences: dict[tuple[int, ...] | None, dict[int, GroupSequence]] = {}
        self.messages: list[MessageSide] = []
        self.num_operations = 0
        self._host_busy_until: dict[tuple[int, str], float] = defaultdict(float)

    def add(self, model: Model) -> None:
        """Follow the compute stream of a rank, and note its communications.

        Raises:
            StrategyError: an operation did not begin when the one before it was over.
        """
        rows, rank, clock = model._log._rows, model._rank, 0.0
        awaits: dict[int, float] = {}  # ends of launched operations, by the index of the event after their await
        log_columns = (rows[index::STRIDE] for index in (STREAM, TIME, PRICE, LAUNCHED_AT))
        for place, (stream, time, price, launched) in enumerate(zip(*log_columns, strict=True)):
            if awaits and awaits.get(place, 0.0) > clock:
                clock = awaits[place]
            if launched != clock:
                raise clock_error(rank, f"the launch of event {place}", launched, clock)
            if stream is ON_COMPUTE:
                if time != clock:
                    raise clock_error(rank, f"the start of event {place}", time, clock)
                clock += price.seconds
            else:
                clock = max(clock, self._note(rank, rows, place, awaits))
        clock = max(clock, awaits.get(len(model._log), 0.0))
        if model.time != clock:
            raise clock_error(rank, "model.time at the end", model.time, clock)

    def _note(self, rank: int, rows: Sequence[Any], place: int, awaits: dict[int, float]) -> float:
        """Note a communication, and return when the rank went on if it awaited the end at once, s; otherwise 0."""
        row = place * STRIDE
        stream, time, price, note = rows[row + STREAM], rows[row + TIME], rows[row + PRICE], rows[row + NOTE]
        end: float | None = None if price is PENDING else time + price.seconds
        if stream.kind in HOST_MOVES:
            self._require_host_start(rank, stream.kind, rows[row + LAUNCHED_AT], time, price.seconds)
        elif stream.kind == COMM:
            self._sequence(rank, stream.group).add(rows[row + LAUNCHED_AT], time, end, rows[row + TYP])
        else:
            self.num_operations += 1
            if end is not None:
                tag = None if note is None else note.tag
                self.messages.append(MessageSide(rank, stream, tag, rows[row + LAUNCHED_AT], time, end))
        if end is None:
            return 0.0
        if note is None or not note.overlaps:
            return end
        if note.awaited is not None:
            awaits[note.awaited] = max(awaits.get(note.awaited, 0.0), end)
        return 0.0

    def _require_host_start(self, rank: int, kind: str, launched: float, time: float, seconds: float) -> None:
        """Require that a move to or from the host began when the one before it was over."""
        start = max(launched, self._host_busy_until[rank, kind])
        if time != start:
            raise clock_error(rank, f"the start of a {kind}", time, start)
        self._host_busy_until[rank, kind] = time + seconds

    def _sequence(self, rank: int, group: tuple[int, ...] | None) -> GroupSequence:
        """Return the sequence for a rank's next collective in a group; a group of one needs no transport."""
        if (self.world_size if group is None else len(group)) > 1:
            self.num_operations += 1
        members = self.sequences.setdefault(group, {})
        sequence = members.get(rank)
        if sequence is None:
            sequence = members[rank] = GroupSequence(rank)
        return sequence

    def check_collectives(self) -> None:
        """Check when collectives began: each meets those at the same place of its group's order.

        Raises:
            StrategyError: one began at another time.
        """
        for members in self.sequences.values():
            sequences = [*members.values()]
            busy_until = 0.0
            starts: list[float | None] = []
            # zip ends where some member has started no more: such a collective was never carried out
            for end, *launched in zip(sequences[0].ends, *(sequence.launched for sequence in sequences), strict=False):
                if end is None:
                    starts.append(None)
                else:
                    starts.append(max(busy_until, *launched))
                    busy_until = end
            for sequence in sequences:
                if sequence.times[: len(starts)] != starts:
                    _require_starts(sequence, starts)

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


def _require_starts(sequence: GroupSequence, starts: Sequence[float | None]) -> None:
    """Require that a rank's collectives began when they could; those without a time were never settled."""
    for time, start, typ in zip(sequence.times, starts, sequence.types, strict=False):
        if start is not None and time != start:
            raise clock_error(sequence.rank, f"the start of a {typ}", time, start)


def clock_error(rank: int, what: str, found: float, expected: float) -> StrategyError:
    """Return the error for a time that does not follow from the rest of the logs."""
    return StrategyError(
        f"the clock of rank {rank} does not add up: {what} is {found!r} s, and its operations give {expected!r} s; "
        "model.time and model.log are for reading",
        rank=rank,
    )
