"""The closed forms of the literature for six strategies, which must hold exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.lib import Event

L, H2 = 8, 4096 * 4096
PIPELINES = st.sampled_from(["gpipe", "1f1b"])
SIZES = st.integers(1, 8), st.integers(1, 12)


def simulate(name: str, p: int, m: int, layers: int = 1, microbatch: int = 1, **durations: float) -> mt.Run:
    """Simulate a pipeline of p stages of some layers each and m microbatches, in units."""
    return mt.simulate(
        name,
        world_size=p,
        num_layers=p * layers,
        global_batch_size=m * microbatch,
        hardware=mt.FixedPredictor(**durations),
        microbatch_size=microbatch,
    )


@given(PIPELINES, *SIZES, st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))
def test_a_pipeline_takes_m_plus_p_minus_1_passes_and_update_after_its_load(
    name: str, p: int, m: int, layers: int, forward: int, backward: int, load: int, update: int
) -> None:
    run = simulate(name, p, m, layers, forward=forward, backward=backward, load_weights=load, update=update)
    assert run.step_time == layers * ((m + p - 1) * (forward + backward) + update)
    assert run.load_time == layers * load


@given(PIPELINES, *SIZES, st.integers(1, 4), st.integers(1, 4))
def test_every_rank_of_a_pipeline_idles_p_minus_1_of_m_plus_p_minus_1(
    name: str, p: int, m: int, forward: int, backward: int
) -> None:
    run = simulate(name, p, m, forward=forward, backward=backward)
    idle = run.breakdown.waiting / run.step_time
    assert idle.tolist() == pytest.approx([(p - 1) / (m + p - 1)] * p, rel=1e-12)
    assert run.bubble_fraction == pytest.approx((p - 1) / (m + p - 1), rel=1e-12)


def live_microbatches(log: Iterable[Event]) -> int:
    """Return the most microbatches that were forward and not yet backward at once."""
    live = most = 0
    for event in log:
        live += {"forward": 1, "backward": -1}.get(event.typ, 0)
        most = max(most, live)
    return most


@given(*SIZES)
def test_gpipe_keeps_m_microbatches_alive_and_1f1b_at_most_p_minus_rank(p: int, m: int) -> None:
    for name, expected in (("gpipe", [m] * p), ("1f1b", [min(p - rank, m) for rank in range(p)])):
        run = simulate(name, p, m, forward=1, backward=2)
        assert [live_microbatches(log) for log in run.logs] == expected


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3))
def test_no_stage_of_1f1b_needs_more_memory_than_in_gpipe(p: int, m: int, layers: int) -> None:
    gpipe, one_f_one_b = (simulate(name, p, m, layers, forward=1, backward=1) for name in ("gpipe", "1f1b"))
    pairs = zip(one_f_one_b.peak_memory_per_rank, gpipe.peak_memory_per_rank, strict=True)
    assert all(mine <= theirs for mine, theirs in pairs)


@given(PIPELINES, st.integers(2, 8), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4))
def test_more_microbatches_never_grow_the_bubble(name: str, p: int, m: int, forward: int, backward: int) -> None:
    fewer, more = (simulate(name, p, count, forward=forward, backward=backward) for count in (m, m + 1))
    assert more.bubble_fraction < fewer.bubble_fraction


PERSISTENT: dict[str, Callable[[int], tuple[float, ...]]] = {
    "ddp": lambda n: (1, 1, 1),
    "zero1": lambda n: (1, 1, 1 / n),
    "zero2": lambda n: (1, 1 / n, 1 / n),
    "zero3": lambda n: (1 / n, 1 / n, 1 / n),
}


@pytest.mark.parametrize("name", PERSISTENT)
@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_model_state_before_the_first_update_is_w_g_and_o_over_their_shards(name: str, n: int) -> None:
    run = mt.simulate(name, world_size=n, num_layers=L, global_batch_size=2 * n)
    for log in run.logs:
        first = next(place for place, event in enumerate(log) if event.typ == "update")
        assert log[first].memory == sum(PERSISTENT[name](n)) * L * H2


def volume(run: mt.Run, rank: int) -> float:
    """Return a rank's communicated bytes, an all_reduce counted twice."""
    return sum(event.size_bytes * (2 if event.typ == "all_reduce" else 1) for event in run.logs[rank])


@pytest.mark.ci
@given(st.sampled_from([2, 4, 8]), st.integers(1, 6), st.integers(1, 3))
def test_zero_1_and_2_communicate_as_ddp_and_zero_3_half_as_much_again(n: int, layers: int, samples: int) -> None:
    sizes: Any = {"world_size": n, "num_layers": layers, "global_batch_size": n * samples}
    model_bytes = 2 * H2 * layers
    for name, factor in (("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3)):
        run = mt.simulate(name, hardware=mt.FixedPredictor(), **sizes)
        assert [volume(run, rank) for rank in range(n)] == [factor * model_bytes] * n


@given(st.integers(1, 5))
def test_accumulation_multiplies_what_is_reduced_or_gathered_in_every_microbatch(num_microbatches: int) -> None:
    factors = {"ddp": 2, "zero1": 2, "zero2": num_microbatches + 1, "zero3": 3 * num_microbatches}
    for name, factor in factors.items():
        run = mt.simulate(name, world_size=2, num_layers=3, global_batch_size=2 * num_microbatches, microbatch_size=1)
        assert volume(run, 0) == factor * 2 * H2 * 3


def test_useful_work_over_peak_is_the_mfu() -> None:
    hardware = "specified_h100_80g_nvl8"  # 1000 TFLOP/s
    run = mt.simulate("ddp", world_size=4, num_layers=3, global_batch_size=8, hardware=hardware)
    assert run.mfu == 4 * H2 * 1024 * 8 * 3 / (1000e12 * 4 * run.step_time)
    assert run.peak_memory_bytes == 2 * run.peak_memory == 2 * max(run.peak_memory_per_rank)


@pytest.mark.parametrize("name", ["single", "ddp", "zero1", "zero2", "zero3", "gpipe", "1f1b"])
def test_on_one_rank_every_strategy_takes_the_time_of_gradient_accumulation(name: str) -> None:
    sizes: Any = {"world_size": 1, "num_layers": 3, "global_batch_size": 6, "microbatch_size": 2}
    alone = mt.simulate("single", **sizes)
    assert mt.simulate(name, **sizes).step_time == pytest.approx(alone.step_time, rel=1e-12)
