"""What moves over links: flows that share lanes fairly, transfers that put flows on them, and collectives step by step.

**Fairness** is max-min: no flow could be faster without slowing one that is not faster than it. A flow is a transfer
with a full rate, which it has where it is alone. Where the flows of a lane ask for more than it carries, rates are
raised together until a lane is full. The rates of that lane's flows are then final, and the others rise on (progressive
filling: Bertsekas and Gallager, "Data Networks", 2nd edition, section 6.5.2). A flow that passes several lanes has one
rate on all of them. A flow that never had less than its full rate ends at its beginning plus its price, to the last
float. When a flow begins or ends, rates change only for flows that share a crowded lane with it, directly or through
others.

**Collectives** send what the specification says: sizes are what each participant brings (`size_bytes`), so that an
all_gather moves n - 1 times as much. Rings: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH", IJHPCA 19(1), 2005. Trees are binomial: ranks that have something pass it on to as many others,
which doubles them each step.

**Moments** are exact. `env.timeout(delay)` happens at `env.now + delay`. Where the moment is known and not the delay,
both the difference and the sum are rounded, so that the event is off in the last digit. A timeout that is no longer
wanted stays in the queue, so that `env.run()` ends too late. `at` and `Timer` avoid both; nothing else here touches
SimPy's queue.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Literal

from minitrain.errors import UsageError, one_of

if TYPE_CHECKING:
    from simpy import Environment, Event

    from minitrain.machine.platform.links import Lane, Routes

_NORMAL, _LAST = 1, 2
"""SimPy's priority of events that are not urgent, and one for what happens after all others of a moment."""


def at(env: Environment, time: float, happen: Callable[[Any], None], priority: int = _NORMAL) -> Event:
    """Call a function at a moment.

    Args:
        env: whose clock counts.
        time: when, s; not before `env.now`.
        happen: called with the event then.
        priority: what is lower happens first at a moment.

    Returns:
        The event.
    """
    event = env.event()
    event._ok, event._value = True, None
    event.callbacks.append(happen)
    queue: list[Any] = env._queue
    heappush(queue, (time, priority, next(env._eid), event))
    return event


@dataclass(slots=True)
class Timer:
    """Calls a function once, at a moment that may be moved.

    Args:
        env: whose clock counts.
        happen: called when the moment comes.
    """

    env: Environment
    happen: Callable[[], None]
    _entry: Event | None = None
    _time: float = 0.0

    def set(self, time: float) -> None:
        """Set the moment, in place of one that was set before."""
        if self._entry is not None:
            if self._time == time:
                return
            self.cancel()
        self._entry, self._time = at(self.env, time, self._expire), time

    def cancel(self) -> None:
        """Cancel the call, if one is set."""
        if self._entry is None:
            return
        queue = self.env._queue
        queue.remove(next(item for item in queue if item[3] is self._entry))
        heapify(queue)
        self._entry = None

    def _expire(self, _: Event) -> None:
        self._entry = None
        self.happen()


@dataclass(slots=True, eq=False)
class Flow:
    """One transfer under way.

    Args:
        name: what logs call it.
        lanes: what it passes, and how often.
        size_bytes: what it moves.
        full_rate: what it moves in a second where it is alone, bytes/s.
        ended: called with it when it has ended.
        unshared_end: when it ends if it never has less than its full rate, s; its beginning plus size over rate if
            None.

    Attributes:
        begun: when it began, s.
        was_slowed: whether it ever had less than its full rate.
        slowed_by: once it has ended, the lane that kept it below its full rate last, and whom it shared that lane with.
    """

    name: str
    lanes: Mapping[Lane, float]
    size_bytes: float
    full_rate: float
    ended: Callable[[Flow], object]
    unshared_end: float | None = None
    begun: float = 0.0
    was_slowed: bool = False
    slowed_by: tuple[Lane, tuple[str, ...]] | None = None

    def end(self) -> float:
        """Return when it ends if it never has less than its full rate, s."""
        return self.begun + self.size_bytes / self.full_rate if self.unshared_end is None else self.unshared_end


@dataclass(slots=True, eq=False)
class Stream:
    """All flows of one full rate over the same lanes, which have one rate, whenever each began.

    What each of them still moves differs by what the stream had moved when it began, so that a new rate is one step for
    all of them.

    Args:
        lanes: what each flow passes, and how often.
        full_rate: what a flow moves in a second where it is alone, bytes/s.

    Attributes:
        rate: what each flow moves in a second now, bytes/s.
        since: when the rate changed last, s.
        moved_bytes: what each flow has moved until then, of those that were there all the time.
        load: what all of them moved in a second when lanes were told, bytes/s.
        flows: those under way.
        begun: those of them that have no rate yet.
        unslowed: those that never had less than their full rate.
        ends: of the others, what `moved_bytes` is when each ends.
        slowed_by: the lane that keeps them below their full rate, and all that pass it.
        version: how often the next end was found anew.
    """

    lanes: tuple[tuple[Lane, float], ...]
    full_rate: float
    rate: float = 0.0
    since: float = 0.0
    moved_bytes: float = 0.0
    load: float = 0.0
    flows: dict[Flow, None] = field(default_factory=dict)
    begun: list[Flow] = field(default_factory=list)
    unslowed: dict[Flow, None] = field(default_factory=dict)
    ends: list[tuple[float, int, Flow]] = field(default_factory=list)
    slowed_by: tuple[Lane, tuple[str, ...]] | None = None
    version: int = 0

    def go_on(self, now: float) -> None:
        """Move what is moved until now."""
        if now > self.since:
            self.moved_bytes += (now - self.since) * self.rate
            self.since = now

    def next_end(self) -> float:
        """Return when the next of the slowed flows ends if the rate stays, s."""
        return self.since + max(self.ends[0][0] - self.moved_bytes, 0.0) / self.rate

    def change_load(self, now: float) -> None:
        """Tell the lanes what passes them now."""
        load = self.rate * len(self.flows)
        for lane, times in self.lanes:
            lane.change_load(now, (load - self.load) * times)
        self.load = load


class FairSharing:
    """All flows of a platform.

    Args:
        env: whose clock counts.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self._streams: dict[tuple[Any, float], Stream] = {}
        self._ends: list[tuple[float, int, int, Stream, Flow | None]] = []
        self._order = count()
        self._timer = Timer(env, self._end_flows)
        self._begun: dict[Stream, None] = {}

    def begin(self, *flows: Flow) -> None:
        """Let flows begin now. They get their rates when all that happens now has happened, together."""
        now = self.env.now
        if flows and not self._begun:
            at(self.env, now, self._rate_begun, _LAST)
        for flow in flows:
            flow.begun = now
            key = (*flow.lanes.items(),), flow.full_rate
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = Stream(*key)
            stream.flows[flow] = None
            stream.begun.append(flow)
            self._begun[stream] = None

    def _rate_begun(self, _: Event) -> None:
        """Give the flows that have begun now their rates."""
        streams, self._begun = self._begun, {}
        for stream in streams:
            _count(stream, len(stream.begun))
        rated = self._rate_again(dict.fromkeys(lane for each in streams for lane, _ in each.lanes if lane.is_crowded))
        for stream in streams:
            if stream not in rated:
                self._set_rate(stream, stream.full_rate)
        self._expect()

    def _end_flows(self) -> None:
        """End all flows that end now, then set the rates of those that shared lanes with them."""
        now, ended = self.env.now, list[Flow]()
        numbers: Counter[Stream] = Counter()
        for stream, found in self._due(now):
            numbers[stream] += len(found)
            ended += found
            for flow in found:
                del stream.flows[flow]
                stream.unslowed.pop(flow, None)
        was_crowded = dict.fromkeys(lane for stream in numbers for lane, _ in stream.lanes if lane.is_crowded)
        for stream, number in numbers.items():
            _count(stream, -number)
            stream.change_load(now)
        rated = self._rate_again(was_crowded)
        for stream in numbers:
            if stream.ends and stream not in rated:
                self._set_rate(stream, stream.rate)
            elif not stream.flows:
                stream.moved_bytes, stream.slowed_by = 0.0, None
        self._expect()
        for each in ended:
            each.ended(each)

    def _due(self, now: float) -> Iterator[tuple[Stream, list[Flow]]]:
        """Yield the flows that end now."""
        while self._ends and self._ends[0][0] <= now:
            _, _, version, stream, flow = heappop(self._ends)
            if _is_due(version, stream, flow):
                yield stream, _ended(stream, now) if flow is None else [flow]

    def _rate_again(self, crowded: Iterable[Lane]) -> set[Stream]:
        """Give the streams that depend on some lanes their fair rates, and return them."""
        lanes_rated: set[Lane] = set()
        found: set[Stream] = set()
        for first in crowded:
            if first in lanes_rated:
                continue
            lanes, streams = _dependent(first)
            lanes_rated.update(lanes)
            found.update(streams)
            for stream, rate in fair_rates(lanes, streams).items():
                self._set_rate(stream, rate)
            for lane in lanes:
                shared = lane, tuple([flow.name for stream in lane.flows for flow in stream.flows])
                for stream in lane.flows:
                    if stream.rate < stream.full_rate and (stream.slowed_by is None or len(shared[1]) > 1):
                        stream.slowed_by = shared
        return found

    def _set_rate(self, stream: Stream, rate: float) -> None:
        """Let the flows of a stream go on at a rate."""
        now = self.env.now
        stream.go_on(now)
        stream.rate = rate
        if rate != stream.full_rate:
            for flow in (*stream.unslowed, *stream.begun):
                flow.was_slowed = True
                left = flow.size_bytes - (now - flow.begun) * stream.full_rate
                heappush(stream.ends, (stream.moved_bytes + left, next(self._order), flow))
            stream.unslowed.clear()
        else:
            for flow in stream.begun:
                stream.unslowed[flow] = None
                heappush(self._ends, (max(flow.end(), now), next(self._order), 0, stream, flow))
        stream.begun.clear()
        stream.version += 1
        if stream.ends:
            heappush(self._ends, (max(stream.next_end(), now), next(self._order), stream.version, stream, None))
        stream.change_load(now)

    def _expect(self) -> None:
        """Set the timer to the next end."""
        ends = self._ends
        while ends and not _is_due(*ends[0][2:]):
            heappop(ends)
        if ends:
            self._timer.set(ends[0][0])
        else:
            self._timer.cancel()


def _is_due(version: int, stream: Stream, flow: Flow | None) -> bool:
    """Return whether an end that was expected is still expected then."""
    return version == stream.version if flow is None else not flow.was_slowed


def _ended(stream: Stream, now: float) -> list[Flow]:
    """Take the slowed flows of a stream that end now, one at least, and return them."""
    stream.go_on(now)
    found: list[Flow] = []
    while stream.ends and (not found or stream.next_end() <= now):
        _, _, flow = heappop(stream.ends)
        flow.slowed_by = stream.slowed_by
        found.append(flow)
    stream.version += 1
    return found


def _count(stream: Stream, change: int) -> None:
    """Tell the lanes of a stream that some flows pass them more, or fewer, and what these ask for."""
    for lane, times in stream.lanes:
        if stream.flows:
            lane.flows[stream] = times * len(stream.flows)
        else:
            lane.flows.pop(stream, None)
        lane.demand = lane.demand + change * times * stream.full_rate if lane.flows else 0.0


def _dependent(crowded: Lane) -> tuple[list[Lane], list[Stream]]:
    """Return the lanes and streams whose rates depend on those of a crowded lane, through crowded lanes alone."""
    lanes = {crowded: None}
    streams: dict[Stream, None] = {}
    waiting = list(lanes)
    while waiting:
        for stream in waiting.pop().flows:
            if stream in streams:
                continue
            streams[stream] = None
            others = [lane for lane, _ in stream.lanes if lane not in lanes and lane.is_crowded]
            lanes.update(dict.fromkeys(others))
            waiting += others
    return list(lanes), list(streams)


def fair_rates(lanes: Iterable[Lane], streams: Iterable[Stream]) -> dict[Stream, float]:
    """Return the max-min fair rates of the flows of some streams, bytes/s.

    Args:
        lanes: those that may be full; what passes them is among `streams`.
        streams: the flows.
    """
    rates: dict[Stream, float] = {}
    active = {lane: dict(lane.flows) for lane in lanes}
    left = {lane: lane.bytes_per_s for lane in active}
    still = dict.fromkeys(streams)
    while still:
        levels = {lane: left[lane] / sum(times.values()) for lane, times in active.items() if times}
        level = min(*(stream.full_rate for stream in still), *levels.values(), math.inf)
        done = [stream for stream in still if stream.full_rate <= level]
        if not done:
            full = [lane for lane, reached in levels.items() if reached <= level]
            done = list(dict.fromkeys(stream for lane in full for stream in active[lane]))
        for stream in done:
            del still[stream]
            rates[stream] = level
            for lane, _ in stream.lanes:
                if lane in active:
                    left[lane] = max(left[lane] - level * active[lane].pop(stream), 0.0)
    return rates


Algorithm = Literal["ring", "tree"]
Step = list[tuple[int, int, float]]
"""Messages that go at the same time: the sender's place, the receiver's, and bytes."""

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


def op_of(name: str) -> str:
    """Return an operation by one of its spellings ("AllReduce", "all_reduce").

    Raises:
        UsageError: there is none of that name.
    """
    found = {op.replace("_", ""): op for op in OPS}.get(name.lower().replace("-", "").replace("_", ""))
    if found is None:
        raise UsageError(f"there is no collective {name!r}; {one_of(name, OPS)}", op=name)
    return found


def steps_of(op: str, num_ranks: int, size_bytes: float, algorithm: Algorithm = "ring") -> Iterator[Step]:
    """Yield the steps of a collective.

    Args:
        op: one of `OPS`.
        num_ranks: how many take part.
        size_bytes: what each of them brings; of a broadcast, what the first has.
        algorithm: "ring" or "tree"; trees are for all_reduce and broadcast.

    Raises:
        UsageError: the algorithm is not one for the operation.
    """
    if num_ranks == 1:
        return
    if algorithm == "tree":
        yield from _tree(op, num_ranks, size_bytes)
    elif op == "broadcast":
        yield from ([(source, dest, size_bytes)] for source, dest in pairwise(range(num_ranks)))
    else:
        num_steps, chunk = shape_of(op, num_ranks, size_bytes)
        for step in range(num_steps):
            shift = step + 1 if op == "all_to_all" else 1
            yield [(rank, (rank + shift) % num_ranks, chunk) for rank in range(num_ranks)]


def _tree(op: str, num_ranks: int, size_bytes: float) -> Iterator[Step]:
    if op not in ("all_reduce", "broadcast"):
        raise UsageError(f'algorithm="tree" is for all_reduce and broadcast, not {op}; use "ring"', op=op)
    spread: list[Step] = []
    reached = 1
    while reached < num_ranks:
        spread.append([(rank, rank + reached, size_bytes) for rank in range(min(reached, num_ranks - reached))])
        reached *= 2
    if op == "all_reduce":
        yield from ([(dest, source, size) for source, dest, size in step] for step in reversed(spread))
    yield from spread


def shape_of(op: str, num_ranks: int, size_bytes: float, algorithm: Algorithm = "ring") -> tuple[int, float]:
    """Return how many steps a collective has, and the bytes of a message; arguments as for `steps_of`.

    Where no link is shared it takes that many times `message_s`. So a ring's all_reduce takes 2 (n - 1) x (size / n /
    bandwidth + latency).
    """
    if algorithm == "tree":
        return sum(1 for _ in steps_of(op, num_ranks, size_bytes, algorithm)), size_bytes
    num_steps = (num_ranks - 1) * (2 if op == "all_reduce" else 1)
    return num_steps, size_bytes if op in ("all_gather", "broadcast") else size_bytes / num_ranks


def message_s(size_bytes: float, bytes_per_s: float, latency_s: float) -> float:
    """Return how long a message takes that shares no link, s; rounded once."""
    return (size_bytes + latency_s * bytes_per_s) / bytes_per_s


@dataclass(slots=True)
class _Way:
    """The lanes that a message passes, and how often, with what it takes where it is alone."""

    lanes: Counter[Lane]
    size_bytes: float
    latency_s: float
    rate: float = field(init=False)
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        """A message without lanes has arrived."""
        self.rate = min((lane.bytes_per_s / times for lane, times in self.lanes.items()), default=math.inf)
        self.seconds = message_s(self.size_bytes, self.rate, self.latency_s) if self.lanes else 0.0


Slowed = Generator["Event", Any, Flow | None]
"""What a process goes through until a transfer has ended; returns a flow of it that was slowed last, or None."""


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

    def _way(self, source: str, dest: str, size_bytes: float) -> _Way:
        route = self.routes.route(source, dest)
        return _Way(Counter(route), size_bytes, sum(lane.latency_s for lane in route))

    def _move(self, name: str, messages: Iterable[tuple[_Way, float | None]]) -> Event:
        """Let messages begin after their latency, and return the event of the last one's arrival.

        Its value is the flow that was slowed and arrived last, or None. A message that shares no link arrives at the
        moment beside it, if there is one.
        """
        now, arrived, slowed = self.env.now, self.env.event(), None
        num_left = 0
        starts: defaultdict[float, list[Flow]] = defaultdict(list)

        def arrive(flow: Flow) -> None:
            nonlocal slowed, num_left
            num_left -= 1
            slowed = flow if flow.was_slowed else slowed
            if not num_left:
                arrived.succeed(slowed)

        for way, expected in messages:
            if way.lanes:
                end = now + way.seconds if expected is None else expected
                flow = Flow(name, way.lanes, way.size_bytes, way.rate, arrive, end)
                starts[min(now + way.latency_s, end)].append(flow)
                num_left += 1
        for time, flows in starts.items():
            at(self.env, time, lambda _, flows=flows: self.sharing.begin(*flows))  # type: ignore[misc]  # a default binds it
        return arrived if starts else arrived.succeed()

    def send(self, name: str, source: str, dest: str, size_bytes: float) -> Slowed:
        """Move bytes from one endpoint to another, after the latency of the route.

        Args:
            name: what logs call it.
            source: the endpoint that has them.
            dest: the endpoint that gets them.
            size_bytes: how many.
        """
        flow: Flow | None = yield self._move(name, [(self._way(source, dest, size_bytes), None)])
        return flow

    def all_together(
        self, name: str, endpoints: Sequence[str], op: str, size_bytes: float, algorithm: Algorithm
    ) -> Slowed:
        """Run a collective as one flow over all of its links: `medium` level of detail.

        Where it shares no link, it takes the closed form of its slowest pair of ranks (see `shape_of`).
        """
        num_steps, chunk = shape_of(op, len(endpoints), size_bytes, algorithm)
        steps = steps_of(op, len(endpoints), size_bytes, algorithm)
        pairs = dict.fromkeys(tuple((source, dest) for source, dest, _ in step) for step in steps)
        lanes: Counter[Lane] = Counter()
        latency_s = 0.0
        for step in pairs:  # a lane carries as many messages at once as pass it in one step
            ways = [self._way(endpoints[source], endpoints[dest], chunk) for source, dest in step]
            lanes |= Counter(lane for way in ways for lane in way.lanes.elements())
            latency_s = max(latency_s, *(way.latency_s for way in ways))
        message = _Way(lanes, chunk, latency_s)
        whole = _Way(lanes, num_steps * chunk, num_steps * latency_s)
        flow: Flow | None = yield self._move(name, [(whole, self.env.now + num_steps * message.seconds)])
        return flow

    def step_by_step(
        self, name: str, endpoints: Sequence[str], op: str, size_bytes: float, algorithm: Algorithm
    ) -> Slowed:
        """Run a collective message by message: `high` level of detail. A step begins when the one before has ended.

        As long as no message was slowed and all steps are alike, moments are counted from the first step, so that
        rounding errors do not add up.
        """
        way_of = cache(
            lambda source, dest, size: self._way(endpoints[source], endpoints[dest], size)
        )  # steps are alike
        slowed: Flow | None = None
        base, num_alike, seconds = self.env.now, 0, 0.0
        for step in steps_of(op, len(endpoints), size_bytes, algorithm):
            ways = [way_of(*message) for message in step]
            longest = max(way.seconds for way in ways)
            if longest != seconds:
                base, num_alike, seconds = self.env.now, 0, longest
            num_alike += 1
            end = base + num_alike * longest
            late = yield self._move(name, [(way, end if way.seconds == longest else None) for way in ways])
            if late is not None:
                slowed, seconds = late, 0.0
        return slowed
