"""An explanation says what the winner spends, what others lose, and which price would change that."""

from __future__ import annotations

from typing import Any

import pytest

import minitrain as mt
from minitrain.machine.config import load_config
from minitrain.search.tuning.explanation import TuningExplanation, knobs, times_on
from minitrain.search.tuning.tune import Tuning
from tests.search.tuning.models import SMALL

_GIVEN: dict[str, Any] = {
    "fidelity": "roofline",
    "world_size": 8,
    "global_batch_size": 16,
    "strategies": "megatron",
    "jobs": 1,
    "space": {
        "tp": [1, 2],
        "pp": [1, 2],
        "num_chunks": [1],
        "microbatch_size": [1, 2],
        "overlap_parts": [False],
        "recompute": ["none", "full"],
    },
}


@pytest.fixture(scope="module")
def found() -> Tuning:
    return mt.tune(SMALL, **_GIVEN)


@pytest.fixture(scope="module")
def explained(found: Tuning) -> TuningExplanation:
    return found.explain(runners_up=2, factors=[8.0])


def test_the_parts_of_the_winner_are_its_step_time(explained: TuningExplanation, found: Tuning) -> None:
    assert sum(explained.winner.parts().values()) == pytest.approx(found.best.step_time_s)
    assert explained.winner.step_time_s == found.best.step_time_s


def test_losers_differ_in_their_degrees_and_are_slower(explained: TuningExplanation) -> None:
    chosen = [explained.winner, *explained.losers]
    degrees = [tuple(one.choice.options[name] for name in ("tp", "pp", "microbatch_size")) for one in chosen]
    assert len(set(degrees)) == len(degrees) == 3
    assert all(one.step_time_s >= explained.winner.step_time_s for one in explained.losers)


def test_a_price_that_is_said_to_change_the_winner_does(explained: TuningExplanation, found: Tuning) -> None:
    assert explained.turns
    system = load_config("h100_80g_nvl8")
    turn = explained.turns[0]
    changed = knobs(system)[turn.price](system, turn.factor)
    winner = explained.contenders[turn.winner].options
    given = {**found.best.candidate.problem.parameters, "hardware": changed, "fold": True, "check": False}
    now, then = (mt.simulate("megatron", **given, **options) for options in (found.best.options, winner))
    assert (now.step_time, then.step_time) == (turn.before_s, turn.step_time_s)
    assert then.step_time < now.step_time


def test_a_device_with_twice_the_arithmetic_and_memory_bandwidth_takes_half_as_long() -> None:
    system = load_config("h100_80g_nvl8")
    assert system.kernels is not None  # rates measured, which a change of the data sheet's does not reach
    quicker = knobs(system)["memory bandwidth"](knobs(system)["arithmetic rate"](system, 2), 2)
    sizes: dict[str, Any] = {"workload": "llama3-8b", "world_size": 1, "global_batch_size": 1, "check": False}
    before, after = (mt.simulate("single", hardware=each, **sizes).step_time for each in (system, quicker))
    assert after / before == pytest.approx(0.5, rel=0.02)


def test_without_a_change_layouts_take_what_they_took(explained: TuningExplanation) -> None:
    times = times_on([one.candidate for one in explained.contenders], load_config("h100_80g_nvl8"))
    assert times == [one.step_time_s for one in explained.contenders]


def test_the_text_names_winner_losers_memory_and_prices(explained: TuningExplanation) -> None:
    text = str(explained)
    for words in ("best: megatron tp 1", "next: megatron", "GiB", "memory does not bind", "would win"):
        assert words in text
    assert {"winner", "losers", "turns", "too_large", "objective"} == set(explained.summary())


def test_memory_binds_where_something_quicker_does_not_fit(found: Tuning) -> None:
    least = min(row["needed_memory_bytes"] for row in found.ranked)
    capacity = found.best.candidate.problem.machine.capacity_bytes
    assert capacity is not None
    tight = mt.tune(SMALL, **_GIVEN, head_room=1 - least * 1.001 / capacity)
    explained = tight.explain(runners_up=1, factors=[1.25])
    assert explained.too_large is not None
    assert explained.too_large.step_time_s < tight.best.step_time_s
    assert "memory binds: " in str(explained)
