"""A calibration says what a machine takes, how far off it may be, and what it has not measured."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.machine.given_durations import Calibration, Line
from minitrain.operations import PRICE, STRIDE
from minitrain.training.calibration import (
    Measured,
    _work_of_others_s,
    calibration_of,
    measure,
    observed,
    predicted_s,
)
from minitrain.workloads.matmul import DenseRows

TRUTH = Calibration(
    machine="a machine",
    cores=2,
    ranks=2,
    lines={
        "forward": Line((1e-4, 2e-11, 1e-10), (), (), 0.0, 1),
        "backward": Line((2e-4, 2e-11, 2e-10), (), (), 0.0, 1),
        "backward_input": Line((2e-4, 2e-11, 0.0), (), (), 0.0, 1),
        "backward_weight": Line((1e-4, 2e-11, 0.0), (), (), 0.0, 1),
        "loss": Line((3e-4, 0.0, 0.0), (), (), 0.0, 1),
        "update": Line((1e-4, 8e-11, 0.0), (), (), 0.0, 1),
        "all_reduce among 2": Line((8e-4, 1e-9), (), (), 0.0, 1),
        "all_gather among 2": Line((6e-4, 9e-10), (), (), 0.0, 1),
        "reduce_scatter among 2": Line((6e-4, 9e-10), (), (), 0.0, 1),
        "send among 2": Line((1e-4, 1e-10), (), (), 0.0, 1),
        "recv among 2": Line((3e-4, 2e-9), (), (), 0.0, 1),
    },
    between_s=0.0,
    usage=0.4,
    computing_usage=0.3,
    waiting=1.0,
    ratios=(),
    runs=(),
    spread=0.0,
)
"""What the runs of these tests are priced by, as if it were measured."""

PROGRAMS: list[tuple[str, int]] = [
    (name, width)
    for width in (256, 512, 1024)
    for name in ("ddp", "ddp_overlap", "zero3", "zero3_prefetch", "1f1b", "gpipe")
]


def sizes_of(width: int, num_layers: int = 4) -> dict[str, Any]:
    return {"world_size": 2, "num_layers": num_layers, "global_batch_size": 64, "workload": DenseRows(width)}


def as_if_measured(name: str, width: int, noise: float = 0.0, seed: int = 0) -> Measured:
    """Return what the true machine would say, with noise of operations and of whole steps."""
    random = np.random.default_rng(seed)
    run: Any = mt.simulate(name, **sizes_of(width), hardware=TRUTH)
    predictor = run.prepared.predictor
    asked = {id(price): predictor.asked(question) for question, price in predictor._answers.items()}
    alone: Any = mt.simulate(name, **sizes_of(width), hardware=predictor, contention=False)
    line = run.step_timeline
    lasts = line.duration * np.exp(noise * random.normal(size=line.num_events))
    asked_of = [asked.get(id(price)) for log in alone.logs for price in log._rows[PRICE::STRIDE]]
    taken = observed(replace(line, duration=lasts, end=line.time + lasts), asked_of)
    step_s = run.step_time * math.exp(noise * random.normal())
    return Measured(name, sizes_of(width), step_s, noise, *taken, "x86_64, 2 cores")


def test_what_was_put_in_is_found() -> None:
    found = calibration_of([as_if_measured(name, width) for name, width in PROGRAMS], 2)
    for kind, line in found.lines.items():
        for size in zip(line.least, line.most, strict=True):
            assert size[0] <= size[1]
        assert line.at(line.most) == pytest.approx(TRUTH.lines[kind].at(line.most), rel=0.02), kind
        assert line.at(line.least) == pytest.approx(TRUTH.lines[kind].at(line.least), rel=0.05), kind
    assert found.usage == pytest.approx(0.4, abs=0.1)
    assert found.computing_usage == pytest.approx(0.3, abs=0.1)
    assert found.waiting == pytest.approx(1.0, abs=0.03)


def test_other_strategies_sizes_and_depths_are_predicted() -> None:
    known = [each for each in PROGRAMS if each[1] != 512 and each[0] != "gpipe"]
    found = calibration_of([as_if_measured(*each) for each in known], 2)
    for name, width in (("gpipe", 512), ("ddp", 512), ("zero3_prefetch", 512), ("fsdp", 768)):
        given = sizes_of(width, 8)
        truly = mt.simulate(name, **given, hardware=TRUTH).step_time
        assert mt.simulate(name, **given, hardware=found).step_time == pytest.approx(truly, rel=0.06), name


@pytest.mark.ci
def test_intervals_hold_as_many_steps_as_they_say() -> None:
    """Eight in ten; of 10 calibrations, each with nine programs that it has seen and nine that it has not."""
    held, seen = [], 0
    for trial in range(10):
        drawn = [PROGRAMS[int(place)] for place in np.random.default_rng(trial).permutation(len(PROGRAMS))]
        all_of = [as_if_measured(name, width, 0.15, 100 * trial + seed) for seed, (name, width) in enumerate(drawn)]
        found = calibration_of(all_of[:9], 2)
        low, high = found.factors() or (0.0, 0.0)
        for each in all_of[9:]:
            predicted = predicted_s(each, found)
            held.append(low * predicted <= each.step_s <= high * predicted)
            seen += 1
    assert 0.72 <= sum(held) / seen <= 0.95


def test_noise_widens_the_interval_by_itself() -> None:
    quiet, loud = (
        calibration_of([as_if_measured(*each, noise=noise, seed=place) for place, each in enumerate(PROGRAMS)], 2)
        for noise in (0.02, 0.3)
    )
    assert quiet.factors()[1] < 1.15 < loud.factors()[1]  # type: ignore[index]  # both have enough


def test_too_few_steps_have_no_interval() -> None:
    found = calibration_of([as_if_measured(*each) for each in PROGRAMS[:3]], 2)
    run = mt.simulate("ddp", **sizes_of(256), hardware=found)
    assert run.interval is None
    assert run.sureness == "calibrated, 4 measured programs give an interval of 80 %, here are 3"


def test_what_was_not_measured_is_said_and_what_was_is_not() -> None:
    small = [each for each in PROGRAMS if each[1] < 1024]
    found = calibration_of([as_if_measured(*each) for each in small], 2)
    assert mt.simulate("zero3", **sizes_of(512), hardware=found).doubts == []
    larger = mt.simulate("zero3", **sizes_of(1024), hardware=found)
    assert any(doubt.startswith("all_gather among 2 of 4.19 MB: up to ") for doubt in larger.doubts)
    more = mt.simulate("ddp", **{**sizes_of(512), "world_size": 4}, hardware=found)
    assert any(doubt.startswith("all_reduce among 4 of 1.05 MB: up to ") for doubt in more.doubts)
    assert f"the calibration has not measured {larger.doubts[0]}" in larger.notes


def test_a_machine_that_did_something_else_is_told() -> None:
    known = calibration_of([as_if_measured("ddp", width, noise=0.3) for width in (256, 512)], 2)
    busy = replace(known, others=0.48)
    warning = (
        "other processes took 48 % of the processors while this machine was measured, and steps of one program "
        "differed by 30 %; measure again when nothing else runs"
    )
    assert busy.warning == warning
    assert warning in mt.simulate("ddp", **sizes_of(256), hardware=busy).notes
    assert replace(known, others=0.02).warning == ""


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="only Linux says what other processes do")
def test_what_others_work_is_counted_and_what_this_one_does_is_not() -> None:
    def worked(seconds: float) -> tuple[float, float]:
        """Return what others are said to have worked, and the most that they can have."""
        before, began = _work_of_others_s(), time.monotonic()
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return _work_of_others_s() - before, (time.monotonic() - began) * (os.cpu_count() or 1) - seconds

    assert all(-0.1 < others < most + 0.1 for others, most in (worked(0.3) for _ in range(3)))
    loop = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(loop) as other:
        before, began = _work_of_others_s(), time.monotonic()
        time.sleep(1.0)
        found, passed = _work_of_others_s() - before, time.monotonic() - began
        other.kill()
    assert found > 0.3 * passed / (os.cpu_count() or 1)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(mt.UsageError, match="steps must be an integer of at least 4"):
        measure("ddp", steps=3)


def test_more_ranks_than_cores_share_them() -> None:
    two, eight = (
        mt.simulate("ddp", **{**sizes_of(1024), "world_size": size, "global_batch_size": 32 * size}, hardware=TRUTH)
        for size in (2, 8)
    )
    computing = [sum(event.duration for event in run.logs[0] if event.typ == "backward") for run in (two, eight)]
    assert computing[1] == pytest.approx(4 * computing[0])


def test_a_file_is_hardware_and_says_the_same(tmp_path: Path) -> None:
    found = calibration_of([as_if_measured(*each, noise=0.1, seed=place) for place, each in enumerate(PROGRAMS)], 2)
    found.write(path := tmp_path / "this_machine.json")
    assert Calibration.read(path) == found
    run = mt.simulate("zero3", **sizes_of(512), hardware=str(path))
    assert run.step_time == mt.simulate("zero3", **sizes_of(512), hardware=found).step_time
    low, high = run.interval or (0.0, 0.0)
    assert low < run.step_time < high
    assert run.sureness in repr(run)
    assert "(80 % of 18 measured steps)" in run.sureness
    run.save(saved := tmp_path / "run.json")
    assert mt.load_run(saved).sureness == run.sureness


def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    TRUTH.write(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    data["lines"]["forward"]["second"] = data["lines"]["forward"].pop("seconds")
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises((mt.MinitrainError, ValueError), match="seconds"):
        mt.simulate("ddp", **sizes_of(256), hardware=str(path))


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(mt.UsageError, match="needs a strategy and a size"):
        mt.calibrate([], [{"num_layers": 2}])


@pytest.mark.ci
def test_real_steps_make_a_calibration_that_prices_others(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    told: list[str] = []
    found = mt.calibrate(
        ["ddp", "1f1b"], [{"num_layers": 4}], steps=4, watch=lambda done, of, what: told.append(f"{done}/{of} {what}")
    )
    assert [each.split()[:2] for each in told] == [["1/2", "ddp"], ["2/2", "1f1b"]]
    assert {"forward", "backward", "update", "all_reduce among 2", "recv among 2"} <= found.lines.keys()
    assert all(line.at(line.most) > 0 for line in found.lines.values())
    assert 0 < found.between_s < 0.01
    found = replace(found, ratios=(0.9, 0.95, 1.0, 1.1, 1.2))
    run = mt.simulate("zero3", world_size=2, num_layers=8, workload=DenseRows(256), hardware=found)
    assert 0 < run.step_time < 10
    assert any("all_gather among 2" in doubt for doubt in run.doubts)
