"""One execution for many machines has the figures of separate simulations, to the last float."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitrain as mt

_SIZES: dict[str, Any] = {"world_size": 8, "num_layers": 16, "global_batch_size": 16}
_MACHINES: dict[str, Any] = {
    "hardware": ["h100_80g_nvl8", "a100_80g", "h100_80g_nvl8", "h100_80g_nvl8"],
    "network": ["auto", "flat", "auto", "hierarchical"],
    "networks[0].size": [8, 8, 4, 2],
    "networks[0].bandwidth": [450.0, 300.0, 30.0, 900.0],
    "networks[1].latency": [2e-5, 1e-3, 1e-6, 0.0],
    "mem1.GiB": [80.0, 0.4, 0.2, 0.05],
    "mem1.MB_efficiency": [[[0, 0.7]], [[100, 0.9], [0, 0.2]], [[10, 0.5], [1, 0.3], [0, 0.1]], [[0, 1.0]]],
    "matrix.float16.tflops": [1000.0, 300.0, 10.0, 2000.0],
}
_SKIPPED = {"single": {"world_size": 1}}


def require_equal_to_separate(priced: mt.Priced) -> None:
    """Require that one execution has made the summaries of separate runs, which `Run` makes of its own events."""
    assert [note for note in priced.notes if "flat networks beside" not in note] == []  # not when ranks fold
    for machine, summary in enumerate(priced.summary()):
        separate = priced[machine].summary()
        assert summary == separate
        assert [type(value) for value in summary.values()] == [type(value) for value in separate.values()]


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("strategy", sorted(mt.strategies()))
def test_every_strategy_is_priced_as_by_separate_simulations(strategy: str, fold: bool) -> None:
    sizes = {**_SIZES, **_SKIPPED.get(strategy, {})}
    require_equal_to_separate(mt.price(strategy, vary=_MACHINES, fold=fold, **sizes))


def test_columns_are_those_of_the_runs() -> None:
    priced = mt.price("pp_zero1", vary=_MACHINES, pp=2, **_SIZES)
    assert len(priced) == 4
    for name in ("step_time", "mfu", "bubble_fraction", "exposed_comm_fraction", "energy_joules", "span_bubble"):
        assert getattr(priced, name).tolist() == [getattr(run, name) for run in priced]
    assert priced.fits.tolist() == [run.oom is None for run in priced]
    assert priced.oom == [run.oom for run in priced]
    assert priced.computing_fraction.tolist() == [run.breakdown.computing_fraction for run in priced]
    assert np.isnan(priced.tokens_per_second).all()


async def _waits_for_a_clock(model: mt.Model) -> mt.Model:
    """Train after a rank's clock has passed a moment."""
    weights, opt_states, *_ = model.storage()
    while model.time < 1e-3:
        weights[0], opt_states[0] = model.load_weights(0)
        del weights[0], opt_states[0]
    trained: mt.Model = await mt.strategies()["ddp"](model)
    return trained


def test_machines_that_part_ways_by_a_clock_are_executed_apart() -> None:
    speeds = [225.0, 450.0, 451.0, 900.0]
    priced = mt.price(_waits_for_a_clock, vary={"mem2.GBps": speeds}, world_size=2, num_layers=2, global_batch_size=2)
    assert priced.step_time.tolist() == [run.step_time for run in priced]
    assert len(priced.notes) >= 1
    assert "a comparison of numbers that differ between machines (test_price.py" in " ".join(priced.notes)
