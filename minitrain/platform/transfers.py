"""Transfers and collectives on the links of a platform, as flows that share them fairly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Literal, final

from minitrain.platform.collective_steps import Algorithm, Step, message_s, shape_of, steps_of
from minitrain.platform.fair_sharing import FairSharing, Flow
from minitrain.platform.timers import at

if TYPE_CHECKING:
    from simpy import Environment

    from minitrain.platform.links import Lane
    from minitrain.platform.routes import Routes

LevelOfDetail = Literal["high", "medium"]


@final
class Transfers:
    """What moves over the links of a platform.

    Args:
        env: whose clock counts.
        routes: the routes between endpoints.
    """

    def __init__(self, env: Environment, routes: Routes) -> None:
        self.env = env
        self.routes = routes
        self.sharing = FairSharing(env)
        self._numbers = count()

    def name(self, kind: str) -> str:
        """Return a name for something that has none."""
        return f"{kind} {next(self._numbers)}"

    def send(self, name: str, source: str, dest: str, size_bytes: float, done: Callable[[Flow | None], None]) -> None:
        """Move bytes from one endpoint to another, after the latency of the route.

        Args:
            name: what logs call it.
            source: the endpoint that has them.
            dest: the endpoint that gets them.
            size_bytes: how many.
            done: called when they have arrived, with the flow; None if they were there already.
        """
        lanes = Counter(self.routes.route(source, dest))
        self._flow(name, lanes, size_bytes, sum(lane.latency_s for lane in lanes), done)

    def _flow(
        self,
        name: str,
        lanes: Counter[Lane],
        size_bytes: float,
        latency_s: float,
        done: Callable[[Flow | None], None],
        unshared_end: float | None = None,
    ) -> None:
        """Let a flow begin after a latency; one without lanes has arrived."""
        now = self.env.now
        if not lanes:
            at(self.env, now, lambda _: done(None))
            return
        rate = full_rate(lanes)
        if unshared_end is None:
            unshared_end = now + message_s(size_bytes, rate, latency_s)
        flow = Flow(name, lanes, size_bytes, rate, lambda: done(flow), unshared_end)
        at(self.env, min(now + latency_s, unshared_end), lambda _: self.sharing.begin(flow))

    def all_together(
        self,
        name: str,
        endpoints: Sequence[str],
        op: str,
        size_bytes: float,
        algorithm: Algorithm,
        done: Callable[[Flow | None], None],
    ) -> None:
        """Run a collective as one flow over all of its links: `medium` level of detail.

        Where it shares no link, it takes what `closed_form` gives for its slowest pair of ranks.
        """
        routes = self._routes_of(endpoints, steps_of(op, len(endpoints), size_bytes, algorithm))
        lanes: Counter[Lane] = Counter()
        latency_s = 0.0
        for step in routes:  # a lane carries as many messages at once as pass it in one step
            lanes |= Counter(lane for route in step for lane in route)
            latency_s = max(latency_s, *(sum(lane.latency_s for lane in route) for route in step))
        num_steps, chunk = shape_of(op, len(endpoints), size_bytes, algorithm)
        unshared_end = self.env.now + num_steps * message_s(chunk, full_rate(lanes), latency_s) if lanes else None
        self._flow(name, lanes, num_steps * chunk, num_steps * latency_s, done, unshared_end)

    def _routes_of(self, endpoints: Sequence[str], steps: Iterable[Step]) -> list[list[tuple[Lane, ...]]]:
        """Return the routes of the messages of each step; steps that are alike are given once."""
        pairs = dict.fromkeys(tuple((source, dest) for source, dest, _ in step) for step in steps)
        return [[self.routes.route(endpoints[source], endpoints[dest]) for source, dest in step] for step in pairs]

    def step_by_step(
        self,
        name: str,
        endpoints: Sequence[str],
        op: str,
        size_bytes: float,
        algorithm: Algorithm,
        done: Callable[[Flow | None], None],
    ) -> None:
        """Run a collective message by message: `high` level of detail. A step begins when the one before has ended."""
        _Steps(self, name, endpoints, steps_of(op, len(endpoints), size_bytes, algorithm), done).go_on()


@final
class _Steps:
    """A collective under way, message by message.

    As long as no message was slowed and all steps are alike, moments are counted from the first step, so that rounding
    errors do not add up.
    """

    def __init__(
        self,
        transfers: Transfers,
        name: str,
        endpoints: Sequence[str],
        steps: Iterable[Step],
        done: Callable[[Flow | None], None],
    ) -> None:
        self.transfers = transfers
        self.name = name
        self.endpoints = endpoints
        self.steps = iter(steps)
        self.done = done
        self.slowed: Flow | None = None
        self.missing = 0
        self.base = transfers.env.now
        self.num_alike = 0
        self.seconds = 0.0

    def go_on(self) -> None:
        """Send the messages of the next step."""
        step, env = next(self.steps, None), self.transfers.env
        if step is None:
            at(env, env.now, lambda _: self.done(self.slowed))
            return
        self.missing = len(step)
        routes = [Counter(self.transfers.routes.route(self.endpoints[a], self.endpoints[b])) for a, b, _ in step]
        latencies = [sum(lane.latency_s for lane in route) for route in routes]
        sizes = [size for _, _, size in step]
        lasting = max(
            (
                message_s(size, full_rate(route), latency_s)
                for route, size, latency_s in zip(routes, sizes, latencies, strict=True)
                if route
            ),
            default=0.0,
        )
        if lasting != self.seconds:
            self.base, self.num_alike, self.seconds = env.now, 0, lasting
        self.num_alike += 1
        for route, size, latency_s in zip(routes, sizes, latencies, strict=True):
            alone = message_s(size, full_rate(route), latency_s) if route else 0.0
            end = self.base + self.num_alike * lasting if alone == lasting else None
            self.transfers._flow(self.name, route, size, latency_s, self.arrived, end)

    def arrived(self, flow: Flow | None) -> None:
        """Count a message that has arrived."""
        self.missing -= 1
        if flow is not None and flow.was_slowed:
            self.slowed, self.seconds = flow, 0.0
        if not self.missing:
            self.go_on()


def full_rate(lanes: Counter[Lane]) -> float:
    """Return what a flow moves in a second where it is alone, bytes/s."""
    return min(lane.bytes_per_s / times for lane, times in lanes.items())
