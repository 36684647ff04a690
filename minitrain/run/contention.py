"""Contention between computing and communication: a finished run is timed again.

Driving a transfer takes some of the processor (copy kernels on a GPU's multiprocessors). While communication of a
network tier is in flight on a rank, the rank's compute runs at the rate 1 - processor_usage of that tier. Several tiers
in flight add up, and several transfers of one tier do not. Where prices tell what a transfer takes of the memory's
bandwidth, passes over memory run at the rate that is left of that instead: few multiprocessors saturate it.

Persistent kernels, as those of matrices on Hopper, start a block for each multiprocessor and divide their work among
them beforehand. The blocks whose multiprocessors a transfer holds start when the others have ended: the kernel takes
twice as long (measured under FSDP on H100: github.com/pytorch/pytorch, issue 143988; pull request 147966 says why).
Blackwell's blocks take the work of those that have not started (cluster launch control).

Transfers keep their duration, but where their price says that computing slows them down too, as on processors that do
both: while any of its ranks computes, such a transfer runs at the rate 1 - computing_usage. A message that takes
multiprocessors has half of the wires of its tier while its rank has launched a collective that is under way there.

Of a folded run, one rank of each class is timed again: the others of the class do the same at the same time.

The log records which operation depends on which: program order, streams, launches, awaits, messages and collectives. An
event-driven simulation of these dependencies gives the new times. Without overlap, they are the old ones to the last
float.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

from minitrain.errors import UsageError
from minitrain.machine.price import FREE, Price
from minitrain.operations import COMM, NOTE, ON_COMPUTE, PRICE, RECV, SEND, STREAM, STRIDE, TIME, WAITED_FOR, EventLog
from minitrain.operations import LAUNCHED as LAUNCHED_AT

EXACT = "exact"
"""The value of `contention` that lets transfers share links, as `minitrain.platform` does."""

_LEAST_RATE = 0.01  # computing never stops, however many tiers are in flight
_SHARE_OF_WIRES = 0.5  # of a message beside a collective
_WAVES = 2.0  # in which a persistent kernel runs: its blocks on free processors, then those that waited for the others


class TransferPart:
    """One rank's part in a communication, with the launched ones whose results it was given; rank is a log's place.

    Where its rank waits for it at once (`is_alone`), nothing is computed beside it there.
    """

    __slots__ = ("ended", "given", "is_alone", "launched", "meeting", "place", "price", "rank", "taken")

    def __init__(
        self, rank: int, place: int, price: Price, meeting: Meeting, given: list[Meeting], *, is_alone: bool
    ) -> None:
        self.rank = rank
        self.place = place
        self.meeting = meeting
        self.is_alone = is_alone
        self.given = given
        self.set_out(price)

    def set_out(self, price: Price) -> None:
        """Be not launched yet, at a price."""
        self.price = price
        self.taken = _taken(price)
        self.launched: float | None = None
        self.ended = False

    def ready_at(self) -> float:
        """Return when the rank has launched it and has what it was given, s, now that this is the case."""
        if not self.given:
            return self.launched or 0.0
        return max([self.launched or 0.0, *(made.end or 0.0 for made in self.given)])


@dataclass(slots=True, eq=False, repr=False)
class Meeting:
    """Transfers that start together: when all are launched, `after` has ended, and the send `message` has started.

    What was given the results of others starts when these have ended, too.
    """

    parts: list[TransferPart] = field(default_factory=list)
    missing: int = 0  # parts that are not launched yet
    after: Meeting | None = None
    message: Meeting | None = None
    followers: list[Meeting] = field(default_factory=list)
    begun: bool = False
    end: float | None = None
    work_s: float = 0.0  # what is left of a transfer that computing slows down, s at full rate
    since: float = 0.0
    rate: float = 1.0
    computing: int = 0  # how many of its ranks compute
    is_message: bool = False
    is_beside: bool = False  # of a collective: whether it was launched, so that messages may meet it
    slowed: bool = False
    version: int = 0

    def set_out(self) -> None:
        """Be not begun yet."""
        self.missing, self.begun, self.end = len(self.parts), False, None
        self.rate, self.computing, self.slowed, self.version = 1.0, 0, False, 0

    @property
    def shares_wires(self) -> bool:
        """Whether it is a message that takes multiprocessors, and so meets collectives on its wires."""
        return self.is_message and self.parts[0].price.processor_usage > 0

    def ready(self) -> bool:
        """Return whether the transfers can start now."""
        return (
            not self.begun
            and not self.missing
            and (self.after is None or self.after.end is not None)
            and (self.message is None or self.message.begun)
            and all(made.end is not None for part in self.parts for made in part.given)
        )


@dataclass(slots=True, eq=False, repr=False)
class _Lane:
    """The compute stream of one rank while it is timed again."""

    place: int = 0
    work_s: float | None = None  # what is left of the present operation, s at full rate
    since: float = 0.0
    slowed: bool = False  # whether the present operation ever ran at less than the full rate
    version: int = 0
    in_flight: Counter[tuple[int, float, float]] = field(default_factory=Counter)
    price: Price = FREE  # of the present operation
    rate: float = 1.0  # at which it runs
    rates: dict[tuple[Any, ...], float] = field(default_factory=dict)  # by shares and what is in flight
    awaits: dict[int, list[TransferPart]] = field(default_factory=lambda: defaultdict(list))
    computes: bool = False  # as the transfers in `carried` know it
    carried: list[Meeting] = field(default_factory=list)  # what is under way here that something slows down
    beside: Counter[int] = field(default_factory=Counter)  # launched collectives under way here, by tier

    def has_to_wait(self) -> bool:
        """Return whether a transfer has not ended that must before the present operation."""
        awaited = self.awaits.get(self.place)
        return awaited is not None and not all(transfer.ended for transfer in awaited)

    def count(self, taken: tuple[int, float, float], change: int) -> None:
        """Count a transfer that begins or ends."""
        self.in_flight[taken] += change
        if not self.in_flight[taken]:
            del self.in_flight[taken]

    def set_rate(self) -> None:
        """Set the rate at which the present operation runs, beside what is in flight."""
        if not self.in_flight:
            self.rate = 1.0
            return
        price = self.price
        persistent = min(1.0, price.persistent_s / price.seconds) if price.persistent_s else 0.0
        share = _of_memory(price)
        known = share, persistent, *self.in_flight
        if known not in self.rates:
            self.rates[known] = _rate_beside(sorted(self.in_flight), share, persistent)
        self.rate = self.rates[known]


def _rate_beside(under_way: Sequence[tuple[int, float, float]], share: float, persistent: float) -> float:
    """Return the rate of computing beside transfers.

    Args:
        under_way: the tier of each kind of them, and its shares of the processor and of the memory's bandwidth.
        share: of its time that are passes over memory.
        persistent: of its time that are persistent kernels.
    """
    left = max(1.0 - sum(usage for _, usage in {key[:2] for key in under_way}), _LEAST_RATE)
    if left == 1.0:
        persistent = 0.0
    if not share and not persistent:
        return left
    taken = {tier: 0.0 for tier, _, _ in under_way}
    for tier, _, usage in under_way:
        taken[tier] = max(taken[tier], usage)
    bandwidth = max(1.0 - sum(taken.values()), _LEAST_RATE)
    others = 1.0 - share - persistent
    return 1.0 / (others / left + share / bandwidth + persistent * max(_WAVES, 1.0 / left))


def _taken(price: Price) -> tuple[int, float, float]:
    """Return the tier of a transfer, and what it takes of the processor and of the memory's bandwidth."""
    return price.tier_size, price.processor_usage, _of_memory(price)


def _of_memory(price: Price) -> float:
    """Return the share of the memory's bandwidth that an operation takes in the mean."""
    return min(1.0, price.memory_s / price.seconds) if price.memory_s else 0.0


def require_contention(value: object) -> None:
    """Raise a UsageError unless a value is one of those that `contention` of a run may have."""
    if not isinstance(value, bool) and value not in (EXACT, "auto"):
        raise UsageError(
            f'contention must be True, False, "exact" or "auto", got {value!r}; "exact" lets transfers share links'
        )


def slow_down(models: Sequence[Any], lowest_of: Callable[[int], int] = int) -> None:
    """Give ranks that have ended the log and the clock that they have where communication slows computing down.

    Args:
        models: those of the ranks, or of the lowest rank of each class whose ranks do the same.
        lowest_of: returns the lowest rank of a rank's class.
    """
    logs = Retiming([model._log for model in models], lowest_of).run()
    for model, log in zip(models, logs, strict=True):
        model._log, model._rows = log, log._rows
        ends = (
            time + price.seconds for time, price in zip(log._rows[TIME::STRIDE], log._rows[PRICE::STRIDE], strict=True)
        )
        model._time = max(ends, default=model._time)


class Retiming:
    """The event-driven simulation of one run's dependencies.

    A transfer lasts as long as its price says, at the rate that computing leaves it. `minitrain.whatif.replayed_runs`
    lets it take links instead.

    Args:
        logs: the log of each rank, or of the lowest rank of each class.
        lowest_of: returns the lowest rank of a rank's class; what it is sent, its class sends at the same time.
    """

    def __init__(self, logs: Sequence[EventLog], lowest_of: Callable[[int], int] = int) -> None:
        self._lowest_of = lowest_of
        self.logs = [EventLog(log.rank, list(log._rows)) for log in logs]
        self.lanes = [_Lane() for _ in logs]
        self.transfers: list[dict[int, TransferPart]] = [{} for _ in logs]
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.now = 0.0
        self._find_meetings()

    def _find_meetings(self) -> None:
        """Match collectives by their place in a group's order, and messages by their place in their channel."""
        streams: dict[Hashable, list[Meeting]] = defaultdict(list)
        channels: dict[Hashable, dict[str, list[Meeting]]] = defaultdict(lambda: {SEND: [], RECV: []})
        for number, log in enumerate(self.logs):
            begun: Counter[Hashable] = Counter()  # how many collectives of each group the rank has started
            for place in range(len(log)):
                row = place * STRIDE
                stream, note = log._rows[row + STREAM], log._rows[row + NOTE]
                if stream is ON_COMPUTE:
                    continue
                if stream.kind == COMM:
                    lane = streams[COMM, stream.group]
                    if begun[stream.group] == len(lane):
                        lane.append(Meeting())
                    meeting = lane[begun[stream.group]]
                    begun[stream.group] += 1
                else:
                    meeting = Meeting(is_message=True)
                    streams[stream.kind, log.rank, stream.peer].append(meeting)
                if stream.kind in (SEND, RECV):
                    peer = self._lowest_of(stream.peer)
                    pair = (log.rank, peer) if stream.kind == SEND else (peer, log.rank)
                    channels[pair, None if note is None else note.tag][stream.kind].append(meeting)
                self._take_part(number, place, meeting)
        _link(streams.values(), channels.values())

    def _take_part(self, number: int, place: int, meeting: Meeting) -> None:
        """Add the transfer of one log to a meeting."""
        rows = self.logs[number]._rows
        price, note = rows[place * STRIDE + PRICE], rows[place * STRIDE + NOTE]
        awaited = note.awaited if note is not None and note.overlaps else place + 1
        meeting.is_beside |= awaited != place + 1 and not meeting.is_message
        given = [self.transfers[number][index].meeting for index in (() if note is None else note.after)]
        transfer = TransferPart(number, place, price, meeting, given, is_alone=awaited == place + 1)
        for made in given:
            made.followers.append(meeting)
        self.transfers[number][place] = transfer
        self.lanes[number].awaits[awaited].append(transfer)
        meeting.parts.append(transfer)
        meeting.missing += 1

    def set_out(self, prices: Sequence[Sequence[Price]]) -> None:
        """Be as before the run, with other prices for each log."""
        self.now = 0.0
        self.lanes = [_Lane(awaits=lane.awaits) for lane in self.lanes]
        for log, of_log, transfers in zip(self.logs, prices, self.transfers, strict=True):
            log._rows[PRICE::STRIDE] = of_log
            for place, part in transfers.items():
                part.set_out(of_log[place])
                part.meeting.set_out()

    def run(self) -> list[EventLog]:
        """Simulate the run again, and return its logs."""
        self.begin()
        while self._queue:
            self.now, _, happen = heapq.heappop(self._queue)
            happen()
        return self.logs

    def begin(self) -> None:
        """Let all ranks begin."""
        for rank in range(len(self.logs)):
            self._advance(rank)

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (time, next(self._order), happen))

    def _advance(self, rank: int) -> None:
        """Continue a rank's compute stream until it has to wait."""
        self._go_on(rank)
        lane = self.lanes[rank]
        computes = lane.work_s is not None
        if computes != lane.computes:
            lane.computes = computes
            for meeting in lane.carried:
                meeting.computing += 1 if computes else -1
                self._set_rate(meeting)

    def _go_on(self, rank: int) -> None:
        lane, rows = self.lanes[rank], self.logs[rank]._rows
        while lane.work_s is None and not lane.has_to_wait():
            row = lane.place * STRIDE
            if row == len(rows):
                return
            rows[row + LAUNCHED_AT] = self.now
            if rows[row + STREAM] is ON_COMPUTE:
                rows[row + TIME] = self.now
                price: Price = rows[row + PRICE]
                lane.work_s, lane.since, lane.slowed = price.seconds, self.now, False
                lane.price = price
                lane.set_rate()
                self._expect_end(rank)
                return
            transfer = self.transfers[rank][lane.place]
            transfer.launched = self.now
            transfer.meeting.missing -= 1
            lane.place += 1
            self._start_if_ready(transfer.meeting)

    def _expect_end(self, rank: int) -> None:
        """Schedule the end of the present compute operation, at the present rate."""
        lane = self.lanes[rank]
        lane.version += 1
        version, rate = lane.version, lane.rate
        lane.slowed |= rate != 1.0
        self._at(self.now + (lane.work_s or 0.0) / rate, lambda: self._end_compute(rank, version))

    def _end_compute(self, rank: int, version: int) -> None:
        """Complete a compute operation, unless its rate has changed since its end was scheduled."""
        lane, rows = self.lanes[rank], self.logs[rank]._rows
        if lane.version != version:
            return
        row = lane.place * STRIDE
        price: Price = rows[row + PRICE]
        if lane.slowed:
            rows[row + PRICE] = price.lasting(self.now - rows[row + TIME])
        lane.work_s = None
        lane.place += 1
        self._advance(rank)

    def _start_if_ready(self, meeting: Meeting) -> None:
        """Start transfers if they can start now."""
        if not meeting.ready():
            return
        meeting.begun = True
        launches = [part.ready_at() for part in meeting.parts]
        last = meeting.parts[launches.index(max(launches))].rank
        for part, launched in zip(meeting.parts, launches, strict=True):
            rows, row = self.logs[part.rank]._rows, part.place * STRIDE
            rows[row + TIME] = self.now
            rows[row + WAITED_FOR] = self._waited_for(meeting, launched, last)
            self._count_transfer(part, 1)
        self._carry(meeting)
        for follower in meeting.followers:
            if follower.message is meeting:
                self._start_if_ready(follower)

    def _carry(self, meeting: Meeting) -> None:
        """Carry what has begun, and end it when it has arrived."""
        price = meeting.parts[0].price
        if not price.computing_usage and not meeting.shares_wires:
            self._at(self.now + price.seconds, lambda: self._end(meeting))
            return
        meeting.work_s, meeting.since = price.seconds, self.now
        for lane in self._lanes_of(meeting):
            lane.carried.append(meeting)
            meeting.computing += lane.computes
        self._set_rate(meeting)

    def _lanes_of(self, meeting: Meeting) -> list[_Lane]:
        return [self.lanes[part.rank] for part in meeting.parts]

    def _set_rate(self, meeting: Meeting) -> None:
        """Set the rate of a transfer that something slows down, and expect its end."""
        price = meeting.parts[0].price
        rate = max(1.0 - price.computing_usage, _LEAST_RATE) if meeting.computing else 1.0
        if meeting.shares_wires and any(lane.beside[price.tier_size] for lane in self._lanes_of(meeting)):
            rate *= _SHARE_OF_WIRES
        if meeting.version and rate == meeting.rate:
            return
        meeting.work_s -= (self.now - meeting.since) * meeting.rate
        meeting.since, meeting.rate = self.now, rate
        meeting.slowed |= rate != 1.0
        meeting.version += 1
        version = meeting.version
        self._at(self.now + meeting.work_s / rate, lambda: self._arrive(meeting, version))

    def _arrive(self, meeting: Meeting, version: int) -> None:
        """End a transfer, unless its rate has changed since its end was scheduled."""
        if meeting.version != version:
            return
        for lane in self._lanes_of(meeting):
            lane.carried.remove(meeting)
        if meeting.slowed:
            for part in meeting.parts:
                rows, row = self.logs[part.rank]._rows, part.place * STRIDE
                rows[row + PRICE] = part.price.lasting(self.now - rows[row + TIME])
        self._end(meeting)

    def _waited_for(self, meeting: Meeting, launched: float, last: int) -> int | None:
        """Return the rank that a transfer waited for; None if it waited for its own stream, or not at all."""
        if launched == self.now or (meeting.after is not None and meeting.after.end == self.now):
            return None
        return self.logs[last if meeting.message is None else meeting.message.parts[0].rank].rank

    def _end(self, meeting: Meeting) -> None:
        """Complete transfers, and continue what waited for them."""
        meeting.end = self.now
        for part in meeting.parts:
            part.ended = True
            self._count_transfer(part, -1)
        for follower in meeting.followers:
            self._start_if_ready(follower)
        for part in meeting.parts:
            self._advance(part.rank)

    def _count_transfer(self, part: TransferPart, change: int) -> None:
        """Count a transfer that begins or ends on a rank; it changes the rate of what runs beside it."""
        if part.meeting.is_beside:
            self.lanes[part.rank].beside[part.price.tier_size] += change
            for meeting in self.lanes[part.rank].carried:
                if meeting.shares_wires:
                    self._set_rate(meeting)
        if part.is_alone or not (part.price.processor_usage or part.price.memory_s):
            return
        lane = self.lanes[part.rank]
        lane.count(part.taken, change)
        if lane.work_s is None:
            return
        before = lane.rate
        lane.set_rate()
        if lane.rate != before:
            if self.now > lane.since:
                lane.work_s -= (self.now - lane.since) * before
                lane.since = self.now
            self._expect_end(part.rank)


def _link(streams: Iterable[list[Meeting]], channels: Iterable[Mapping[str, list[Meeting]]]) -> None:
    """Give each meeting what must come before it: the one before on its stream, and the send that it receives."""
    for lane in streams:
        for before, meeting in pairwise(lane):
            meeting.after = before
            before.followers.append(meeting)
    for channel in channels:
        for sent, received in zip(channel[SEND], channel[RECV], strict=True):
            received.message = sent
            sent.followers.append(received)
