"""The clocks of a finished run for other durations of its operations: for one case, or for many side by side.

The rules are the edges of `minitrain.run.analysis.dependencies`. By them, every moment is 0, another moment plus the
duration of an operation, or the latest of some moments. Equal expressions are one *value*: the moments of ranks that do
the same are the same values, and 14,400 events of 64 ranks that work alike are a few hundred. A moment that another one
comes after in any case is left out of the latest of both, which is why durations must not be negative.

`retime` evaluates the values, one numpy call a value for all cases. It makes the sums and the choices that the
simulator makes, so that with the durations of a run its clocks are those of the run, to the last float. A maximum of
floats is exact in any order. So what is left out changes no float, either.

What if operations lasted differently: the times of a run with other durations and the same dependencies. Only durations
change. A strategy that would then choose another order or more overlap is not modelled. An operation that was slowed
down by communication beside it stays slow. Loading stays as it is, and is no part of the step.

A step without the loading before it, where ranks load for unequal times. The step begins when the weights are there.
Where all ranks load for the same time, they begin together, and the clocks of the log, less that time, are those of the
step. Where they do not, some begin while others still load, and the clocks say when loading ends, and not what the step
takes. So the run is timed again with the same dependencies and with loads that take no time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple, final

import numpy as np

from minitrain.operations import COLLECTIVES, COMMUNICATIONS, RECV, SEND
from minitrain.run.analysis.breakdown import are_alike
from minitrain.run.analysis.dependencies import Graph, circle, collectives, make_graph, messages
from minitrain.run.analysis.timeline import NONE, Bools, Floats, Ints, Timeline, Trace, as_timeline

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
        self._known: dict[tuple[int, ...], int] = {}

    def of(self, expression: tuple[int, ...]) -> int:
        """Return the value of an expression."""
        found = self._known.get(expression)
        if found is None:
            found = self._known[expression] = len(self.code)
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
@dataclass(frozen=True, eq=False)
class Program:
    """The moments of a run's operations as expressions of their durations.

    Args:
        values: the expressions.
        starts: index of each rank's first event, and the number of events at the end, (num_ranks + 1,).
        submitted: the value of each event's submission, (num_events,), like the next two.
        begin: that of its beginning.
        end: that of its end.
        clock: that of each rank's final clock, (num_ranks,).
        num_durations: how many durations there are.
        release: further ones, which are the same in all cases: when outages end, s.
    """

    values: Values
    starts: Ints
    submitted: Ints
    begin: Ints
    end: Ints
    clock: Ints
    num_durations: int
    release: Floats
    _schedules: dict[bytes, list[list[int]]] = field(default_factory=dict)

    @property
    def code(self) -> Sequence[tuple[int, ...]]:
        """The expressions of the values."""
        return self.values.code

    @cached_property
    def ranks(self) -> list[RankMoments]:
        """The moments of each rank."""
        columns = (np.split(column, self.starts[1:-1]) for column in (self.submitted, self.begin, self.end))
        return [RankMoments(*moments) for moments in zip(*columns, self.clock.tolist(), strict=True)]

    def latest(self, values: Sequence[int]) -> int:
        """Return the value of the latest of some moments, which may be a new one."""
        return self.values.latest(values)

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

    def waits(self) -> tuple[Ints, Ints, Ints]:
        """Return what each value waits for, one row a wait, in the order of the values; sums come before the latest.

        Returns:
            The value that waits; the one that comes first; and the duration that lies between, or `NONE`.
        """
        rows: list[tuple[int, int, int]] = []
        for value, expression in enumerate(self.code):
            if expression[:1] == (_LATEST,):
                rows += [(value, one, NONE) for one in sorted(expression[1:], key=self._in_order)]
            elif expression:
                source, duration = expression
                rows.append((value, source, duration if duration < self.num_durations else NONE))
        columns = np.array(rows, np.int64).reshape(-1, 3)
        return columns[:, 0], columns[:, 1], columns[:, 2]

    def _in_order(self, value: int) -> tuple[bool, int]:
        """Return by what moments that come at the same time are told apart: the first duration, or the first value."""
        first, *rest = self.code[value]
        return first == _LATEST, value if first == _LATEST else rest[0]


class _Joined:
    """The latest of what moments wait for, worked out once for equal waits.

    The members of a collective begin at the latest of all that they wait for together, and of what each waits for
    besides. So a meeting is no value, but a negative number that stands for what its members wait for together.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._known: dict[tuple[int, ...], int] = {}
        self._meetings: dict[tuple[int, ...], int] = {}
        self._waits: list[tuple[int, ...]] = []  # of each meeting

    def meeting(self, waits: Sequence[int]) -> int:
        """Return the number that stands for a meeting."""
        key = tuple(dict.fromkeys(waits))
        found = self._meetings.get(key)
        if found is None:
            found = self._meetings[key] = ~len(self._waits)
            self._waits.append(key)
        return found

    def moment(self, waits: Sequence[int]) -> int:
        """Return the value of a moment that waits for values and meetings."""
        key = tuple(waits)
        found = self._known.get(key)
        if found is None:
            every = (self._waits[~wait] if wait < 0 else (wait,) for wait in waits)
            found = self._known[key] = self._values.latest(list(chain.from_iterable(every)))
        return found


def make_program(graph: Graph, of_event: Ints) -> Program:
    """Return the moments of a run as expressions.

    Args:
        graph: the dependencies.
        of_event: which duration each event has, (num_events,): every number from 0 to the largest is one.

    Raises:
        UsageError: operations wait for one another in a circle, which no finished run has.
    """
    count, lasts = graph.timeline.num_events, of_event.tolist()
    meetings = range(2 * count, graph.num_moments - graph.timeline.num_ranks)
    source, target, after_end = _needed_edges(graph)
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], np.arange(graph.num_moments + 1)).tolist()
    missing = np.bincount(target, minlength=graph.num_moments).tolist()
    targets, until_end = target[order].tolist(), after_end[order].tolist()
    values, waits = Values(), [list[int]() for _ in missing]
    num_durations = int(of_event.max(initial=-1)) + 1
    release = _release(graph, num_durations, values, waits)
    joined, came, ended = _Joined(values), [-1] * graph.num_moments, [0] * count
    ready = [moment for moment, edges in enumerate(missing) if not edges][::-1]
    while ready:
        moment = ready.pop()
        own = waits[moment]
        if len(own) == 1 and own[0] >= 0:
            begin = own[0]
        else:
            begin = joined.meeting(own) if moment in meetings else joined.moment(own)
        came[moment] = end = begin
        if moment < count:
            end = ended[moment] = values.of((begin, lasts[moment]))
        for edge in range(first[moment + 1] - 1, first[moment] - 1, -1):  # the lowest rank goes on first
            other = targets[edge]
            waits[other].append(end if until_end[edge] else begin)
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    if any(missing):
        raise circle()
    moments = np.array(came, np.int64)[_same(graph)]
    begin_of, submitted, _, clock = np.split(moments, [count, 2 * count, meetings.stop])
    return Program(
        values, graph.timeline.starts, submitted, begin_of, np.array(ended, np.int64), clock, num_durations, release
    )


def _same(graph: Graph) -> Ints:
    """Return the moment that each of a graph is the same as: computing begins when it is submitted."""
    same, computing = np.arange(graph.num_moments), np.flatnonzero(graph.timeline.computes)
    same[graph.timeline.num_events + computing] = computing
    return same


def _needed_edges(graph: Graph) -> tuple[Ints, Ints, Bools]:
    """Return source, target and whether it waits for the end, of edges that say what no others do.

    What was awaited before an operation was submitted has ended before it begins.
    """
    line, same = graph.timeline, _same(graph)
    source, target = same[graph.source], same[graph.target]
    needed = source != target
    ends = np.flatnonzero(graph.after_end & (graph.target < line.num_events))
    before, event = graph.source[ends], graph.target[ends]
    awaited = line.awaited[before] + line.starts[line.rank[before]] <= event
    needed[ends[awaited & (line.rank[before] == line.rank[event])]] = False
    return source[needed], target[needed], graph.after_end[needed]


def _release(graph: Graph, num_durations: int, values: Values, waits: list[list[int]]) -> Floats:
    """Let moments wait for the ends of outages, and return these as further durations, s."""
    if graph.release is None:
        return np.zeros(0)
    times, place = np.unique(graph.release, return_inverse=True)
    same = _same(graph)
    for moment in np.flatnonzero(graph.release).tolist():
        waits[same[moment]].append(values.of((0, num_durations + int(place[moment]))))
    return times


def program_of_logs(logs: Sequence[Any], ranks: Sequence[int]) -> tuple[Program, list[Any]]:
    """Return the moments of a run's flat logs as expressions, and the prices that are their durations.

    Args:
        logs: the log of each rank, or of the lowest rank of each class; classes that meet have a group in common.
        ranks: the ranks whose logs these are, which messages name as peers.

    Raises:
        UsageError: a message has no partner or operations wait in a circle, which is so in no finished run.
    """
    line, place_of = as_timeline(logs), {rank: place for place, rank in enumerate(ranks)}
    line = replace(line, peer=np.array([place_of.get(peer, NONE) for peer in line.peer.tolist()], np.int64))
    num_ends = np.count_nonzero(line.on_stream(SEND)) + np.count_nonzero(line.on_stream(RECV))
    if 2 * len(messages(line)[0]) != num_ends:
        raise circle()
    return make_program(make_graph(line), line.price), list(line.prices)


def seconds_of(prices: Sequence[Any]) -> Floats:
    """Return the durations that prices say, s, (num_prices, 1)."""
    return np.array([price.seconds for price in prices], dtype=float).reshape(-1, 1)


def retime(program: Program, durations: Floats, wanted: Ints | None = None) -> Floats:
    """Return when moments come, s.

    Args:
        program: that of the run.
        durations: s, (num_durations, num_columns): a column for each case or machine.
        wanted: the values of the moments, (num_wanted,); all values by default.

    Returns:
        Times, s, (num_wanted, num_columns).
    """
    num_columns = durations.shape[1]
    columns = [*durations, *(np.full(num_columns, time) for time in program.release)]
    rows: list[Any] = [np.zeros(num_columns)]
    free: list[Any] = []
    add, larger = np.add, np.maximum
    no_longer = repeat(()) if wanted is None else program.freed_after(wanted)[1:]
    for expression, freed in zip(program.code[1:], no_longer, strict=False):
        row = free.pop() if free else np.empty(num_columns)
        if expression[0] == _LATEST:
            larger(rows[expression[1]], rows[expression[2]], out=row)
            for source in expression[3:]:
                larger(row, rows[source], out=row)
        else:
            add(rows[expression[0]], columns[expression[1]], out=row)
        rows.append(row)
        for source in freed:
            free.append(rows[source])
            rows[source] = None
    chosen = rows if wanted is None else [rows[one] for one in wanted.tolist()]
    return np.array(chosen).reshape(-1, num_columns)


def retimed_events(graph: Graph, durations: Floats) -> tuple[Floats, Floats]:
    """Return when each event would be submitted, and begin: the floats of a run whose operations last so.

    Args:
        graph: the dependencies.
        durations: how long each event is to last, s, (num_events,) or (num_events, num_cases).

    Returns:
        Times, s, of the same form each.

    Raises:
        UsageError: operations wait for one another in a circle, which no real log has.
    """
    cases = durations if durations.ndim > 1 else durations[:, None]
    distinct, of_event = np.unique(cases, axis=0, return_inverse=True)
    program = make_program(graph, of_event.reshape(-1))
    times = retime(program, distinct)
    return times[program.submitted].reshape(durations.shape), times[program.begin].reshape(durations.shape)


def what_if(trace: Trace | Graph, free: Collection[str]) -> float:
    """Return the step time if all operations of some types took no time.

    Args:
        trace: one log a rank, columns, or their graph.
        free: types of operations, such as "all_gather".

    Returns:
        The step time, s.
    """
    graph = trace if isinstance(trace, Graph) else make_graph(as_timeline(trace))
    return _steps(graph, [free])[0]


def _steps(graph: Graph, classes: Sequence[Collection[str]]) -> list[float]:
    """Return the step time if all operations of one class took no time, s, for each class."""
    line = graph.timeline
    durations = [np.where(line.of_types(free) & ~line.loading, 0.0, line.duration) for free in classes]
    if not durations:
        return []
    lasts = np.stack(durations, axis=1)
    ends: Floats = (retimed_events(graph, lasts)[1] + lasts).max(axis=0, initial=0.0)
    return [float(end) - line.begin for end in ends]


def what_ifs(graph: Graph) -> Mapping[str, float]:
    """Return the step time for every class of operation that could be free, s, the best first."""
    typs = set(_typs_that_last(graph.timeline))
    classes = {typ: {typ} for typ in typs - set(COMMUNICATIONS)}
    classes |= {typ: {typ} for typ in typs & set(COLLECTIVES)}
    if typs & {SEND, RECV}:
        classes["messages"] = {SEND, RECV}
    if typs & set(COMMUNICATIONS):
        classes["all communication"] = typs & set(COMMUNICATIONS)
    found = dict(zip(classes, _steps(graph, list(classes.values())), strict=True))
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


def _typs_that_last(timeline: Timeline) -> list[str]:
    """Return the types of which some operation takes time."""
    lasts = (timeline.duration > 0) & ~timeline.loading
    return [timeline.typs[code] for code in np.unique(timeline.typ[lasts]).tolist()]


def step_alone(timeline: Timeline) -> Timeline:
    """Return a run as it would be if the weights of all ranks were there at 0: the run itself where they load alike."""
    working = np.diff(timeline.starts) > 0
    if are_alike(np.unique(timeline.load_ends[working])):
        return timeline
    duration = np.where(timeline.loading, 0.0, timeline.duration)
    launched, time = retimed_events(make_graph(timeline), duration)
    found = replace(timeline, time=time, end=time + duration, duration=duration, launched=launched)
    return replace(found, waited_for=_waited_for(found))


def _waited_for(timeline: Timeline) -> Ints:
    """Return the rank that each operation waited for, or `NONE`: the lowest of the last ones to come."""
    waited_for = np.full(timeline.num_events, NONE)
    sends, receives = messages(timeline)
    late = (timeline.launched[receives] < timeline.time[sends]) & (timeline.time[receives] == timeline.time[sends])
    waited_for[receives[late]] = timeline.peer[receives[late]]
    members, places = collectives(timeline)
    if len(members):
        launched, sizes = timeline.launched[members], np.diff(places)
        latest = np.repeat(np.maximum.reduceat(launched, places[:-1]), sizes)
        last = np.repeat(_lowest(timeline.rank[members], launched == latest, places), sizes)
        late = (launched < latest) & (timeline.time[members] == latest)
        waited_for[members[late]] = last[late]
    return waited_for


def _lowest(rank: Ints, chosen: Bools, places: Ints) -> Ints:
    """Return the lowest of the chosen ranks of each group."""
    found: Ints = np.minimum.reduceat(np.where(chosen, rank, np.iinfo(np.int64).max), places[:-1])
    return found
