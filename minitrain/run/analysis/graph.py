"""The graph of a finished run: what each moment waits for. `retime` gives its clocks for other durations.

A run is columns of operations with edges between them. The rules are those of the simulator:

- A rank submits its operations in order, at its clock. A compute operation begins then, and its end is the clock.
- A communication begins when it is submitted, the one before it on its stream has ended, and what it was given is
  there. A receive also waits for the beginning of its send, and a collective for all of its members.
- Where the program awaits a result, the clock moves to the end of that operation if it is later.

So every moment is 0, another moment plus the duration of an operation, or the latest of some moments. Equal
expressions are one *value*: the moments of ranks that do the same are the same values, and 14,400 events of 64 ranks
that work alike are a few hundred. A moment that another one comes after in any case is left out of the latest of both,
which is why durations must not be negative.

`retime` evaluates the values for one column of durations, or for many at once, one numpy call a value. It makes the
sums and the choices that the simulator makes, so that with the durations of a run its clocks are those of the run, to
the last float.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Any, NamedTuple, final

import numpy as np

from minitrain.errors import UsageError
from minitrain.operations import COMM, COMPUTE, NOTE, PRICE, RECV, SEND, STREAM, STRIDE
from minitrain.run.analysis.timeline import Floats, Ints

_FARTHEST = 64
"""How many sums are followed back to find that one moment comes after another; more would not find much more."""

_LATEST = -1


@final
class Values:
    """Expressions of moments, each of them once.

    Attributes:
        code: (value, duration) for the sum of both, (-1, value, value, ...) for the latest; the first is time 0.
    """

    def __init__(self) -> None:
        self.code: list[tuple[int, ...]] = [()]
        self.known: dict[tuple[int, ...], int] = {}

    def of(self, expression: tuple[int, ...]) -> int:
        """Return the value of an expression."""
        found = self.known.get(expression)
        if found is None:
            found = self.known[expression] = len(self.code)
            self.code.append(expression)
        return found

    def latest(self, values: Sequence[int]) -> int:
        """Return the latest of some moments."""
        distinct = set(values)
        distinct.discard(0)
        if len(distinct) > 1:
            for value in sorted(distinct, reverse=True):
                self._leave_out_earlier(value, distinct)
        if len(distinct) < 2:
            return distinct.pop() if distinct else 0
        return self.of((_LATEST, *sorted(distinct)))

    def _leave_out_earlier(self, value: int, among: set[int]) -> None:
        """Take what a moment is the sum of, and the latest of, out of a set."""
        for _ in range(_FARTHEST):
            first, *rest = self.code[value] or (0,)
            if first == _LATEST:
                among.difference_update(rest)
                return
            if value == 0 or len(among) == 1:
                return
            among.discard(first)
            value = first


class RankMoments(NamedTuple):
    """The values of one rank's moments.

    Args:
        submitted: when each operation is submitted, (num_events,).
        begin: when it begins to work, (num_events,).
        end: when it ends, (num_events,).
        clock: the final clock.
    """

    submitted: Ints
    begin: Ints
    end: Ints
    clock: int


@final
class Graph:
    """The moments of a run's operations.

    Args:
        values: the expressions.
        ranks: the moments of each rank, or of each class of ranks that are alike.
        prices: what each duration is the price of.
    """

    def __init__(self, values: Values, ranks: Sequence[RankMoments], prices: Sequence[Any]) -> None:
        self._values = values
        self.code = values.code
        self.ranks = ranks
        self.prices = prices
        self._schedules: dict[bytes, list[list[int]]] = {}

    def latest(self, values: Sequence[int]) -> int:
        """Return the value of the latest of some moments, which may be a new one."""
        return self._values.latest(values)

    def durations(self) -> Floats:
        """Return the durations of the run itself, s, (num_durations, 1)."""
        return np.array([price.seconds for price in self.prices], dtype=float).reshape(-1, 1)

    def freed_after(self, wanted: Ints) -> list[list[int]]:
        """Return the values that nobody needs after each value, where some are wanted at the end."""
        key = wanted.tobytes()
        found = self._schedules.get(key)
        if found is None:
            last = list(range(len(self.code)))
            for value, expression in enumerate(self.code):
                for source in expression[1:] if expression[:1] == (_LATEST,) else expression[:1]:
                    last[source] = value
            found = self._schedules[key] = [[] for _ in self.code]
            kept = set(wanted.tolist())
            for value, until in enumerate(last):
                if value not in kept:
                    found[until].append(value)
        return found


def retime(graph: Graph, durations: Floats, wanted: Ints | None = None) -> Floats:
    """Return when moments come, s.

    Args:
        graph: that of the run.
        durations: of the graph's prices, s, (num_durations, num_columns): a column for each case or machine.
        wanted: the values of the moments, (num_wanted,); all values by default.

    Returns:
        Times, s, (num_wanted, num_columns).
    """
    if wanted is None:
        times = np.zeros((len(graph.code), durations.shape[1]))
        _evaluate(graph.code, list(times), list(durations))
        return times
    return _with_few_rows(graph, durations, wanted)


def _evaluate(code: Sequence[tuple[int, ...]], rows: list[Floats], durations: list[Floats]) -> None:
    """Put the times of all values into their rows."""
    add, larger = np.add, np.maximum
    for row, expression in zip(rows[1:], code[1:], strict=True):
        if expression[0] == _LATEST:
            larger(rows[expression[1]], rows[expression[2]], out=row)
            for value in expression[3:]:
                larger(row, rows[value], out=row)
        else:
            add(rows[expression[0]], durations[expression[1]], out=row)


def _with_few_rows(graph: Graph, durations: Floats, wanted: Ints) -> Floats:
    """Return the times of some values, with a row for each value that is still needed."""
    add, larger, columns = np.add, np.maximum, list(durations)
    rows: list[Any] = [None] * len(graph.code)
    free: list[Floats] = []
    rows[0] = np.zeros(durations.shape[1])
    for value, (expression, freed) in enumerate(zip(graph.code, graph.freed_after(wanted), strict=True)):
        if value:
            row = rows[value] = free.pop() if free else np.empty(durations.shape[1])
            if expression[0] == _LATEST:
                larger(rows[expression[1]], rows[expression[2]], out=row)
                for source in expression[3:]:
                    larger(row, rows[source], out=row)
            else:
                add(rows[expression[0]], columns[expression[1]], out=row)
        for source in freed:
            free.append(rows[source])
            rows[source] = None
    return np.array([rows[value] for value in wanted.tolist()]).reshape(len(wanted), durations.shape[1])


def graph_of_logs(logs: Sequence[Any], ranks: Sequence[int]) -> Graph:
    """Return the graph of a run's flat logs.

    Args:
        logs: the log of each rank, or of the lowest rank of each class; groups that are the same share their stream.
        ranks: the ranks whose logs these are, which messages name as peers.

    Raises:
        UsageError: operations wait for one another in a circle, which no finished run has.
    """
    walk = _Walk(logs, ranks)
    walk.run()
    return Graph(walk.values, [_moments(rank) for rank in walk.ranks], walk.prices)


_ALONE, _TOGETHER, _SENT, _RECEIVED = range(4)


class _Rank:
    """How far one rank is.

    Args:
        place: its place among the logs.
        rows: its flat log.
    """

    def __init__(self, place: int, rank: int, rows: Sequence[Any]) -> None:
        self.place = place
        self.rank = rank
        self.notes = rows[NOTE::STRIDE]
        self.streams = rows[STREAM::STRIDE]
        self.price_of = rows[PRICE::STRIDE]
        self.num_events = count = len(self.notes)
        self.durations: list[int] = []
        self.submitted, self.begin, self.end = [0] * count, [-1] * count, [-1] * count
        self.next = 0
        self.clock = 0
        self.busy: dict[int, int] = {}  # by stream: when it has ended what it was given
        self.started: dict[int, int] = defaultdict(int)  # by stream: how many collectives
        self.awaits: dict[int, list[int]] = defaultdict(list)  # by event: those that were awaited before it
        self.held: dict[int, deque[tuple[int, Any, Any]]] = defaultdict(deque)  # by stream: what has not arrived
        self.pending: dict[int, deque[tuple[int, Hashable]]] = defaultdict(deque)  # receives by stream, in order


@final
class _Walk:
    """One walk over the events of all ranks, each as far as what it waits for is known."""

    def __init__(self, logs: Sequence[Any], ranks: Sequence[int]) -> None:
        self.values = Values()
        self.prices: list[Any] = []
        self.ranks = [_Rank(place, rank, log._rows) for place, (rank, log) in enumerate(zip(ranks, logs, strict=True))]
        self._to_follow = deque(self.ranks)
        self._known_streams: dict[int, tuple[int, Any]] = {}
        self._members: dict[int, int] = defaultdict(int)  # by stream: how many ranks meet there
        self._meetings: dict[tuple[int, int], list[tuple[_Rank, int]]] = defaultdict(list)
        self._sent: dict[Hashable, deque[int]] = defaultdict(deque)  # beginnings of sends that were not received yet
        self._receivers: dict[Hashable, _Rank] = {}
        self._number_durations()

    def _number_durations(self) -> None:
        """Number the prices of all events, and count the members of each stream."""
        places: dict[int, int] = {}
        for rank in self.ranks:
            for price in {id(price): price for price in rank.price_of}.values():
                if id(price) not in places:
                    places[id(price)] = len(self.prices)
                    self.prices.append(price)
            rank.durations = [places[id(price)] for price in rank.price_of]
            for stream in {id(stream): stream for stream in rank.streams}.values():
                self._members[id(stream)] += 1
                self._known_streams[id(stream)] = _kind_of(stream), stream

    def run(self) -> None:
        """Follow all ranks to their ends.

        Raises:
            UsageError: they wait for one another.
        """
        while self._to_follow:
            self._follow(self._to_follow.popleft())
        if any(rank.next < rank.num_events or -1 in rank.end for rank in self.ranks):
            raise UsageError("the log is damaged: some of its operations wait for one another in a circle")

    def _follow(self, rank: _Rank) -> None:
        """Follow a rank until it waits for another one."""
        values, streams, notes, durations = self.values, rank.streams, rank.notes, rank.durations
        known, code, submitted, begin, end = values.known, values.code, rank.submitted, rank.begin, rank.end
        place, clock, count = rank.next, rank.clock, rank.num_events
        self._release(rank)
        while place <= count:
            if place in rank.awaits:
                awaited = [end[event] for event in rank.awaits[place]]
                if -1 in awaited:
                    break
                clock = values.latest([clock, *awaited])
                del rank.awaits[place]
            if place == count:
                break
            submitted[place] = clock
            stream = streams[place]
            if stream.kind == COMPUTE:
                begin[place] = clock
                expression = (clock, durations[place])
                found = known.get(expression)
                if found is None:
                    found = known[expression] = len(code)
                    code.append(expression)
                clock = end[place] = found
            else:
                note = notes[place]
                until = place + 1 if note is None or not note.overlaps else note.awaited
                if until is not None:
                    rank.awaits[until].append(place)
                rank.next = place + 1
                self._communicate(rank, place, stream, note)
            place += 1
        rank.next, rank.clock = place, clock

    def _communicate(self, rank: _Rank, event: int, stream: Any, note: Any) -> None:
        """Submit a communication, which waits where it was given the result of one that has not ended."""
        held = rank.held[id(stream)]
        held.append((event, stream, note))
        if len(held) == 1:
            self._release(rank)

    def _release(self, rank: _Rank) -> None:
        """Let the communications of a rank arrive that were given what is there, in the order of their streams."""
        for held in rank.held.values():
            while held and -1 not in self._given(rank, held[0][0]):
                event, stream, note = held.popleft()
                self._arrive(rank, event, stream, None if note is None else note.tag)

    def _arrive(self, rank: _Rank, event: int, stream: Any, tag: Hashable) -> None:
        """Let a communication begin, or wait for its partners."""
        kind, key = self._known_streams[id(stream)][0], id(stream)
        if kind == _TOGETHER:
            number = rank.started[key]
            rank.started[key] = number + 1
            members = self._meetings[key, number]
            members.append((rank, event))
            if len(members) == self._members[key]:
                del self._meetings[key, number]
                self._meet(members, key)
        elif kind == _SENT:
            begin = self._begin(rank, event, key, [])
            message = rank.rank, stream.peer, tag
            self._sent[message].append(begin)
            if message in self._receivers:
                self._receive(self._receivers[message])
        elif kind == _RECEIVED:
            message = stream.peer, rank.rank, tag
            self._receivers[message] = rank
            rank.pending[key].append((event, message))
            self._receive(rank)
        else:
            self._begin(rank, event, key, [])

    def _given(self, rank: _Rank, event: int) -> list[int]:
        """Return when an operation is submitted, and when there is what it was given; -1 where that is not known."""
        note = rank.notes[event]
        after = () if note is None else note.after
        return [rank.submitted[event], *(rank.end[other] for other in after)]

    def _begin(self, rank: _Rank, event: int, key: int, others: Sequence[int]) -> int:
        """Begin an operation once its stream is free, and other moments have come."""
        begin = self.values.latest([*self._given(rank, event), rank.busy.get(key, 0), *others])
        rank.begin[event] = begin
        rank.end[event] = rank.busy[key] = self.values.of((begin, rank.durations[event]))
        self._wake(rank)
        return begin

    def _meet(self, members: Sequence[tuple[_Rank, int]], key: int) -> None:
        """Begin a collective whose members are all there."""
        moments = [[*self._given(rank, event), rank.busy.get(key, 0)] for rank, event in members]
        begin = self.values.latest(list(chain.from_iterable(moments)))
        end = self.values.of((begin, members[0][0].durations[members[0][1]]))
        for rank, event in members:
            rank.begin[event], rank.end[event] = begin, end
            rank.busy[key] = end
            self._wake(rank)

    def _receive(self, rank: _Rank) -> None:
        """Begin the receives of a rank that are next on their streams and whose messages were sent."""
        for key, pending in rank.pending.items():
            while pending and self._sent[pending[0][1]]:
                event, message = pending.popleft()
                self._begin(rank, event, key, [self._sent[message].popleft()])

    def _wake(self, rank: _Rank) -> None:
        """Follow a rank again, an operation of which has come to its end."""
        self._to_follow.append(rank)


def _kind_of(stream: Any) -> int:
    """Return whom the operations of a stream wait for."""
    if stream.kind == COMM:
        return _TOGETHER
    if stream.peer is None:
        return _ALONE
    return {SEND: _SENT, RECV: _RECEIVED}.get(stream.kind, _ALONE)


def _moments(rank: _Rank) -> RankMoments:
    """Return the moments of a rank that has come to its end."""
    submitted, begin, end = (np.array(column, dtype=np.int64) for column in (rank.submitted, rank.begin, rank.end))
    return RankMoments(submitted, begin, end, rank.clock)
