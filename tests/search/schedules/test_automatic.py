"""Zero-bubble schedules made for times and memory: bubbles, memory and what the authors report."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain import schedules
from minitrain.search.schedules.generators import _Pipeline, span_and_end
from minitrain.search.schedules.schedule import Kind, Schedule

TIMES = st.floats(0.5, 2.0)


def most_alive(schedule: Schedule, share: float) -> float:
    """Return the most activations that a rank keeps, in those of a microbatch."""
    steps = {"F": 1.0, "I": share - 1, "W": -share}
    return max(
        max(sum(steps[action.kind] for action in order[: end + 1]) for end in range(len(order)))
        for order in schedule.orders
    )


@given(p=st.integers(1, 6), m=st.integers(1, 20), times=st.tuples(TIMES, TIMES, TIMES), share=st.floats(0.2, 1.0))
def test_any_costs_make_an_order_that_runs_within_its_memory(
    p: int, m: int, times: tuple[float, float, float], share: float
) -> None:
    for generator, limit in ((schedules.zb_1p, p), (schedules.zb_2p, 2 * p)):
        schedule = generator(p, m, 1, (*times, 0.05, share))
        schedules.validate(schedule)
        assert schedule.num_ranks == p
        assert schedule.num_microbatches == m
        assert most_alive(schedule, share) <= limit + 1e-9


@pytest.mark.parametrize("p", [2, 4, 8])
def test_passes_that_are_alike_have_the_bubbles_of_the_handmade_orders(p: int) -> None:
    costs = (1.0, 1.0, 1.0, 0.0, 1.0)
    work = 3 * 3 * p
    for automatic, handmade in ((schedules.zb_1p, schedules.zb_h1), (schedules.zb_2p, schedules.zb_h2)):
        assert span_and_end(automatic(p, 3 * p), costs)[0] == span_and_end(handmade(p, 3 * p), costs)[0]
    assert span_and_end(schedules.zb_1p(p, 3 * p), costs)[0] == work + p - 1
    assert span_and_end(schedules.zb_2p(p, 3 * p), costs)[0] == work


@given(p=st.integers(1, 6), m=st.integers(1, 20), times=st.tuples(TIMES, TIMES, TIMES), share=st.floats(0.2, 1.0))
def test_no_order_is_longer_than_the_handmade_one(
    p: int, m: int, times: tuple[float, float, float], share: float
) -> None:
    costs = (*times, 0.05, share)
    one, two = (span_and_end(generator(p, m, 1, costs), costs) for generator in (schedules.zb_1p, schedules.zb_2p))
    assert one <= span_and_end(schedules.zb_h1(p, m), costs)
    assert two <= min(span_and_end(generator(p, m), costs) for generator in (schedules.zb_h1, schedules.zb_h2))


def test_memory_that_input_gradients_free_makes_bubbles_smaller() -> None:
    times = (18.522, 18.086, 9.337, 0.601)  # GPT 1.5B in 8 stages: Qi et al. 2023, table 9
    work = 24 * sum(times[:3])
    spans = [span_and_end(schedules.zb_2p(8, 24, 1, (*times, share)), (*times, share))[0] for share in (1.0, 0.37)]
    assert work < spans[1] < spans[0] < span_and_end(schedules.zb_h2(8, 24), (*times, 1.0))[0]


@pytest.mark.parametrize("choices", [*product((False, True), repeat=3)])
@given(
    p=st.integers(1, 7),
    m=st.integers(1, 16),
    times=st.tuples(*[st.sampled_from([0.5, 1.0, 1.25, 2.0])] * 3),
    message=st.sampled_from([0.0, 0.25, 1.5]),
    share=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_looking_at_every_free_rank_at_every_moment_makes_no_other_order(
    choices: tuple[bool, ...], p: int, m: int, times: tuple[float, ...], message: float, share: float
) -> None:
    class Restless(_Pipeline):
        def _take(self, rank: int, now: float) -> Kind | None:
            kind = super()._take(rank, now)
            for moment in () if kind is None else (now + self.times[kind], now + self.times[kind] + self.message):
                self.woken[moment].extend(range(p))
            return kind

    made = [one(p, m, p, (*times, message, share), choices).run().rows for one in (_Pipeline, Restless)]
    assert made[0] == made[1]


def test_schedules_that_would_take_long_to_make_are_refused() -> None:
    with pytest.raises(mt.UsageError, match="must be at most 262144 for zb_1p, got 1000 x 4000 x 1; take fewer"):
        schedules.zb_1p(1000, 4000)


def test_costs_outside_their_rules_are_refused() -> None:
    for costs in ((1, 1, 1), (0, 1, 1, 0, 1), (1, 1, 1, -1, 1), (1, 1, 1, 0, 2), (1, float("nan"), 1, 0, 1)):
        with pytest.raises(mt.UsageError, match="costs of zb_1p must be the times"):
            schedules.zb_1p(2, 4, 1, costs)
    with pytest.raises(mt.UsageError, match="use zbv for several stages"):
        schedules.zb_2p(2, 4, 2)
    sizes: dict[str, Any] = {"world_size": 2, "num_layers": 4, "global_batch_size": 4}
    with pytest.raises(mt.MinitrainError, match="pass_costs make orders of zb_1p or zb_2p alone"):
        mt.simulate("megatron:pp=2", **sizes, pass_costs=(1, 1, 1, 0, 1))
