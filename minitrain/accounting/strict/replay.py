"""Whether the times in the logs of a run are what the clock arithmetic gives.

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
from minitrain.events import COMM, NOTE, ON_COMPUTE, PRICE, RECV, SEND, STREAM, STRIDE, TIME, TYP, Stream
from minitrain.events import LAUNCHED as LAUNCHED_AT
from minitrain.hardware.price import PENDING
from minitrain.rank.model import Model


class Column:
    """One rank's part in the collectives of a group, in the order in which it started them.

    Attributes:
        rank: whose.
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


class Message:
    """One rank's part in a message that was settled.

    Args:
        rank: whose.
        stream: which it took.
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


class Replay:
    """The communications of a run, rank by rank, as `play` found them in the logs.

    Attributes:
        columns: of collectives, by group and rank.
        messages: what was sent and received.
        num_operations: how many operations the transport must have carried out.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.columns: dict[tuple[int, ...] | None, dict[int, Column]] = {}
        self.messages: list[Message] = []
        self.num_operations = 0

    def play(self, model: Model) -> None:
        """Go through the compute stream of a rank, and note its communications.

        Raises:
            StrategyError: an operation did not begin when the one before it was over.
        """
        rows, rank, clock = model.log.rows, model.rank, 0.0
        awaits: dict[int, float] = {}  # the latest end of what was awaited later, by the place of the next event
        columns = (rows[column::STRIDE] for column in (STREAM, TIME, PRICE, LAUNCHED_AT))
        for place, (stream, time, price, launched) in enumerate(zip(*columns, strict=True)):
            if awaits and awaits.get(place, 0.0) > clock:
                clock = awaits[place]
            if launched != clock:
                raise tampered(rank, f"the launch of event {place}", launched, clock)
            if stream is ON_COMPUTE:
                if time != clock:
                    raise tampered(rank, f"the start of event {place}", time, clock)
                clock += price.seconds
            else:
                clock = max(clock, self._note(rank, rows, place, awaits))
        clock = max(clock, awaits.get(len(model.log), 0.0))
        if model.time != clock:
            raise tampered(rank, "model.time at the end", model.time, clock)

    def _note(self, rank: int, rows: Sequence[Any], place: int, awaits: dict[int, float]) -> float:
        """Note a communication, and return when the rank went on if it awaited the end at once, s; otherwise 0."""
        row = place * STRIDE
        stream, time, price, note = rows[row + STREAM], rows[row + TIME], rows[row + PRICE], rows[row + NOTE]
        end: float | None = None if price is PENDING else time + price.seconds
        if stream.kind == COMM:
            self._column(rank, stream.group).add(rows[row + LAUNCHED_AT], time, end, rows[row + TYP])
        else:
            self.num_operations += 1
            if end is not None:
                tag = None if note is None else note.tag
                self.messages.append(Message(rank, stream, tag, rows[row + LAUNCHED_AT], time, end))
        if end is None:
            return 0.0
        if note is None or not note.overlaps:
            return end
        if note.awaited is not None:
            awaits[note.awaited] = max(awaits.get(note.awaited, 0.0), end)
        return 0.0

    def _column(self, rank: int, group: tuple[int, ...] | None) -> Column:
        """Return the column for a rank's next collective in a group; a group of one needs no transport."""
        if (self.world_size if group is None else len(group)) > 1:
            self.num_operations += 1
        members = self.columns.setdefault(group, {})
        column = members.get(rank)
        if column is None:
            column = members[rank] = Column(rank)
        return column

    def check_collectives(self) -> None:
        """Check when collectives began: each meets those at the same place of its group's order.

        Raises:
            StrategyError: one began at another time.
        """
        for members in self.columns.values():
            columns = [*members.values()]
            free = 0.0
            starts: list[float | None] = []
            # what not all have started was never carried out
            for end, *launched in zip(columns[0].ends, *(column.launched for column in columns), strict=False):
                if end is None:
                    starts.append(None)
                else:
                    starts.append(max(free, *launched))
                    free = end
            for column in columns:
                if column.times[: len(starts)] != starts:
                    _require_starts(column, starts)

    def check_messages(self) -> None:
        """Check when sends and receives began: each receive gets the message at its place of its channel's order.

        Raises:
            StrategyError: one began at another time.
        """
        sent: dict[Hashable, list[float]] = defaultdict(list)
        for message in self.messages:
            if message.kind == SEND:
                sent[message.channel].append(message.time)
        free: dict[Hashable, float] = defaultdict(float)
        taken: Counter[Hashable] = Counter()
        for message in self.messages:
            stream = message.rank, message.kind, message.peer
            start = max(message.launched, free[stream])
            if message.kind == RECV:
                times, place = sent[message.channel], taken[message.channel]
                start = max(start, times[place] if place < len(times) else 0.0)
                taken[message.channel] += 1
            if message.time != start:
                raise tampered(message.rank, f"the start of a {message.kind}", message.time, start)
            free[stream] = message.end


def _require_starts(column: Column, starts: Sequence[float | None]) -> None:
    """Require that a rank's collectives began when they could; those without a time were never settled."""
    for time, start, typ in zip(column.times, starts, column.types, strict=False):
        if start is not None and time != start:
            raise tampered(column.rank, f"the start of a {typ}", time, start)


def tampered(rank: int, what: str, found: float, expected: float) -> StrategyError:
    """Return the error for a time that does not follow from the rest of the logs."""
    return StrategyError(
        f"the clock of rank {rank} does not add up: {what} is {found!r} s, and its operations give {expected!r} s; "
        "model.time and model.log are for reading",
        rank=rank,
    )
