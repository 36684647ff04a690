"""The moments of a run's dependency graph in levels: each waits only for moments of the levels before it.

All moments of a level are timed by one numpy call, and so are several cases of durations. Ranks work side by side, so
a run of many ranks has few levels with many moments each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from minitrain.analysis.dependencies import Graph
from minitrain.analysis.timeline import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """The edges of a graph by the level of their targets, and in a level by target.

    Args:
        num_events: events of the run; of a graph of a log, their beginnings are the first moments.
        num_moments: all moments.
        source: the moment that comes first, one an edge, (num_edges,), like the next one.
        ending: the event whose end is waited for, or `num_events` where it is the source itself.
        first: index of each target's first edge, (num_targets,), and the number of edges at the end.
        target: the moments that wait for some other one, (num_targets,).
        borders: index of each level's first target, and the number of targets at the end.
        release: the earliest time of each moment, s, (num_moments,); None if all may begin at 0.
    """

    num_events: int
    num_moments: int
    source: Ints
    ending: Ints
    first: Ints
    target: Ints
    borders: Ints
    release: Floats | None = None

    def times(self, durations: Floats) -> Floats:
        """Return when each event begins, s, (num_events, num_cases), given how long each lasts, in the same form."""
        return self.moments(durations)[: self.num_events]

    def moments(self, durations: Floats) -> Floats:
        """Return when each moment comes, s, (num_moments, num_cases), given how long each event lasts."""
        lasts = np.zeros((self.num_events + 1, durations.shape[1]))
        lasts[: self.num_events] = durations
        times = np.zeros((self.num_moments, durations.shape[1]))
        borders, first = self.borders.tolist(), self.first.tolist()
        released = None if self.release is None else self.release[self.target, None]
        for low, high in pairwise(borders):
            edges = slice(first[low], first[high])
            arrivals = times[self.source[edges]] + lasts[self.ending[edges]]
            latest = np.maximum.reduceat(arrivals, self.first[low:high] - first[low], axis=0)
            times[self.target[low:high]] = latest if released is None else np.maximum(latest, released[low:high])
        return times


def make_levels(graph: Graph) -> Levels | None:
    """Return the levels of a graph, or None if some of its moments wait for one another in a circle."""
    count = graph.timeline.num_events
    ending = np.where(graph.after_end, graph.source, count)
    levels = levels_of_edges(count, graph.num_moments, graph.source, graph.target, ending)
    return levels if levels is None or graph.release is None else replace(levels, release=graph.release)


def levels_of_edges(num_events: int, num_moments: int, source: Ints, target: Ints, ending: Ints) -> Levels | None:
    """Return the levels of edges in any order, or None if some moments wait for one another in a circle.

    Args:
        num_events: how many events there are.
        num_moments: how many moments there are.
        source: the moment that comes first, one an edge, (num_edges,), like all that follow.
        target: the moment that waits for it.
        ending: the event whose end is waited for, or `num_events` where it is the source itself.
    """
    level = _levels(num_moments, source, target)
    if level is None:
        return None
    order = np.argsort(level[target] * num_moments + target, kind="stable")
    source, target = source[order], target[order]
    is_new = np.append(True, target[1:] != target[:-1])[: len(target)]
    first = np.flatnonzero(is_new)
    waiting = target[first]
    borders = np.searchsorted(level[waiting], np.arange(1, level.max(initial=0) + 2))
    places = np.append(first, len(target))
    return Levels(num_events, num_moments, source, ending[order], places, waiting, borders)


def _levels(num_moments: int, source: Ints, target: Ints) -> Ints | None:
    """Return the level of each moment, or None where there is a circle: 0 for those that wait for nothing."""
    order = np.argsort(source, kind="stable")
    missing = np.bincount(target, minlength=num_moments)
    first = np.searchsorted(source[order], np.arange(num_moments + 1))
    target, degree = target[order], np.diff(first)
    level, done, current = np.zeros(num_moments, np.int64), 0, 0
    place = np.zeros(num_moments, np.int64)
    ready = np.flatnonzero(missing == 0)
    while len(ready):
        level[ready] = current
        current, done = current + 1, done + len(ready)
        counts = degree[ready]
        ends = np.cumsum(counts)
        freed = target[np.arange(ends[-1]) + np.repeat(first[ready] - ends + counts, counts)]
        np.subtract.at(missing, freed, 1)
        ready = freed[missing[freed] == 0]
        place[ready] = np.arange(len(ready))  # of a moment that was freed twice, the last place stays
        ready = ready[place[ready] == np.arange(len(ready))]
    return level if done == num_moments else None
