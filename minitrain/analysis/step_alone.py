"""A step without the loading before it, where ranks load for unequal times.

The step begins when the weights are there. Where all ranks load for the same time, they begin together, and the clocks
of the log, less that time, are those of the step. Where they do not, some begin while others still load, and the clocks
say when loading ends, and not what the step takes. So the run is timed again with the same dependencies and with loads
that take no time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from minitrain.analysis.dependencies import make_graph
from minitrain.analysis.matching import collectives, messages
from minitrain.analysis.timeline import NONE, Bools, Ints, Timeline
from minitrain.analysis.what_if import moments


def are_alike(load_ends: Iterable[Any]) -> bool:
    """Return whether the weights of all ranks are there at the same time."""
    ends = [getattr(end, "values", end) for end in load_ends]  # of several machines
    return all(end is ends[0] or bool(np.all(end == ends[0])) for end in ends)


def step_alone(timeline: Timeline) -> Timeline:
    """Return a run as it would be if the weights of all ranks were there at 0: the run itself where they load alike."""
    working = np.diff(timeline.starts) > 0
    if are_alike(np.unique(timeline.load_ends[working])):
        return timeline
    duration, count = np.where(timeline.loading, 0.0, timeline.duration), timeline.num_events
    times = moments(make_graph(timeline), duration)
    time, launched = times[:count], times[count : 2 * count]
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
