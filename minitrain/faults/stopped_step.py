"""What every rank still finishes of a step in which devices die, as a part of its log.

A dead rank does nothing that would end after its death. What waits for it waits for ever: a collective that it has not
finished, a message that it has not sent or taken. The other ranks go on until they wait for such an operation, or are
stopped. So the run is timed again with infinite durations on the dead ranks, and cut at the stop. What happens before
a death does not depend on it.

A send whose message nobody has taken is lost with it. Left out: what a library does with a collective that is half
done; it is lost for all of its ranks.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from minitrain.analysis.dependencies import make_graph
from minitrain.analysis.matching import collectives, messages
from minitrain.analysis.timeline import Bools, Timeline
from minitrain.analysis.what_if import retime


def finished_events(timeline: Timeline, dead: Collection[int], at_s: float, stop_s: float) -> Bools:
    """Return which events come to an end in a step that devices' deaths stop.

    Args:
        timeline: the step as it is without faults.
        dead: the ranks that die.
        at_s: when they die, s.
        stop_s: when all others are stopped, s.

    Returns:
        One truth value an event, (num_events,). Of a collective all events have the same, and of a message both.
    """
    lost = np.isin(timeline.rank, list(dead)) & (timeline.end > at_s)
    lost = _with_partners(timeline, lost)
    duration = np.where(lost, np.inf, timeline.duration)
    end = retime(make_graph(timeline), duration) + duration  # infinity for what never comes to an end
    return ~_with_partners(timeline, ~(end <= stop_s))


def _with_partners(timeline: Timeline, lost: Bools) -> Bools:
    """Return what is lost together with some events: all of a collective, and both ends of a message."""
    lost = lost.copy()
    members, places = collectives(timeline)
    if len(members):
        whole = np.logical_or.reduceat(lost[members], places[:-1])
        lost[members] = np.repeat(whole, np.diff(places))
    sends, receives = messages(timeline)
    either = lost[sends] | lost[receives]
    lost[sends], lost[receives] = either, either
    return lost
