"""Which operations of a run wait for which: the graph whose longest path is the step time.

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

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minitrain.errors import UsageError
from minitrain.operations import COMM, RECV, SEND
from minitrain.run.analysis.timeline import NONE, Bools, Floats, Ints, Timeline


def messages(timeline: Timeline) -> tuple[Ints, Ints]:
    """Pair every send with its receive: the k-th of (source, destination, tag) with the k-th.

    Returns:
        Indices of the sends and of their receives, (num_messages,) each; what has no partner is left out.
    """
    sends, receives = np.flatnonzero(timeline.on_stream(SEND)), np.flatnonzero(timeline.on_stream(RECV))
    sent = _numbered(timeline.rank[sends], timeline.peer[sends], timeline.tag[sends])
    received = _numbered(timeline.peer[receives], timeline.rank[receives], timeline.tag[receives])
    _, codes = np.unique(np.concatenate([sent, received]), axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    _, at_send, at_receive = np.intersect1d(codes[: len(sends)], codes[len(sends) :], return_indices=True)
    return sends[at_send], receives[at_receive]


def collectives(timeline: Timeline) -> tuple[Ints, Ints]:
    """Find the members of every collective: the k-th call of each rank in a group belongs to the k-th.

    Returns:
        Indices of the members, collective by collective and by rank within, (num_members,), and the place
        where each collective begins, with the end of the last one, (num_collectives + 1,).
    """
    members = np.flatnonzero(timeline.on_stream(COMM))
    keys = _numbered(timeline.group[members], timeline.rank[members])
    order = np.lexsort((keys[:, 1], keys[:, 2], keys[:, 0]))
    met = keys[order][:, [0, 2]]
    begins = np.flatnonzero(np.any(met[1:] != met[:-1], axis=1)) + 1
    places = np.concatenate([[0], begins, [len(members)]]) if len(members) else np.zeros(1, np.int64)
    return members[order], places.astype(np.int64)


def _numbered(*columns: Ints) -> Ints:
    """Return rows of these columns, each with how many equal rows came before it, (n, columns + 1)."""
    rows = np.stack(columns, axis=1)
    if not len(rows):
        return np.zeros((0, len(columns) + 1), np.int64)
    order = np.lexsort(columns[::-1])
    sorted_rows = rows[order]
    is_first = np.ones(len(rows), dtype=bool)
    is_first[1:] = np.any(sorted_rows[1:] != sorted_rows[:-1], axis=1)
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

    def arrivals(self, times: Floats) -> Floats:
        """Return the earliest time that each edge allows its target, s, (num_edges,)."""
        durations = np.concatenate([self.timeline.duration, np.zeros(self.num_moments - self.timeline.num_events)])
        return times[self.source] + np.where(self.after_end, durations[self.source], 0.0)


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
    if np.any(following != NONE):
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
