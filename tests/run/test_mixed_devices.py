"""Ranks on different devices: each is priced by its own, and runs out of its own memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import OutOfMemoryError, UsageError
from minitrain.machine import FlatTopology, load_config
from minitrain.machine.config import SPECIFIED
from minitrain.machine.device import RooflineDevice
from minitrain.machine.predictor import DevicePredictor, RuntimePredictor
from minitrain.machine.price import RankPredictors
from minitrain.workloads.matmul import MATMUL_LAYER, MatmulLayer

H100, A100 = load_config("h100_80g_nvl8"), load_config("a100_80g")
NETWORK = FlatTopology(H100.network(4))
FAST = RooflineDevice(H100.processor, H100.mem_hbm, H100.mem_pcie)
SLOW = RooflineDevice(A100.processor, replace(A100.mem_hbm, GiB=5), H100.mem_pcie)


def predictor(device: RooflineDevice) -> DevicePredictor:
    return DevicePredictor(MATMUL_LAYER, device, NETWORK)


def simulate(strategy: str, *devices: RooflineDevice, **parameters: Any) -> mt.Run:
    """Simulate on one device a rank, all on the same network."""
    known = {device: predictor(device) for device in devices}
    hardware = RankPredictors([known[device] for device in devices])
    sizes: dict[str, Any] = {"world_size": len(devices), "num_layers": 8, "global_batch_size": 16}
    return mt.simulate(strategy, **sizes, hardware=hardware, **parameters)


@pytest.mark.parametrize("how", [{}, {"strict": True}])
def test_each_rank_computes_at_the_speed_of_its_own_device(how: dict[str, Any]) -> None:
    run = simulate("gpipe", FAST, SLOW, FAST, SLOW, **how)
    for log, device in zip(run.logs, (FAST, SLOW, FAST, SLOW), strict=True):
        passes = {event.duration for event in log if event.typ in ("forward", "backward")}
        assert passes == {predictor(device).compute("forward", 4).seconds}
        assert {event.duration for event in log if event.typ == "update"} == {predictor(device).update(1, 1).seconds}


def test_the_slowest_device_sets_the_step_time_of_data_parallel_training() -> None:
    mixed, slow, fast = (simulate("ddp", *devices) for devices in ((FAST, FAST, SLOW, FAST), (SLOW,) * 4, (FAST,) * 4))
    assert fast.step_time < slow.step_time == mixed.step_time
    waited_for = {event.waited_for for event in mixed.logs[0] if event.typ == "all_reduce"}
    assert waited_for == {2, None}  # None: for an earlier operation of the stream
    assert simulate("ddp", FAST, FAST, SLOW, FAST, log="summary").step_time == mixed.step_time


def test_a_straggler_is_slower_than_its_own_device() -> None:
    run = simulate("ddp", FAST, SLOW, slowdown={1: 3})
    last = {event.duration for event in run.logs[1] if event.typ == "forward"}
    assert last == {3 * predictor(SLOW).compute("forward", 8).seconds}


def test_mfu_counts_the_peak_rate_of_every_device() -> None:
    run = simulate("ddp", FAST, SLOW, SLOW, FAST)
    rate = 2 * (FAST.peak_flop_per_s("float16") + SLOW.peak_flop_per_s("float16"))
    assert run.mfu == pytest.approx(run.useful_flop / (rate * run.step_time), rel=1e-15)


def test_the_smaller_device_runs_out_of_memory_where_the_larger_does_not() -> None:
    small = replace(SLOW, memory=replace(SLOW.memory, GiB=0.5))
    run = simulate("ddp", FAST, small, FAST, FAST)
    assert run.oom is not None
    assert (run.oom.rank, run.oom.capacity_bytes) == (1, 2**29)
    assert sum(run.oom.held_bytes.values()) > 2**29
    assert simulate("ddp", *[FAST] * 4).oom is None
    with pytest.raises(OutOfMemoryError, match=r"out of memory on rank 1 .* of 0.5 GiB"):
        simulate("ddp", FAST, small, FAST, FAST, strict_memory=True)


def test_a_run_has_a_capacity_where_all_devices_agree(tmp_path: Path) -> None:
    mixed = simulate("ddp", FAST, SLOW)
    assert simulate("ddp", FAST, FAST).capacity_bytes == 80 * 2**30
    assert mixed.capacity_bytes is None
    mixed.save(tmp_path / "run.jsonl")
    loaded = mt.load_run(tmp_path / "run.jsonl")
    assert (loaded.capacity_bytes, loaded.mfu, loaded.step_time) == (None, mixed.mfu, mixed.step_time)
    mixed.write_html(tmp_path / "run.html", include_plotlyjs="directory")


def test_one_predictor_for_each_rank_is_as_one_for_all() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}
    one = mt.simulate("zero3", **sizes, hardware=SPECIFIED)
    each = mt.simulate("zero3", **sizes, hardware=RankPredictors([RuntimePredictor(4) for _ in range(4)]))
    assert [list(log) for log in each.logs] == [list(log) for log in one.logs]
    assert (each.mfu, each.capacity_bytes, each.oom) == (one.mfu, one.capacity_bytes, one.oom)


def test_what_ranks_do_together_is_priced_by_the_network_that_they_share() -> None:
    """Also in groups and messages without rank 0, and where a rank's own predictor knows another network."""
    apart = DevicePredictor(MATMUL_LAYER, SLOW, FlatTopology(A100.network(4)))
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 16, "slowdown": {3: 2}}
    known = {"all_reduce", "send", "recv"}
    for strategy in ("pp_dp", "gpipe"):
        run = mt.simulate(strategy, **sizes, hardware=RankPredictors([predictor(FAST), apart, apart, apart]))
        alike = mt.simulate(strategy, **sizes, hardware=predictor(SLOW))
        other = mt.simulate(strategy, **sizes, hardware=apart)
        found, shared, own = (
            [{(event.typ, event.duration) for event in log if event.typ in known} for log in each.logs]
            for each in (run, alike, other)
        )
        assert found == shared != own


def test_a_network_can_be_given_beside_the_predictors() -> None:
    hardware = RankPredictors([predictor(FAST), predictor(SLOW)], mt.FixedPredictor(all_reduce=3))
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=2, hardware=hardware)
    assert {event.duration for event in run.events if event.typ == "all_reduce"} == {3}
    assert run.logs[0][0].duration == predictor(FAST).load(1, 1).seconds


def test_durations_by_hand_on_some_ranks_leave_no_mfu() -> None:
    hardware = RankPredictors([predictor(FAST), mt.FixedPredictor(forward=1)])
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=2, hardware=hardware)
    assert (run.mfu, run.capacity_bytes) == (None, None)


def test_predictors_must_be_one_a_rank_of_one_workload_and_told_apart() -> None:
    with pytest.raises(UsageError, match="a run of 4 ranks needs one predictor a rank, got 2"):
        mt.simulate("ddp", world_size=4, hardware=RankPredictors([predictor(FAST)] * 2))
    with pytest.raises(UsageError, match="all ranks of a run must train the same workload, but that of rank 1"):
        RankPredictors([predictor(FAST), DevicePredictor(MatmulLayer(), FAST, NETWORK)])
    with pytest.raises(UsageError, match="fold=True does not go with a predictor for each rank"):
        simulate("ddp", FAST, SLOW, fold=True)
