"""What depends on what in a run: the graph whose longest path is the step time.

An operation has two moments, when its rank submits it and when it begins to work; a collective has one more, when all
members have come. A rank submits an operation once it has submitted the one before and, for computing, done it, and
once every result awaited by then is there. Computing begins as it is submitted. A communication begins when the one
before it on its stream is done, and, for a receive, its send has begun or, for a collective, all have come. These
rules are the engine's own, so that a graph with the durations of a log gives back the log's times, to the last float.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minitrain.analysis.matching import collectives, messages
from minitrain.analysis.timeline import Bools, Floats, Ints, Timeline
from minitrain.events import COMM


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Moments and what each of them waits for.

    With n events, moment i is the beginning of event i, n + i its submission, 2 n + k the meeting of collective k.

    Args:
        timeline: the events.
        num_moments: how many moments there are.
        source: what must come first, one an edge, (num_edges,), like all that follow.
        target: what waits for it.
        after_end: whether it waits for the end of the source's operation rather than for its beginning.
    """

    timeline: Timeline
    num_moments: int
    source: Ints
    target: Ints
    after_end: Bools

    def logged(self) -> Floats:
        """Return when each moment came in the log, s, (num_moments,)."""
        line, count = self.timeline, self.timeline.num_events
        times = np.concatenate([line.time, line.launched, np.zeros(self.num_moments - 2 * count)])
        meets = self.target >= 2 * count
        np.maximum.at(times, self.target[meets], times[self.source[meets]])
        return times

    def arrivals(self, times: Floats) -> Floats:
        """Return when each edge lets its target go on, s, (num_edges,)."""
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
    return Graph(
        timeline,
        2 * count + len(places) - 1,
        np.concatenate([source for source, _, _ in edges]),
        np.concatenate([target for _, target, _ in edges]),
        np.concatenate([np.full(len(source), after_end) for source, _, after_end in edges]),
    )


_Edges = tuple[Ints, Ints, bool]


def _of_clocks(timeline: Timeline) -> list[_Edges]:
    """Return the edges that move each rank's clock: its program's order, its computing, and what it awaits."""
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
