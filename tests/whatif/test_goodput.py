"""Long runs with failures: against Young's and Daly's closed forms, and against arithmetic."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.whatif.disturbed_run import checkpoint_of, daly_s, mtbf_of_all_s, young_s
from minitrain.whatif.goodput import CAUSES, FEWER, LOST, REPAIR, WORK, WRITING, Job, SampledRun

HOUR = 3600.0
JOB = Job(
    duration_s=400 * HOUR,
    interval_s=HOUR,
    block_s=300.0,
    write_s=300.0,
    mtbf_s=8 * HOUR,
    detection_s=100.0,
    restart_s=200.0,
    reload_s=100.0,
    repair_s=0.0,
    spares=1000,
)
SIZES: dict[str, Any] = {"world_size": 8, "num_layers": 4, "global_batch_size": 8}


def shares_of(job: Job, samples: int = 60) -> dict[str, float]:
    played = [SampledRun(job, random.Random(f"{sample}")).play() for sample in range(samples)]
    for run in played:
        assert sum(run.seconds.values()) == pytest.approx(job.duration_s, rel=1e-9)
    return {cause: float(np.mean([run.seconds[cause] for run in played])) / job.duration_s for cause in CAUSES}


def goodput_by_daly(job: Job, interval_s: float) -> float:
    """Work over wall time by Daly (2006), equation 20, with all of the recovery as its restart time."""
    mtbf_s, recovery_s = job.mtbf_s, job.detection_s + job.restart_s + job.reload_s
    wall_s = mtbf_s * math.exp(recovery_s / mtbf_s) * (math.exp((interval_s + job.block_s) / mtbf_s) - 1)
    return interval_s / wall_s


@pytest.mark.parametrize("interval_s", [0.3 * HOUR, HOUR, 3 * HOUR, 9 * HOUR])
def test_played_runs_agree_with_dalys_model(interval_s: float) -> None:
    found = shares_of(replace(JOB, interval_s=interval_s))
    assert found[WORK] == pytest.approx(goodput_by_daly(JOB, interval_s), abs=0.02)


def test_the_interval_that_is_best_when_played_is_that_of_daly() -> None:
    best_s = daly_s(JOB.block_s, JOB.mtbf_s)
    goodputs = {factor: shares_of(replace(JOB, interval_s=factor * best_s), 100)[WORK] for factor in (0.25, 1, 4)}
    assert max(goodputs, key=lambda factor: goodputs[factor]) == 1
    grid = np.linspace(0.5, 2, 301) * best_s
    assert grid[np.argmax([goodput_by_daly(JOB, interval_s) for interval_s in grid])] == pytest.approx(best_s, rel=0.02)


def test_youngs_interval_is_the_first_term_of_dalys() -> None:
    assert young_s(1e-6, 1e6) == pytest.approx(daly_s(1e-6, 1e6), rel=1e-5)
    assert daly_s(300.0, 100.0) == 100.0


def test_without_failures_only_checkpoints_cost() -> None:
    found = shares_of(replace(JOB, mtbf_s=1e15), 1)
    assert found[LOST] == 0
    assert found[WRITING] == pytest.approx(300 / 3900, rel=0.01)


def test_checkpoints_that_are_alike_pass_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    elastic = replace(
        JOB, interval_s=60.0, write_s=150.0, block_s=1.0, repair_s=9 * HOUR, spares=0, speeds=(1, 0.9, 0.7)
    )
    at_once = shares_of(elastic, 3)
    monkeypatch.setattr("minitrain.whatif.goodput._UNTIL_ALIKE", 10**9)
    assert shares_of(elastic, 3) == pytest.approx(at_once, rel=1e-9)


def test_a_checkpoint_beside_the_training_costs_its_copy_alone_and_helps_once_it_is_whole() -> None:
    beside = shares_of(replace(JOB, block_s=10.0))
    assert beside[WRITING] < 0.1 * shares_of(JOB)[WRITING]
    slow = shares_of(replace(JOB, block_s=10.0, write_s=2 * HOUR))
    assert slow[LOST] > 1.3 * beside[LOST]  # the last whole one is older
    assert slow[WRITING] < beside[WRITING]  # the next one waits for it


async def saves(model: Any, save: bool = False) -> Any:
    """Train as DDP does; at the end rank 0 copies and writes what it has made."""
    await mt.strategies()["ddp"](model)
    for store in (model.weights, model.opt_states) if save and model.rank == 0 else ():
        for layer, tensor in store.items():
            model.host[id(store), layer] = await model.offload(tensor)
    for copy in model.host.values():
        await model.write(copy)
    return model


def test_weeks_of_simulated_checkpoints_agree_with_dalys_model() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 8}
    days: dict[str, Any] = {"days": 40, "samples": 20, "checkpoint_interval_s": HOUR, "mtbf_hours": 32}
    recovery = mt.Recovery(spares=1000)
    found = mt.goodput(saves, **sizes, **days, saving={"save": True}, recovery=recovery)
    assert found.checkpoint.size_bytes == mt.goodput("ddp", **sizes, **days).checkpoint.size_bytes
    events = mt.simulate(saves, options={"save": True}, **sizes).logs[0]
    moves, writes = ([event.duration for event in events if event.typ == typ] for typ in ("offload", "write"))
    assert sum(writes) == pytest.approx(found.checkpoint.size_bytes * 4 / 25e9)  # a fourth of the port of a node
    assert found.job.block_s == found.job.write_s == pytest.approx(sum(moves) + sum(writes), rel=1e-9)
    assert found.fraction == pytest.approx(goodput_by_daly(found.job, HOUR), abs=0.02)


def test_saving_needs_options_with_which_a_checkpoint_is_written() -> None:
    with pytest.raises(UsageError, match="saving: saves writes no checkpoint with these options"):
        mt.goodput(saves, **SIZES, saving={"save": False})
    with pytest.raises(UsageError, match="leave checkpoint_bytes out"):
        mt.goodput(saves, **SIZES, saving={"save": True}, checkpoint_bytes=1e9)


def test_without_spares_a_fixed_job_waits_and_an_elastic_one_is_slower() -> None:
    fixed = shares_of(replace(JOB, spares=0, repair_s=HOUR))
    elastic = shares_of(replace(JOB, spares=0, repair_s=HOUR, speeds=(1.0, 0.9, 0.8)))
    assert fixed[REPAIR] > 0.08
    assert elastic[REPAIR] < 0.01
    assert 0 < elastic[FEWER] < 0.1
    assert elastic[WORK] > fixed[WORK]


def test_rates_of_devices_add_up() -> None:
    assert mtbf_of_all_s([100.0] * 50) == pytest.approx(2 * HOUR)
    assert mtbf_of_all_s([10.0, 40.0]) == pytest.approx(8 * HOUR)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("name", ["ddp", "zero1", "zero3"])
def test_a_checkpoint_has_each_shard_once_however_many_ranks_keep_it(name: str, fold: bool) -> None:
    run = mt.simulate(name, **SIZES, fold=fold)
    found = checkpoint_of(run)
    each = 4096 * 4096 * 4 * 2  # bytes of all weights, and of all optimizer states
    assert found.size_bytes == 2 * each
    assert found.read_bytes == {"ddp": 8 * 2, "zero1": 8 + 1, "zero3": 1 + 1}[name] * each


def test_a_transformers_checkpoint_has_fourteen_bytes_a_parameter() -> None:
    run = mt.simulate("fsdp", world_size=8, workload="llama3-8b", global_batch_size=8, fold=True)
    assert checkpoint_of(run).size_bytes == pytest.approx(14 * mt.models()["llama3-8b"].num_parameters, rel=1e-6)


def test_goodput_tells_where_the_time_goes_and_is_the_same_each_time() -> None:
    made = [mt.goodput("zero3", **SIZES, days=10, mtbf_hours=100.0, samples=20, seed=4) for _ in range(2)]
    first, second = made
    assert first.summary() == second.summary()
    assert sum(first.by_cause.values()) == pytest.approx(1)
    assert first.percentile(10) <= first.fraction <= first.percentile(90)
    assert first.checkpoint_interval_s == first.daly_s
    assert "goodput" in str(first)
    assert "repair" in first._repr_html_()
    assert first.num_steps == pytest.approx(first.fraction * 10 * 24 * HOUR / first.run.step_time)


def test_an_elastic_job_knows_how_fast_it_is_with_devices_missing() -> None:
    found = mt.goodput("ddp", **SIZES, mtbf_hours=100.0, samples=2, recovery=mt.Recovery(elastic=True))
    assert len(found.job.speeds) == 8
    whole, half = (mt.simulate("ddp", **(SIZES | {"world_size": size})).step_time for size in (8, 4))
    assert found.job.speeds[4] == whole / half


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"days": 0}, "days must be a positive number, got 0"),
        ({"checkpoint_interval_s": -1.0}, r"checkpoint_interval_s must be a positive number, got -1\.0"),
        ({"samples": 0}, "samples"),
        ({"faults": [mt.Fault(0, 0.0)]}, "goodput draws its faults by mtbf_hours; leave faults out"),
        ({"mtbf_hours": {"h100": "often"}}, "mtbf_hours of h100 must be a positive number of hours, got 'often'"),
        (
            {"mtbf_hours": {"h200": 9}},
            "mtbf_hours names 'h200', which no device of the run is; use one of h100_80g_nvl8, h1",
        ),
        ({"recovery": 3}, r"recovery must be a mt\.Recovery, such as mt\.Recovery\(spares=1\), got 3"),
        (
            {"days": 1e9},
            r"days \(1e\+09\) have 7\.6e\+08 failures in 200 samples, and at most 1e\+07 .* use days=1\.2e\+07",
        ),
        ({"mtbf_hours": 1e-9}, r"days \(30\) have 1\.2e\+15 failures"),
        ({"hardware": "mi300x_192g_8"}, r"no mean time between failures is known of 'mi300x"),
    ],
)
def test_long_runs_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mt.goodput("ddp", **(SIZES | given))
