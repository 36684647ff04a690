"""`compare`: several strategies on one machine, also where some of them fail."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import HardwareConfigError, StrategyError, UsageError
from minitrain.lib import Model

SMALL: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 8}


async def fails(model: Model) -> Model:
    raise ValueError("mine")


def test_the_six_strategies_of_the_card_are_compared_by_default() -> None:
    comparison = mt.compare(**SMALL)
    assert list(comparison.runs) == ["ddp", "zero1", "zero2", "zero3", "gpipe", "1f1b"]
    times = [run.step_time for run in comparison.succeeded]
    assert times == sorted(times)
    assert comparison.winner is comparison.succeeded[0]
    assert comparison.failed == []


def test_a_strategy_that_fails_stays_with_its_error() -> None:
    comparison = mt.compare(["ddp", fails, "single"], **SMALL)
    failed = comparison.runs["fails"]
    assert isinstance(failed, mt.FailedRun)
    assert repr(failed.error) == "ValueError('mine')"
    assert [run.strategy for run in comparison.failed] == ["fails", "single"]
    assert [run.strategy for run in comparison.succeeded] == ["ddp"]
    summary = comparison.summary()
    assert summary[1]["error"] == "ValueError: mine"
    assert summary[2]["error"].startswith("StrategyError: world_size (4) must be 1 for single")
    assert summary[1]["step_time_s"] is None


def test_the_summary_has_at_least_the_documented_keys_and_the_same_for_all() -> None:
    summary = json.loads(json.dumps(mt.compare(["ddp", fails], **SMALL).summary()))
    keys = {
        "strategy",
        "step_time_s",
        "peak_memory_bytes",
        "mfu",
        "bubble_fraction",
        "exposed_comm_fraction",
        "num_events",
    }
    assert keys <= set(summary[0])
    assert list(summary[0]) == list(summary[1])


def test_the_same_strategy_twice_keeps_both_runs() -> None:
    partials = [functools.partial(mt.strategies()["gpipe"], microbatch_size=size) for size in (1, 2)]
    comparison = mt.compare(["gpipe", *partials], **SMALL)
    assert list(comparison.runs) == ["gpipe", "gpipe (2)", "gpipe (3)"]
    assert [run.strategy for run in comparison.runs.values()] == ["gpipe", "gpipe (2)", "gpipe (3)"]


def test_progress_is_told_before_each_strategy() -> None:
    told: list[str] = []
    mt.compare(["ddp", fails, "ddp"], progress=told.append, **SMALL)
    assert told == ["ddp", "fails", "ddp (2)"]


def test_a_winner_stays_within_the_devices_memory() -> None:
    over: Any = {"world_size": 4, "num_layers": 64, "global_batch_size": 1024, "hardware": "l40s_48g_pcie8"}
    comparison = mt.compare(["ddp", "1f1b"], **over, microbatch_size=8)
    assert [run.oom is None for run in comparison.runs.values() if isinstance(run, mt.Run)].count(True) <= 2
    assert comparison.winner is None or comparison.winner.oom is None
    assert mt.compare([fails], **SMALL).winner is None


@pytest.mark.parametrize(
    ("strategies", "parameters", "kind", "message"),
    [
        (["nothing"], {}, StrategyError, "there is no strategy 'nothing'"),
        (["ddp"], {"world_size": 0}, UsageError, "world_size must be an integer of at least 1, got 0"),
        (["ddp"], {"num_layers": None}, UsageError, "num_layers must be an integer of at least 1, got None"),
        (["ddp"], {"hardware": "nowhere"}, HardwareConfigError, "nowhere"),
    ],
)
def test_what_no_strategy_could_run_with_is_refused_at_once(
    strategies: Any, parameters: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        mt.compare(strategies, **{**SMALL, **parameters})
