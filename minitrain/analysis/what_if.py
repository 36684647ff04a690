"""What if operations lasted differently: the times of a run with other durations and the same dependencies.

Only durations change. A strategy that would then choose another order or more overlap is not modelled. An operation
that was slowed down by communication beside it stays slow. Loading stays as it is, and is no part of the step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from minitrain.analysis.dependencies import Graph, make_graph
from minitrain.analysis.from_logs import as_timeline
from minitrain.analysis.levels import make_levels
from minitrain.analysis.timeline import Floats, Timeline, Trace
from minitrain.errors import UsageError
from minitrain.events import COLLECTIVES, COMMUNICATIONS, RECV, SEND

_WIDE = 10  # ranks that are as long as the longest; for fewer, numpy's calls cost more than a loop over events


def retime(graph: Graph, duration: Floats) -> Floats:
    """Return when each event would begin.

    Args:
        graph: the dependencies.
        duration: how long each event is to last, s, (num_events,).

    Returns:
        Times, s, (num_events,).

    Raises:
        UsageError: operations wait for one another in a circle, which no real log has.
    """
    return moments(graph, duration)[: len(duration)]


def moments(graph: Graph, duration: Floats) -> Floats:
    """Return when each moment would come, s, (num_moments,): `retime` returns those at which events begin."""
    order = np.argsort(graph.source, kind="stable")
    first = np.searchsorted(graph.source[order], np.arange(graph.num_moments + 1)).tolist()
    targets, after_end = graph.target[order].tolist(), graph.after_end[order].tolist()
    missing = np.bincount(graph.target, minlength=graph.num_moments)
    times = [0.0] * graph.num_moments if graph.release is None else graph.release.tolist()
    lasts = duration.tolist() + [0.0] * (graph.num_moments - len(duration))
    ready, missing, done = np.flatnonzero(missing == 0).tolist(), missing.tolist(), 0
    while ready:
        moment = ready.pop()
        done += 1
        begin = times[moment]
        end = begin + lasts[moment]
        for edge in range(first[moment], first[moment + 1]):
            target = targets[edge]
            arrival = end if after_end[edge] else begin
            if arrival > times[target]:
                times[target] = arrival
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    if done < graph.num_moments:
        raise _circle()
    return np.array(times)


def _circle() -> UsageError:
    return UsageError("the log is damaged: some of its operations wait for one another in a circle")


def retime_all(graph: Graph, durations: Sequence[Floats]) -> list[Floats]:
    """Return when each event would begin, for several durations: the same floats as `retime` gives for each alone.

    Args:
        graph: the dependencies.
        durations: how long each event is to last, s, one (num_events,) a case.

    Returns:
        Times, s, one (num_events,) a case.

    Raises:
        UsageError: operations wait for one another in a circle, which no real log has.
    """
    longest = int(np.diff(graph.timeline.starts).max(initial=0))
    if graph.timeline.num_events < _WIDE * longest or not durations:
        return [retime(graph, duration) for duration in durations]
    levels = make_levels(graph)
    if levels is None:
        raise _circle()
    times = levels.times(np.stack(durations, axis=1))
    return [times[:, case] for case in range(len(durations))]


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
    times = retime_all(graph, durations)
    return [float((time + lasts).max(initial=0.0)) - line.begin for time, lasts in zip(times, durations, strict=True)]


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
