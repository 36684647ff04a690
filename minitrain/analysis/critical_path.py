"""The critical path: the chain of operations, across ranks, that sets the step time.

Loading is no part of it: the step begins when the weights are there.

It is followed backwards from the latest end of all ranks. Each step goes to the dependency that was fulfilled last; of
two at the same time, to the one on the same rank. In a simulated run no operation of the path waits: at every time, one
of them is at work. Time that no dependency explains, as in a measured log, counts as waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minitrain.analysis.dependencies import Graph
from minitrain.analysis.timeline import NONE, Bools, Floats, Ints, Timeline
from minitrain.errors import UsageError

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
    _prefer_own_rank(graph, moment, times)
    _require_no_circle(moment)
    return Binding(moment, after_end, np.where(slack > _ROUNDING * graph.timeline.step_time, slack, 0.0))


def _prefer_own_rank(graph: Graph, moment: Ints, times: Floats) -> None:
    """Give a member of a collective that came as late as the last one no dependency on another rank."""
    count = graph.timeline.num_events
    met = np.flatnonzero(moment[:count] >= 2 * count)
    late = met[graph.timeline.launched[met] >= times[moment[met]]]
    moment[late] = count + late


def _require_no_circle(moment: Ints) -> None:
    """Require that every chain of dependencies, followed backwards, ends at a moment that waits for nothing.

    Raises:
        UsageError: operations wait for one another in a circle, which no real log has.
    """
    following = np.append(moment, NONE)  # the last place stands for `NONE`
    for _ in range(len(moment).bit_length()):  # each round follows twice as many dependencies
        following = following[following]
    if np.any(following != NONE):
        raise UsageError("the log is damaged: some of its operations wait for one another in a circle")


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
