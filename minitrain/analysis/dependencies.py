"""Which operations of a run wait for which: the graph whose longest path is the step time.

An operation has two moments: when its rank submits it, and when it begins to work. A collective has one more: when all
of its members have been submitted. The rules are those of the simulator:

- A rank submits its operations in order. It also waits for the end of a compute operation before it goes on, and for
  every result that the program awaits.
- A compute operation begins when it is submitted.
- A communication begins when the one before it on its stream has ended. A receive also waits for the beginning of its
  send, and a collective for all of its members.

So a graph with the durations of a log gives the times of the log again, to the last float.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minitrain.analysis.matching import collectives, messages
from minitrain.analysis.timeline import Bools, Floats, Ints, Timeline
from minitrain.events import COMM


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The moments of a run, and an edge from each moment to every moment that waits for it.

    With n events, moment i is the beginning of event i, n + i its submission, 2 n + k the meeting of collective k.

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
        np.maximum.at(times, self.target[meets], times[self.source[meets]])
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
    edges = [
        *_of_clocks(timeline),
        _of_streams(timeline),
        (*messages(timeline), False),
        (count + members, meeting, False),
        (meeting, members, False),
    ]
    num_moments = 2 * count + len(places) - 1
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


def _of_clocks(timeline: Timeline) -> list[_Edges]:
    """Return the edges within each rank: its program's order, its computing, and the results that it awaits."""
    count, computes = timeline.num_events, timeline.computes
    events, collective = np.arange(count), timeline.on_stream(COMM)
    ends = timeline.starts[timeline.rank + 1] if count else events
    followed = np.flatnonzero(events + 1 < ends)
    awaited = timeline.awaited + timeline.starts[timeline.rank]
    returns = np.flatnonzero(~computes & (awaited < ends))
    alone, busy = np.flatnonzero(~collective), followed[computes[followed]]
    return [
        (count + followed, count + followed + 1, False),
        (returns, count + awaited[returns], True),
        (busy, count + busy + 1, True),
        (count + alone, alone, False),
    ]


def _of_streams(timeline: Timeline) -> _Edges:
    """Return the edges from each communication to the next one of its stream."""
    moved = np.flatnonzero(~timeline.computes)
    order = moved[np.lexsort((moved, timeline.stream[moved], timeline.rank[moved]))]
    same = timeline.rank[order[1:]] == timeline.rank[order[:-1]]
    same &= timeline.stream[order[1:]] == timeline.stream[order[:-1]]
    return order[:-1][same], order[1:][same], True
