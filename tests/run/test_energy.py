"""Energy, power and money of a step: by hand on durations that are simple, and Llama 2's published run."""

from dataclasses import replace
from typing import Any

import pytest

import minitrain as mt
from minitrain.machine import load_config
from minitrain.machine.device import DataSheet, Power
from minitrain.machine.predictor import RuntimePredictor
from minitrain.machine.price import RankPredictors
from minitrain.run.analysis.breakdown import Breakdown, Split
from minitrain.run.figures import energy_of, peak_watts, usd_per_hour_of
from minitrain.workloads.matmul import MATMUL_LAYER

SMALL: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 8}


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "gpipe", "1f1b"])
def test_energy_is_rated_power_while_busy_and_idle_power_while_waiting(strategy: str) -> None:
    run = mt.simulate(strategy, **SMALL)
    parts = run.breakdown
    assert run.energy is not None
    assert run.energy.busy_joules == pytest.approx((parts.computing + parts.exposed) * 700)
    assert run.energy.idle_joules == pytest.approx(parts.waiting * 100)
    assert run.energy_joules == pytest.approx(run.energy.busy_joules.sum() + run.energy.idle_joules.sum())
    assert run.average_watts == pytest.approx(run.energy.joules / run.step_time)
    assert run.tokens_per_sample == MATMUL_LAYER.tokens_per_sample
    assert run.joules_per_token == pytest.approx(run.energy.joules / (8 * MATMUL_LAYER.tokens_per_sample))
    assert run.dollars == pytest.approx(4 * 2.99 * run.step_time / 3600)


def test_a_device_that_never_waits_draws_its_rating() -> None:
    run = mt.simulate("single", world_size=1, num_layers=4, global_batch_size=4)
    assert run.average_watts == pytest.approx(700)
    assert run.peak_watts == 700
    assert run.energy_joules == pytest.approx(700 * run.step_time)


def test_pipelines_draw_less_than_their_peak_and_never_more_than_all_ratings() -> None:
    run = mt.simulate("gpipe", **SMALL)
    assert run.average_watts is not None
    assert run.peak_watts is not None
    assert run.average_watts < run.peak_watts <= 4 * 700


def test_peak_power_counts_who_is_busy_at_the_same_moment() -> None:
    sheets = [DataSheet(power=Power(300, 50)), DataSheet(power=Power(200, 20))]
    durations = mt.FixedPredictor(forward=1, backward=2)
    one_at_a_time: dict[str, Any] = {"world_size": 2, "num_layers": 2, "global_batch_size": 2, "microbatch_size": 2}
    in_turn = mt.simulate("gpipe", hardware=durations, **one_at_a_time)
    assert peak_watts(in_turn.timeline, sheets) == 300 + 20
    at_once = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=2, hardware=durations)
    assert peak_watts(at_once.timeline, sheets) == 300 + 200
    assert peak_watts(at_once.timeline, [None]) is None


def test_a_config_that_does_not_say_gives_none() -> None:
    system = load_config("h100_80g_nvl8")
    for sheet in (DataSheet(), DataSheet(power=Power(700))):
        run = mt.simulate("ddp", hardware=replace(system, sheet=sheet), **SMALL)
        assert (run.energy_joules, run.average_watts, run.peak_watts, run.joules_per_token, run.dollars) == (None,) * 5
    by_hand = mt.simulate("ddp", hardware=mt.FixedPredictor(forward=1, backward=1), **SMALL)
    assert (by_hand.energy_joules, by_hand.dollars) == (None, None)


def test_ranks_on_different_devices_draw_what_each_is_rated() -> None:
    predictors = [RuntimePredictor(2, name) for name in ("h100_80g_nvl8", "a100_80g")]
    run = mt.simulate("ddp", world_size=2, num_layers=4, global_batch_size=4, hardware=RankPredictors(predictors))
    assert run.energy is not None
    assert (run.energy.busy_joules / (run.breakdown.computing + run.breakdown.exposed)).tolist() == pytest.approx(
        [700, 400]
    )
    assert run.dollars == pytest.approx((2.99 + 1.79) * run.step_time / 3600)


@pytest.mark.parametrize("options", [{"fold": True}, {"log": "summary"}])
def test_folded_runs_and_totals_have_the_same_energy(options: dict[str, Any]) -> None:
    whole, other = mt.simulate("zero3", **SMALL), mt.simulate("zero3", **options, **SMALL)
    assert other.energy_joules == whole.energy_joules
    assert other.dollars == whole.dollars


@pytest.mark.parametrize("strategy", ["zero3", "fsdp", "gpipe", "hsdp"])
def test_folded_runs_have_the_same_peak_power(strategy: str) -> None:
    assert mt.simulate(strategy, fold=True, **SMALL).peak_watts == mt.simulate(strategy, fold=False, **SMALL).peak_watts


# Touvron et al. (2023), arXiv:2307.09288, table 2: GPU hours, watts and tonnes of CO2 equivalent.
LLAMA_2 = {
    "7B": (184320, 400, 31.22),
    "13B": (368640, 400, 62.44),
    "34B": (1038336, 350, 153.90),
    "70B": (1720320, 400, 291.42),
}


def test_llama_2_s_published_gpu_hours_and_watts_give_its_published_energy() -> None:
    kilograms_a_kwh = []
    for hours, watts, tonnes in LLAMA_2.values():
        busy = Split(computing=hours * 3600.0, exposed=0.0, overlapped=0.0, waiting=0.0)
        found = energy_of(Breakdown(hours * 3600.0, [busy]), [DataSheet(power=Power(watts, 0))])
        assert found is not None
        assert found.joules / 3.6e6 == pytest.approx(hours * watts / 1000)
        kilograms_a_kwh.append(tonnes * 1000 / (found.joules / 3.6e6))
    assert max(kilograms_a_kwh) / min(kilograms_a_kwh) < 1.001  # one grid served all four


def test_money_an_hour_is_price_times_ranks() -> None:
    assert usd_per_hour_of([DataSheet(price_usd_per_hour=2.0)], 8) == 16
    assert usd_per_hour_of([DataSheet(price_usd_per_hour=2.0), DataSheet(price_usd_per_hour=1.0)], 2) == 3
    assert usd_per_hour_of([DataSheet(), DataSheet(price_usd_per_hour=1.0)], 2) is None
    assert usd_per_hour_of([], 2) is None
