"""The clocks of a finished run for other durations of its operations: for one case, or for many side by side.

The rules are the edges of `minitrain.run.analysis.retiming`. By them, every moment is 0, another moment plus the
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

Which operations of a run wait for which: the graph whose longest path is the step time.

An operation has two moments: when its rank submits it, and when it begins to work. A collective has one more: when all
of its members have been submitted. So has a rank: its final clock. The rules are those of the simulator:

- A rank submits its operations in order. It also waits for the end of a compute operation before it goes on, and for
  every result that the program awaits.
- A compute operation begins when it is submitted.
- A communication begins when the one before it on its stream has ended. A receive also waits for the beginning of its
  send, and a collective for all of its members.
- What was given the result of a launched operation waits for the end of that, and so do all members of a collective.

So a graph with the durations of a log gives the times of the log again, to the last float: see
`minitrain.run.analysis.retiming`.

Which operations of different ranks belong together: a send and its receive, the members of a collective.

The critical path: the chain of operations, across ranks, that sets the step time.

Loading is no part of it: the step begins when the weights are there.

It is followed backwards from the latest end of all ranks. Each step goes to the dependency that was fulfilled last; of
two at the same time, to the one on the same rank. In a simulated run no operation of the path waits: at every time, one
of them is at work. Time that no dependency explains, as in a measured log, counts as waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from minitrain.errors import UsageError
from minitrain.operations import COLLECTIVES, COMM, COMMUNICATIONS, RECV, SEND
from minitrain.run.analysis.breakdown import are_alike
from minitrain.run.analysis.timeline import NONE, Bools, Floats, Ints, Timeline, as_timeline
from minitrain.run.event_loops import rare_collections


def messages(timeline: Timeline) -> tuple[Ints, Ints]:
    """Pair every send with its receive: the k-th of (source, destination, tag) with the k-th.

    Returns:
        Indices of the sends and of their receives, (num_messages,) each; what has no partner is left out.
    """
    sends, receives = np.flatnonzero(timeline.on_stream(SEND)), np.flatnonzero(timeline.on_stream(RECV))
    sent = numbered(timeline.rank[sends], timeline.peer[sends], timeline.tag[sends])
    received = numbered(timeline.peer[receives], timeline.rank[receives], timeline.tag[receives])
    rows = np.concatenate([sent, received])
    order = np.lexsort(rows.T[::-1])  # of two that are equal the send is the first
    met = np.flatnonzero(~(rows[order[1:]] != rows[order[:-1]]).any(axis=1))
    return sends[order[met]], receives[order[met + 1] - len(sends)]


def collectives(timeline: Timeline) -> tuple[Ints, Ints]:
    """Find the members of every collective: the k-th call of each rank in a group belongs to the k-th.

    Returns:
        Indices of the members, collective by collective and by rank within, (num_members,), and the place
        where each collective begins, with the end of the last one, (num_collectives + 1,).
    """
    members = np.flatnonzero(timeline.on_stream(COMM))
    keys = numbered(timeline.group[members], timeline.rank[members])
    order = np.lexsort((keys[:, 1], keys[:, 2], keys[:, 0]))
    met = keys[order][:, [0, 2]]
    begins = np.flatnonzero((met[1:] != met[:-1]).any(axis=1)) + 1
    places = np.concatenate([[0], begins, [len(members)]]) if len(members) else np.zeros(1, np.int64)
    return members[order], places.astype(np.int64)


def first_events(timeline: Timeline) -> Ints:
    """Return the first event of the operation that each is part of: of a collective, or of a message, (num_events,)."""
    found = np.arange(timeline.num_events)
    members, places = collectives(timeline)
    found[members] = np.repeat(members[places[:-1]], np.diff(places))
    sends, receives = messages(timeline)
    found[receives] = sends
    return found


def numbered(*columns: Ints) -> Ints:
    """Return rows of these columns, each with how many equal rows came before it, (n, columns + 1)."""
    rows = np.stack(columns, axis=1)
    if not len(rows):
        return np.zeros((0, len(columns) + 1), np.int64)
    order = np.lexsort(columns[::-1])
    sorted_rows = rows[order]
    is_first = np.ones(len(rows), dtype=bool)
    is_first[1:] = (sorted_rows[1:] != sorted_rows[:-1]).any(axis=1)
    places = np.arange(len(rows))
    number = np.empty(len(rows), np.int64)
    number[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return np.column_stack([rows, number])


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The moments of a run, and an edge from each moment to every moment that waits for it.

    With n events, moment i is the beginning of event i, n + i its submission, and 2 n + k the meeting of collective k.
    The final clocks of the ranks come last.

    Args:
        timeline: the events.
        num_moments: how many moments there are.
        source: the moment that comes first, one an edge, (num_edges,), like all that follow.
        target: the moment that waits for it.
        after_end: whether the target waits for the end of the source's operation rather than for its beginning.
        release: the earliest time of each moment whatever it waits for, s, (num_moments,); None if all may begin at 0.
    """

    timeline: Timeline
    num_moments: int
    source: Ints
    target: Ints
    after_end: Bools
    release: Floats | None = None

    def logged(self) -> Floats:
        """Return when each moment came in the log, s, (num_moments,)."""
        line, count = self.timeline, self.timeline.num_events
        times = np.concatenate([line.time, line.launched, np.zeros(self.num_moments - 2 * count)])
        meets = self.target >= 2 * count
        np.maximum.at(times, self.target[meets], self.arrivals(times)[meets])
        return times

    def arrivals(self, times: Floats, durations: Floats | None = None) -> Floats:
        """Return the earliest time that each edge allows its target, s, (num_edges,).

        Args:
            times: when each moment comes, s, (num_moments,).
            durations: how long each event lasts, s, (num_events,); as in the log if None.
        """
        lasts = np.zeros(self.num_moments)
        lasts[: self.timeline.num_events] = self.timeline.duration if durations is None else durations
        return times[self.source] + np.where(self.after_end, lasts[self.source], 0.0)


def make_graph(timeline: Timeline) -> Graph:
    """Return the dependencies of a run."""
    count = timeline.num_events
    members, places = collectives(timeline)
    meeting = 2 * count + np.repeat(np.arange(len(places) - 1), np.diff(places))
    made, given = timeline.handed_on
    until = np.arange(count)  # of each event, the moment at which it needs what it was given
    until[members] = meeting
    num_moments = 2 * count + len(places) - 1 + timeline.num_ranks
    edges = [
        *_of_clocks(timeline, num_moments - timeline.num_ranks),
        _of_streams(timeline),
        (*messages(timeline), False),
        (count + members, meeting, False),
        (meeting, members, False),
        (made, until[given], True),
    ]
    return Graph(
        timeline,
        num_moments,
        np.concatenate([source for source, _, _ in edges]),
        np.concatenate([target for _, target, _ in edges]),
        np.concatenate([np.full(len(source), after_end) for source, _, after_end in edges]),
        _released(timeline, num_moments) if timeline.outages else None,
    )


def with_shared_interfaces(graph: Graph) -> Graph:
    """Let each rank's interface carry one transfer at a time each way, in the order in which the log has them begin.

    Launched receives from several peers, collectives of several groups, and messages beside collectives may run beside
    one another in a log. A collective goes both ways. A transfer comes after those that begin earlier in the log, of
    those that begin at once after those of lower moments, so the new edges close no circle.
    """
    line, sources, targets = graph.timeline, [graph.source], [graph.target]
    members, places = collectives(line)
    gates = np.arange(line.num_events)  # of each transfer, the moment that its beginning waits for
    gates[members] = 2 * line.num_events + np.repeat(np.arange(len(places) - 1), np.diff(places))
    tiers = np.array([price.tier_size for price in line.prices])
    for way in (SEND, RECV):
        carried = np.flatnonzero((line.on_stream(COMM) | line.on_stream(way)) & (line.duration > 0))
        tier = tiers[line.price[carried]]
        order = np.lexsort((gates[carried], line.time[carried], tier, line.rank[carried]))
        one, tier = carried[order], tier[order]
        same = (line.rank[one[1:]] == line.rank[one[:-1]]) & (tier[1:] == tier[:-1])
        sources.append(one[:-1][same])
        targets.append(gates[one[1:][same]])
    after_end = np.ones(sum(map(len, sources[1:])), dtype=bool)
    return replace(
        graph,
        source=np.concatenate(sources),
        target=np.concatenate(targets),
        after_end=np.concatenate([graph.after_end, after_end]),
    )


def _released(timeline: Timeline, num_moments: int) -> Floats:
    """Return the earliest time of each moment, s: what was submitted after an outage comes after its end."""
    release, submissions = np.zeros(num_moments), slice(timeline.num_events, 2 * timeline.num_events)
    for outage in timeline.outages:
        release[submissions][timeline.launched >= outage.end] = outage.end
    return release


_Edges = tuple[Ints, Ints, bool]


def _of_clocks(timeline: Timeline, first_clock: int) -> list[_Edges]:
    """Return the edges within each rank: its program's order, its computing, and the results that it awaits."""
    count, computes = timeline.num_events, timeline.computes
    events, starts = np.arange(count), timeline.starts[timeline.rank]
    ends, clock = timeline.starts[timeline.rank + 1], first_clock + timeline.rank
    following = np.where(events + 1 < ends, count + events + 1, clock)
    awaited = np.where(starts + timeline.awaited < ends, count + starts + timeline.awaited, clock)
    moved, launched = np.flatnonzero(~computes), np.flatnonzero(~computes & timeline.overlaps)
    alone = np.flatnonzero(~timeline.on_stream(COMM))
    return [
        (count + launched, following[launched], False),
        (moved, awaited[moved], True),
        (events[computes], following[computes], True),
        (count + alone, alone, False),
    ]


def _of_streams(timeline: Timeline) -> _Edges:
    """Return the edges from each communication to the next one of its stream."""
    moved = np.flatnonzero(~timeline.computes)
    order = moved[np.lexsort((moved, timeline.stream[moved], timeline.rank[moved]))]
    same = timeline.rank[order[1:]] == timeline.rank[order[:-1]]
    same &= timeline.stream[order[1:]] == timeline.stream[order[:-1]]
    return order[:-1][same], order[1:][same], True


def circle() -> UsageError:
    """Return what is said of a log whose operations wait for one another."""
    return UsageError("the log is damaged: some of its operations wait for one another in a circle")


_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """The operations that set the step time, in their order.

    Args:
        timeline: the run.
        event: the operations, (num_steps,).
        wait: the unexplained time before each, s, (num_steps,).
        counts: whether its duration is part of the path: of a send only its beginning is, (num_steps,).
    """

    timeline: Timeline
    event: Ints
    wait: Floats
    counts: Bools

    def seconds(self) -> dict[str, float]:
        """Return the path's time in computing, communication and waiting, s; their sum is the step time."""
        lasts = np.where(self.counts, self.timeline.duration[self.event], 0.0)
        computes = self.timeline.computes[self.event]
        return {
            "computing": float(lasts[computes].sum()),
            "communication": float(lasts[~computes].sum()),
            "waiting": float(self.wait.sum()),
        }

    def by_typ(self) -> dict[str, float]:
        """Return the path's time in each type of operation, s, the longest first."""
        lasts = np.where(self.counts, self.timeline.duration[self.event], 0.0)
        sums = np.bincount(self.timeline.typ[self.event], weights=lasts, minlength=len(self.timeline.typs))
        pairs = zip(self.timeline.typs, sums.tolist(), strict=True)
        return dict(sorted((pair for pair in pairs if pair[1] > 0), key=lambda pair: -pair[1]))


class Binding(NamedTuple):
    """The dependency of each moment that was fulfilled last.

    Args:
        moment: the moment that it waited for, `NONE` where there is none, (num_moments,).
        after_end: whether it waited for the end of that moment's operation, (num_moments,).
        slack: the time from then to the moment, which no dependency explains, s, (num_moments,).
    """

    moment: Ints
    after_end: Bools
    slack: Floats


def binding(graph: Graph) -> Binding:
    """Return the dependency of each moment that was fulfilled last by the times in the log."""
    times = graph.logged()
    arrivals = graph.arrivals(times)
    # of dependencies fulfilled at the same time, prefer an end to a beginning, and then the same rank to another one
    own = graph.source % max(graph.timeline.num_events, 1) == graph.target % max(graph.timeline.num_events, 1)
    order = np.lexsort((-graph.source, own, graph.after_end, arrivals, graph.target))
    last = np.append(graph.target[order][1:] != graph.target[order][:-1], True) if len(order) else order == 0
    chosen = order[last]
    moment, after_end = np.full(graph.num_moments, NONE), np.zeros(graph.num_moments, dtype=bool)
    slack = times.copy()
    moment[graph.target[chosen]], after_end[graph.target[chosen]] = graph.source[chosen], graph.after_end[chosen]
    slack[graph.target[chosen]] -= arrivals[chosen]
    _prefer_own_rank(graph, moment, after_end, times)
    _require_no_circle(moment)
    return Binding(moment, after_end, np.where(slack > _ROUNDING * graph.timeline.step_time, slack, 0.0))


def _prefer_own_rank(graph: Graph, moment: Ints, after_end: Bools, times: Floats) -> None:
    """Give a member of a collective that came as late as the last one no dependency on another rank."""
    count, line = graph.timeline.num_events, graph.timeline
    met = np.flatnonzero(moment[:count] >= 2 * count)
    late = met[line.launched[met] >= times[moment[met]]]
    moment[late] = count + late
    made, given = line.handed_on
    met = np.flatnonzero(moment[given] >= 2 * count)
    late = met[line.end[made[met]] >= times[moment[given[met]]]]
    moment[given[late]], after_end[given[late]] = made[late], True


def _require_no_circle(moment: Ints) -> None:
    """Require that every chain of dependencies, followed backwards, ends at a moment that waits for nothing.

    Raises:
        UsageError: operations wait for one another in a circle, which no real log has.
    """
    following = np.append(moment, NONE)  # the last place stands for `NONE`
    for _ in range(len(moment).bit_length()):  # each round follows twice as many dependencies
        following = following[following]
    if (following != NONE).any():
        raise circle()


def critical_path(graph: Graph, bound: Binding | None = None) -> CriticalPath:
    """Return the chain of operations that sets the step time."""
    line, count = graph.timeline, graph.timeline.num_events
    bound = bound or binding(graph)
    steps: list[int] = []
    waits: list[float] = []
    counted: list[bool] = []
    moment, counts = int(np.argmax(line.end)) if count else NONE, True
    while moment != NONE:
        if moment < count:
            steps.append(moment)
            waits.append(0.0)
            counted.append(counts)
        waits[-1] += float(bound.slack[moment])
        counts, moment = bool(bound.after_end[moment]), int(bound.moment[moment])
    event = np.array(steps[::-1], np.int64)
    own = ~line.loading[event]
    return CriticalPath(line, event[own], np.array(waits[::-1], float)[own], np.array(counted[::-1], bool)[own])


_FARTHEST = 64
"""How many sums are followed back to find that one moment comes after another; more would not find much more."""

_LATEST = -1


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


@rare_collections()
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
    num_ends = line.on_stream(SEND).sum() + line.on_stream(RECV).sum()
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


def steps_without(graph: Graph, classes: Sequence[Collection[str]]) -> list[float]:
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
    found = dict(zip(classes, steps_without(graph, list(classes.values())), strict=True))
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
