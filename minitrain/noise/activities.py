"""A run as activities that wait for one another: the smallest graph whose longest path is the step time.

An *activity* is an operation of one rank, or a whole collective, since its members begin and end together. The graph of
the log (`minitrain.analysis.dependencies`) has two moments an event. Many of them coincide: a compute operation begins
when it is submitted. About a quarter is left here, and thousands of samples are timed on it at once. A maximum of
floats is exact in any order, so that the times are those of the whole graph to the last float. Loading stays as it was
recorded, and is no part of the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minitrain.analysis.dependencies import Graph, make_graph
from minitrain.analysis.levels import Levels, levels_of_edges
from minitrain.analysis.matching import collectives, messages
from minitrain.analysis.timeline import Bools, Floats, Ints, Timeline
from minitrain.errors import UsageError


@dataclass(frozen=True, slots=True, eq=False)
class Activities:
    """The activities of a run and what they wait for.

    Args:
        timeline: the recorded run.
        event: an event of each activity; of a collective, its lowest rank's, (num_activities,), like the next three.
        begin: the moment when it begins.
        draw: index of its random factor; both sides of a message, and all members of a collective, share one.
        duration: how long it lasted in the record, s.
        of_event: the activity of each event, (num_events,).
        submitted: the moment when each event is submitted, (num_events,).
        last: activities that nothing waits for, of which one ends the step.
        is_shared: whether an activity is a whole collective, (num_activities,).
        levels: the moments, by the order in which they can be timed.
    """

    timeline: Timeline
    event: Ints
    begin: Ints
    draw: Ints
    duration: Floats
    of_event: Ints
    submitted: Ints
    last: Ints
    is_shared: Bools
    levels: Levels

    @property
    def loading(self) -> Bools:
        """Whether an activity is a rank's loading, before the step, (num_activities,)."""
        return self.timeline.loading[self.event]

    @property
    def num_activities(self) -> int:
        """How many activities there are."""
        return len(self.event)

    def ends(self, moments: Floats, durations: Floats, activities: Ints) -> Floats:
        """Return when some activities end, s, (len(activities), num_samples)."""
        ends: Floats = moments[self.begin[activities]] + durations[activities]
        return ends

    def step_times(self, durations: Floats) -> Floats:
        """Return the step time of each sample, s, (num_samples,).

        Args:
            durations: how long activities last, s, (num_activities, num_samples).
        """
        moments = self.levels.moments(durations)
        steps: Floats = self.ends(moments, durations, self.last).max(axis=0, initial=0.0) - self.timeline.begin
        return steps


def make_activities(timeline: Timeline) -> Activities:
    """Return the activities of a run.

    Raises:
        UsageError: operations wait for one another in a circle, which no real log has.
    """
    graph, count = make_graph(timeline), timeline.num_events
    members, places = collectives(timeline)
    shared = _shared(timeline, members, places)
    edges = _Edges.of(graph, shared).without_detours(count).contracted()
    event, of_event = np.unique(shared, return_inverse=True)
    kept, moments = np.unique(edges.moment_of, return_inverse=True)
    ending = np.append(of_event, len(event))[edges.ending]
    source, target = moments[edges.source], moments[edges.target]
    levels = levels_of_edges(len(event), len(kept), source, target, ending)
    if levels is None:
        raise UsageError("the log is damaged: some of its operations wait for one another in a circle")
    return Activities(
        timeline,
        event,
        moments[event],
        _draws(timeline, members, places)[event],
        timeline.duration[event],
        of_event,
        moments[count : 2 * count],
        np.setdiff1d(np.arange(len(event)), ending),
        np.bincount(of_event, minlength=len(event)) > 1,
        levels,
    )


def _shared(timeline: Timeline, members: Ints, places: Ints) -> Ints:
    """Return the event that stands for each one's activity: of the members of a collective, the first.

    Members of a measured log may last differently. Then each is an activity of its own.
    """
    shared = np.arange(timeline.num_events)
    first = np.repeat(members[places[:-1]], np.diff(places))
    if np.array_equal(timeline.duration[first], timeline.duration[members]):
        shared[members] = first
    return shared


def _draws(timeline: Timeline, members: Ints, places: Ints) -> Ints:
    """Return the index of the random factor that each event is drawn with, (num_events,)."""
    found = np.arange(timeline.num_events)
    found[members] = np.repeat(members[places[:-1]], np.diff(places))
    sends, receives = messages(timeline)
    found[receives] = sends
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """Edges between moments, of which some have become one.

    Args:
        source: the moment that comes first, one an edge, like the next two.
        target: the moment that waits for it.
        ending: the event whose end is waited for, or the number of events where it is the source itself.
        moment_of: the moment that each of the log's moments has become.
        none: the number of events.
    """

    source: Ints
    target: Ints
    ending: Ints
    moment_of: Ints
    none: int

    @staticmethod
    def of(graph: Graph, shared: Ints) -> _Edges:
        """Return the edges of a log whose members of one collective begin at one moment."""
        moment_of, count = np.arange(graph.num_moments), graph.timeline.num_events
        moment_of[:count] = shared
        ending = np.full(len(graph.source), count)
        ending[graph.after_end] = shared[graph.source[graph.after_end]]
        return _Edges(moment_of[graph.source], moment_of[graph.target], ending, moment_of, count)

    def without_detours(self, count: int) -> _Edges:
        """Return the edges without those from one submission to the next that also waits for the end of the first."""
        ends = np.zeros(2 * count + 1, dtype=bool)  # whether a submission waits for the end of the event before it
        waits = (self.ending < count) & (self.target >= count) & (self.target < 2 * count)
        before = self.target[waits] - count - 1
        ends[self.target[waits]] |= self.ending[waits] == self.moment_of[np.maximum(before, 0)]
        steps = (self.ending == count) & (self.source >= count) & (self.target == self.source + 1)
        steps &= ends[np.minimum(self.target, 2 * count)]
        return self._kept(~steps)

    def contracted(self) -> _Edges:
        """Return the edges after every moment that waits for one other moment alone has become that one."""
        edges = self._distinct()
        while True:
            single = np.bincount(edges.target, minlength=len(edges.moment_of))[edges.target] == 1
            single &= edges.ending == self.none
            if not single.any():
                return edges
            edges = edges._joined(single)._distinct()

    def _joined(self, single: Bools) -> _Edges:
        """Return the edges after the targets of some have become their sources."""
        into = np.arange(len(self.moment_of))
        into[self.target[single]] = self.source[single]
        for _ in range(len(into).bit_length()):  # twice as far each time
            into = into[into]
        rest = self._kept(~single)
        return _Edges(into[rest.source], into[rest.target], rest.ending, into[self.moment_of], self.none)

    def _kept(self, kept: Bools) -> _Edges:
        return _Edges(self.source[kept], self.target[kept], self.ending[kept], self.moment_of, self.none)

    def _distinct(self) -> _Edges:
        """Return the edges, each once."""
        rows = np.unique(np.stack([self.target, self.source, self.ending], axis=1), axis=0)
        return _Edges(rows[:, 1], rows[:, 0], rows[:, 2], self.moment_of, self.none)
