"""The moments of a program on which a run is timed: `Moments`, and a run as its durations and lags, `Case`.

A program is one graph: what each moment waits for. A run on it is the durations of its operations, and the lags before
its moments, which no dependency explains.

They are timed level by level: of one case, or a few, that takes a tenth of what `retime` of
`minitrain.run.analysis.retiming` takes value by value, which is for many cases of operations without lags.

The way from the times of one run to those of another of the same program, and what is on its longest paths.

`Way.walk` takes all durations and lags from those of A to those of B at the same pace, and adds up how much each
operation adds to the step time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from minitrain.run.analysis.retiming import Graph, circle
from minitrain.run.analysis.timeline import Floats, Ints, Timeline

NEAR = 1e-9
"""What counts as the same, of a step time."""


class Case(NamedTuple):
    """One run on the graph of the program.

    Args:
        durations: how long each operation lasts, s, (num_events,); 0 of loading.
        lags: the time before each moment that no dependency explains, s, (num_moments,); negative where a moment came
            before what it waits for in a simulation.
    """

    durations: Floats
    lags: Floats


class Moments:
    """The moments of a program: `times` with durations and lags, and the longest path to the end of the step."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.num_events = graph.timeline.num_events
        level = _levels(graph)
        order = np.lexsort((graph.target, level[graph.target]))
        target = graph.target[order]
        self._source = graph.source[order]
        self._ending = np.where(graph.after_end[order], self._source, self.num_events)
        begins = np.flatnonzero(np.append(True, target[1:] != target[:-1])[: len(target)])
        self._first, self._target = np.append(begins, len(target)), target[begins]
        self._borders = np.searchsorted(level[self._target], np.arange(1, level.max(initial=0) + 2)).tolist()

    def case(self, line: Timeline) -> Case:
        """Return the durations and lags with which the graph has the times of a run, counted from its begin.

        Where a measured communication was begun while what it follows in the program still ran, it counts from the end
        of that, as in a simulation: what it waits for there is no time of its own.
        """
        graph, loading, count = replace(self.graph, timeline=line), line.loading, self.num_events
        times = graph.logged() - line.begin
        times[:count][loading] = times[count : 2 * count][loading] = 0.0
        durations = np.where(loading, 0.0, line.duration)
        ends, moved = times[:count] + durations, ~line.computes & ~loading
        for _ in range(2):  # a receive also follows the begin of its send, which may have moved
            begins = np.minimum(self._latest(times, durations)[:count], ends)
            early = moved & (begins > times[:count])
            times[:count][early], durations[early] = begins[early], (ends - begins)[early]
        latest = self._latest(times, durations)
        lags = np.where(np.isfinite(latest), times - latest, times)
        return Case(durations, np.where(np.abs(lags) > NEAR * line.step_time, lags, 0.0))

    def typical(self, lines: Sequence[Timeline]) -> tuple[Floats, Floats, Floats]:
        """Return begin, duration and submission of each operation, s, with the medians over several steps.

        A median leaves out what disturbed an operation in fewer than half of the steps. So what the medians add up to
        is shorter than the median step, in which some operations or others are disturbed.
        """
        cases, count = [self.case(line) for line in lines], self.num_events
        durations, lags = (np.median([getattr(case, name) for case in cases], axis=0) for name in Case._fields)
        times = self.times(durations[:, None], lags[:, None])[:, 0]
        return times[:count], durations, times[count : 2 * count]

    def _latest(self, times: Floats, durations: Floats) -> Floats:
        """Return when what each moment waits for has come, s; -inf of those that wait for nothing."""
        found = np.full(self.graph.num_moments, -np.inf)
        np.maximum.at(found, self.graph.target, self.graph.arrivals(times, durations))
        return found

    def times(self, durations: Floats, lags: Floats) -> Floats:
        """Return when each moment comes, s, (num_moments, num_cases), given both for each case."""
        lasts = np.concatenate([durations, np.zeros((1, durations.shape[1]))])
        times = lags.copy()
        for low, high in pairwise(self._borders):
            first = self._first[low : high + 1]
            edges = slice(first[0], first[-1])
            arrivals = times[self._source[edges]] + lasts[self._ending[edges]]
            times[self._target[low:high]] += np.maximum.reduceat(arrivals, first[:-1] - first[0], axis=0)
        return times

    def step_times(self, durations: Floats, lags: Floats) -> Floats:
        """Return the step time of each case, s, (num_cases,)."""
        longest: Floats = (self.times(durations, lags)[: self.num_events] + durations).max(axis=0, initial=0.0)
        return longest

    def longest_path(self, case: Case) -> LongestPath:
        """Return the step time, and the operations and moments whose durations and lags add up to it."""
        times = self.times(case.durations[:, None], case.lags[:, None])[:, 0]
        ends = times[: self.num_events] + case.durations
        last = int(np.argmax(ends))
        came_from, after_end = self._latest_edges(times, case.durations)
        events, moments, moment = [last], [], last
        while moment >= 0:
            moments.append(moment)
            if after_end[moment]:
                events.append(came_from[moment])
            moment = came_from[moment]
        return LongestPath(float(ends[last]), np.array(events, np.int64), np.array(moments, np.int64))

    def _latest_edges(self, times: Floats, durations: Floats) -> tuple[list[int], list[bool]]:
        """Return, for each moment, what it waited for the longest (-1 for nothing), and whether for the end of that."""
        arrivals = times[self._source] + np.append(durations, 0.0)[self._ending]
        place = np.repeat(np.arange(len(self._target)), np.diff(self._first))
        chosen = np.lexsort((self._ending != self.num_events, arrivals, place))[self._first[1:] - 1]
        came_from, after_end = np.full(len(times), -1), np.zeros(len(times), dtype=bool)
        came_from[self._target] = self._source[chosen]
        after_end[self._target] = self._ending[chosen] != self.num_events
        return came_from.tolist(), after_end.tolist()


def _levels(graph: Graph) -> Ints:
    """Return the level of each moment: 0 for those that wait for nothing, others above all that they wait for.

    Raises:
        UsageError: moments wait for one another in a circle, which no finished run has.
    """
    order = np.argsort(graph.source, kind="stable")
    targets = graph.target[order].tolist()
    first = np.searchsorted(graph.source[order], np.arange(graph.num_moments + 1)).tolist()
    missing = np.bincount(graph.target, minlength=graph.num_moments).tolist()
    level = [0] * graph.num_moments
    ready = [moment for moment, count in enumerate(missing) if not count]
    for moment in ready:  # which grows
        for target in targets[first[moment] : first[moment + 1]]:
            missing[target] -= 1
            level[target] = max(level[target], level[moment] + 1)
            if not missing[target]:
                ready.append(target)
    if len(ready) < graph.num_moments:
        raise circle()
    return np.array(level, np.int64)


class LongestPath(NamedTuple):
    """A longest path.

    Args:
        length: the step time, s.
        events: operations whose durations are part of it.
        moments: moments whose lags are.
    """

    length: float
    events: Ints
    moments: Ints


MOST_PATHS = 400
"""Paths that are looked for on the way from A to B; what lies between more is divided between its ends."""


class Way:
    """The way from the durations and lags of A to those of B, at the same pace for all."""

    def __init__(self, program: Moments, a: Case, b: Case) -> None:
        self._program, self._a = program, a
        self.more = Case(b.durations - a.durations, b.lags - a.lags)
        self.of_events, self.of_moments = np.zeros(len(a.durations)), np.zeros(len(a.lags))
        self._left = MOST_PATHS

    def walk(self) -> None:
        """Add up, for each duration and lag, its difference times the share of the way for which it is on the path."""
        stretches = [(0.0, self._at(0.0), 1.0, self._at(1.0))]
        while stretches:
            low, first, high, last = stretches.pop()
            between = self._between(low, first, high, last)
            if between is not None:
                middle, path = between
                stretches += [(low, first, middle, path), (middle, path, high, last)]

    def _at(self, share: float) -> tuple[LongestPath, float]:
        """Return the longest path at a share of the way, and by how much it grows over the whole way, s."""
        a, more = self._a, self.more
        case = Case(a.durations + share * more.durations, a.lags + share * more.lags)
        path = self._program.longest_path(case)
        return path, float(more.durations[path.events].sum() + more.lags[path.moments].sum())

    def _between(
        self, low: float, first: tuple[LongestPath, float], high: float, last: tuple[LongestPath, float]
    ) -> tuple[float, tuple[LongestPath, float]] | None:
        """Divide a stretch between the paths of its ends, or return a longer one between, and where it was found.

        The step time is convex on the way. So where the tangents of both ends meet on it, there is no other path.
        """
        (path, slope), (other, steeper) = first, last
        width, rise = high - low, other.length - path.length
        if steeper <= slope:
            self._add(path, width)
            return None
        reach = min(max((steeper * width - rise) / (steeper - slope), 0.0), width)  # of the first path
        if self._left > 0 and 0.0 < reach < width:
            self._left -= 1
            found = self._at(low + reach)
            if found[0].length - (path.length + slope * reach) > NEAR * other.length:
                return low + reach, found
        self._add(path, reach)
        self._add(other, width - reach)
        return None

    def _add(self, path: LongestPath, share: float) -> None:
        self.of_events[path.events] += share * self.more.durations[path.events]
        self.of_moments[path.moments] += share * self.more.lags[path.moments]
