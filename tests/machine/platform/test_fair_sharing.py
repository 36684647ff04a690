"""Flows share lanes as the definition of max-min fairness says, and nothing is lost or made on the way."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Environment

from minitrain.machine.platform.fair_sharing import FairSharing, Flow, Timer, at
from minitrain.machine.platform.links import Lane

START_LATER = 2e-4
LATENCY = 2e-5
SIZE, RATE = 33_554_432, 45e9


def two_flows(num_lanes: int, later: float) -> list[float]:
    env = Environment()
    sharing = FairSharing(env)
    lanes = [Lane(f"nic{place}", RATE) for place in range(num_lanes)]
    ends: dict[int, float] = {}
    for place, start in enumerate((0.0, later)):
        flow = Flow(str(place), {lanes[place % num_lanes]: 1}, SIZE, RATE, lambda _, p=place: ends.update({p: env.now}))  # type: ignore[misc]  # a default binds it
        at(env, start + LATENCY, lambda _, flow=flow: sharing.begin(flow))  # type: ignore[misc]
    env.run()
    assert env.now == max(ends.values())
    return [ends[0], ends[1]]


def test_two_transfers_end_as_the_closed_forms_say() -> None:
    assert two_flows(1, 0.0) == [0.001511308088888889, 0.001511308088888889]
    assert two_flows(1, START_LATER) == [0.0013113080888888888, 0.001511308088888889]
    assert two_flows(2, 0.0) == [0.0007656540444444445, 0.0007656540444444445]


def test_what_a_flow_at_its_full_rate_leaves_behind_is_taken() -> None:
    """Two of 2 bytes/s beside one that could move 10: it has 8 for a second, then all 10."""
    env = Environment()
    sharing, lane, ends = FairSharing(env), Lane("wire", 10.0), {}
    for name, size, full in (("slow", 2.0, 2.0), ("fast", 18.0, 10.0)):
        sharing.begin(Flow(name, {lane: 1}, size, full, lambda flow: ends.update({flow.name: env.now})))
    env.run()
    assert ends == {"slow": 1.0, "fast": 2.0}


def max_min(flows: list[tuple[list[int], float]], capacities: list[float]) -> list[float]:
    """Return max-min rates by water filling in tiny steps of the definition: raise all until each meets a full lane."""
    rates, fixed = [0.0] * len(flows), [False] * len(flows)
    while not all(fixed):
        rooms = []
        for lane, capacity in enumerate(capacities):
            there = [i for i, (lanes, _) in enumerate(flows) if lane in lanes]
            rising = [i for i in there if not fixed[i]]
            if rising:
                rooms.append((capacity - sum(rates[i] for i in there)) / len(rising))
        rooms += [full - rates[i] for i, (_, full) in enumerate(flows) if not fixed[i]]
        step = max(min(rooms), 0.0)
        rates = [rate + (0.0 if done else step) for rate, done in zip(rates, fixed, strict=True)]
        for i, (lanes, full) in enumerate(flows):
            blocked = any(
                sum(rates[j] for j, (others, _) in enumerate(flows) if lane in others) >= capacities[lane] * (1 - 1e-12)
                for lane in lanes
            )
            fixed[i] |= blocked or rates[i] >= full * (1 - 1e-12)
    return rates


CASES = st.lists(
    st.tuples(st.sets(st.integers(0, 4), min_size=1, max_size=3).map(sorted), st.sampled_from([1.0, 2.0, 3.0, 5.0])),
    min_size=1,
    max_size=8,
)


@settings(max_examples=100, deadline=None)
@given(CASES, st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=5, max_size=5))
def test_rates_are_max_min_fair(flows: list[tuple[list[int], float]], capacities: list[float]) -> None:
    env = Environment()
    sharing = FairSharing(env)
    lanes = [Lane(str(place), capacity) for place, capacity in enumerate(capacities)]
    made = [Flow("", {lanes[lane]: 1 for lane in where}, 1.0, full, lambda _: None) for where, full in flows]
    for flow in made:
        sharing.begin(flow)
    while env.peek() == 0:
        env.step()
    rates = {flow: stream.rate for stream in sharing._streams.values() for flow in stream.flows}
    expected = max_min(flows, capacities)
    assert all(abs(rates[flow] - rate) < 1e-9 for flow, rate in zip(made, expected, strict=True))


@settings(max_examples=100, deadline=None)
@given(CASES, st.lists(st.floats(0, 3), min_size=8, max_size=8), st.lists(st.floats(0, 9), min_size=8, max_size=8))
def test_all_bytes_arrive_and_no_lane_carries_more_than_it_can(
    flows: list[tuple[list[int], float]], starts: list[float], sizes: list[float]
) -> None:
    env = Environment()
    sharing = FairSharing(env)
    lanes = [Lane(str(place), 2.0) for place in range(5)]
    ended: list[int] = []
    moved = [0.0] * 5
    for place, ((where, full), start, size) in enumerate(zip(flows, starts, sizes, strict=False)):
        for number in where:
            moved[number] += size
        flow = Flow("", {lanes[number]: 1 for number in where}, size, full, lambda _, p=place: ended.append(p))  # type: ignore[misc]
        at(env, start, lambda _, flow=flow: sharing.begin(flow))  # type: ignore[misc]
    env.run()
    assert sorted(ended) == list(range(len(flows)))
    for lane, expected in zip(lanes, moved, strict=True):
        carried = lane.utilization(env.now) * lane.bytes_per_s * env.now if env.now else 0.0
        assert abs(carried - expected) < 1e-6
        assert all(load <= lane.bytes_per_s * (1 + 1e-9) for _, load in lane.steps)
        assert not lane.flows


def test_a_timer_that_is_moved_or_cancelled_leaves_nothing_behind() -> None:
    env = Environment()
    rung: list[float] = []
    timer = Timer(env, lambda: rung.append(env.now))
    timer.set(5.0)
    timer.set(2.0)
    cancelled = Timer(env, lambda: rung.append(-1.0))
    cancelled.set(9.0)
    cancelled.cancel()
    env.run()
    assert (rung, env.now) == ([2.0], 2.0)
