"""Flows that share lanes by max-min fairness: no flow could be faster without slowing one that is not faster than it.

A flow is a transfer with a full rate, which it has where it is alone. Where the flows of a lane ask for more than it
carries, rates are raised together until a lane is full. The rates of that lane's flows are then final, and the others
rise on (progressive filling: Bertsekas and Gallager, "Data Networks", 2nd edition, section 6.5.2). A flow that passes
several lanes has one rate on all of them.

A flow that never had less than its full rate ends at its beginning plus its price, to the last float. When a flow
begins or ends, rates change only for flows that share a crowded lane with it, directly or through others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, final

from minitrain.platform.timers import Timer

if TYPE_CHECKING:
    from simpy import Environment

    from minitrain.platform.links import Lane


@final
class Flow:
    """One transfer under way.

    Args:
        name: what logs call it.
        lanes: what it passes, and how often.
        size_bytes: what it moves.
        full_rate: what it moves in a second where it is alone, bytes/s.
        ended: called when it has ended.
        unshared_end: when it ends if it never has less than its full rate, s; its beginning plus size over rate if
            None.

    Attributes:
        rate: what it moves in a second now, bytes/s.
        begun: when it began, s.
        was_slowed: whether it ever had less than its full rate.
        slowed_by: the lane that kept it below its full rate last, and whom it shared that lane with.
    """

    __slots__ = (
        "begun",
        "ended",
        "full_rate",
        "lanes",
        "left_bytes",
        "name",
        "rate",
        "since",
        "slowed_by",
        "unshared_end",
        "version",
        "was_slowed",
    )

    def __init__(
        self,
        name: str,
        lanes: Mapping[Lane, float],
        size_bytes: float,
        full_rate: float,
        ended: Callable[[], None],
        unshared_end: float | None = None,
    ) -> None:
        self.name = name
        self.lanes = lanes
        self.left_bytes = size_bytes
        self.full_rate = full_rate
        self.unshared_end = unshared_end
        self.ended = ended
        self.rate = 0.0
        self.begun = self.since = 0.0
        self.was_slowed = False
        self.slowed_by: tuple[Lane, tuple[str, ...]] | None = None
        self.version = 0

    def end(self) -> float:
        """Return when it ends if its rate stays, s."""
        if not self.was_slowed:
            return self.begun + self.left_bytes / self.full_rate if self.unshared_end is None else self.unshared_end
        return self.since + max(self.left_bytes, 0.0) / self.rate


@final
class FairSharing:
    """All flows of a platform.

    Args:
        env: whose clock counts.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self._ends: list[tuple[float, int, int, Flow]] = []
        self._order = count()
        self._timer = Timer(env, self._end_flows)

    def begin(self, flow: Flow) -> None:
        """Let a flow begin now."""
        now, full_rate = self.env.now, flow.full_rate
        flow.begun = flow.since = now
        is_alone = True
        for lane, times in flow.lanes.items():
            lane.flows[flow] = times
            lane.demand += full_rate * times
            if lane.demand > lane.bytes_per_s and lane.is_crowded:
                is_alone = False
        if is_alone:
            self._set_rate(flow, full_rate)
        else:
            self._rate_again(lane for lane in flow.lanes if lane.is_crowded)
        self._expect()

    def _end_flows(self) -> None:
        """End all flows that end now, then set the rates of those that shared lanes with them."""
        now, ended = self.env.now, []
        while self._ends and self._ends[0][0] <= now:
            _, _, version, flow = heappop(self._ends)
            if flow.version == version:
                flow.version += 1
                ended.append(flow)
        was_crowded = dict.fromkeys(lane for flow in ended if flow.was_slowed for lane in flow.lanes if lane.is_crowded)
        for flow in ended:
            self._leave(flow, now)
        if was_crowded:
            self._rate_again(was_crowded)
        self._expect()
        for flow in ended:
            flow.ended()

    def _leave(self, flow: Flow, now: float) -> None:
        """Take a flow from its lanes."""
        full_rate, rate = flow.full_rate, flow.rate
        for lane, times in flow.lanes.items():
            del lane.flows[flow]
            lane.demand = lane.demand - full_rate * times if lane.flows else 0.0
            lane.change_load(now, -rate * times)

    def _rate_again(self, crowded: Iterable[Lane]) -> None:
        """Give the flows that depend on some lanes their fair rates."""
        lanes, flows = _dependent(crowded)
        rates = fair_rates(lanes, flows)
        for flow in flows:
            self._set_rate(flow, rates[flow])
        for lane in lanes:
            names = tuple(flow.name for flow in lane.flows)
            for flow in lane.flows:
                if flow.rate < flow.full_rate and (flow.slowed_by is None or len(names) > 1):
                    flow.slowed_by = lane, names

    def _set_rate(self, flow: Flow, rate: float) -> None:
        """Let a flow go on at another rate."""
        now, change = self.env.now, rate - flow.rate
        if not change:
            return
        if now > flow.since:
            flow.left_bytes -= (now - flow.since) * flow.rate
            flow.since = now
        flow.rate = rate
        flow.was_slowed |= rate != flow.full_rate
        flow.version += 1
        heappush(self._ends, (max(flow.end(), now), next(self._order), flow.version, flow))
        for lane, times in flow.lanes.items():
            lane.change_load(now, change * times)

    def _expect(self) -> None:
        """Set the timer to the next end."""
        ends = self._ends
        while ends and ends[0][3].version != ends[0][2]:
            heappop(ends)
        if ends:
            self._timer.set(ends[0][0])
        else:
            self._timer.cancel()


def _dependent(crowded: Iterable[Lane]) -> tuple[list[Lane], list[Flow]]:
    """Return the lanes and flows whose rates depend on one another, through crowded lanes alone."""
    lanes = dict.fromkeys(crowded)
    flows: dict[Flow, None] = {}
    waiting = list(lanes)
    while waiting:
        for flow in waiting.pop().flows:
            if flow in flows:
                continue
            flows[flow] = None
            for lane in flow.lanes:
                if lane not in lanes and lane.is_crowded:
                    lanes[lane] = None
                    waiting.append(lane)
    return list(lanes), list(flows)


def fair_rates(lanes: Iterable[Lane], flows: Iterable[Flow]) -> dict[Flow, float]:
    """Return the max-min fair rates of flows, bytes/s.

    Args:
        lanes: those that may be full; what passes them is among `flows`.
        flows: the flows.
    """
    rates: dict[Flow, float] = {}
    active = {lane: dict(lane.flows) for lane in lanes}
    left = {lane: lane.bytes_per_s for lane in active}
    open_flows = dict.fromkeys(flows)
    while open_flows:
        levels = {lane: left[lane] / sum(times.values()) for lane, times in active.items() if times}
        lane_level = min(levels.values(), default=math.inf)
        flow_level = min(flow.full_rate for flow in open_flows)
        level = min(lane_level, flow_level)
        done = [flow for flow in open_flows if flow.full_rate <= level]
        if not done:
            full = [lane for lane, reached in levels.items() if reached <= level]
            done = list(dict.fromkeys(flow for lane in full for flow in active[lane]))
        for flow in done:
            del open_flows[flow]
            rates[flow] = level
            for lane in flow.lanes:
                if lane in active:
                    left[lane] = max(left[lane] - level * active[lane].pop(flow), 0.0)
    return rates
