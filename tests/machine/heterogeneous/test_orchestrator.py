"""The orchestrator: real arithmetic on several devices, moves to the byte, failures without harm, and power."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.machine.heterogeneous import (
    DeviceFailure,
    EnhancedHardwareTaxonomy,
    EnhancedTestTask,
    EnhancedWorkloadProfile,
    FailingBackend,
    HardwareAbstractionLayer,
    HardwareAwareWorkloadManager,
    HardwareCapabilityProfile,
    HardwareClass,
    HostBackend,
    LayerCoordinator,
    MultiDeviceOrchestrator,
    NoBackendError,
    SimulatedBackend,
    WorkloadOperation,
    WorkloadProfile,
    profiles_of,
    share_devices,
    split_by_samples,
)
from minitrain.machine.heterogeneous.timeline import Step
from minitrain.machine.heterogeneous.workload_manager import HOST, DataMovementOptimizer, ListScheduler
from minitrain.machine.heterogeneous.workloads import dependencies
from minitrain.machine.platform import ComputeResult, VirtualHardwarePlatform
from tests.machine.heterogeneous.workload_examples import branches, priced_branches

NAMES = ("h100_80g_nvl8", "a100_80g", "t4")
DEVICES = profiles_of(NAMES)
H100, A100, T4 = DEVICES
WORKLOAD = branches()
ROUND_ROBIN = {name: DEVICES[place % 3] for place, name in enumerate(WORKLOAD.by_name)}


def layer(dies: str = "", after: int = 0, names: tuple[str, ...] = NAMES) -> HardwareAbstractionLayer:
    """Return simulated devices, one of which may die after some operations."""
    hal = HardwareAbstractionLayer()
    for name in names:
        backend = SimulatedBackend(name)
        hal.register_backend(name, FailingBackend(backend, after) if name == dies else backend)
    return hal


def orchestrator(hal: HardwareAbstractionLayer) -> MultiDeviceOrchestrator:
    return MultiDeviceOrchestrator(HardwareAwareWorkloadManager(hal, EnhancedHardwareTaxonomy()))


def by_numpy(workload: WorkloadProfile) -> dict[str, Any]:
    """Return all results, computed with NumPy without any of the classes."""
    found: dict[str, Any] = dict(workload.inputs)
    gelu = lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2  # noqa: E731
    compute: dict[str, Any] = {"matmul": np.matmul, "add": np.add, "gelu": gelu}
    for operation in workload.operations:
        found[operation.name] = compute[operation.op_type](*(found[name] for name in operation.inputs.values()))
    return found


@pytest.fixture(scope="module")
def undisturbed() -> Any:
    return orchestrator(layer()).execute_multi_device_workload(WORKLOAD, ROUND_ROBIN)


def test_the_numbers_are_those_of_the_arithmetic(undisturbed: Any) -> None:
    np.testing.assert_allclose(undisturbed.outputs["sum3"], by_numpy(WORKLOAD)["sum3"], rtol=2e-4, atol=2e-5)
    alone = orchestrator(layer()).execute_multi_device_workload(WORKLOAD, [H100])
    np.testing.assert_array_equal(alone.outputs["sum3"], undisturbed.outputs["sum3"])


def test_what_moves_is_what_was_planned_to_the_byte() -> None:
    hal = layer()
    run = orchestrator(hal).execute_multi_device_workload(WORKLOAD, ROUND_ROBIN)
    moves = [(step.name, step.source, step.device, step.num_bytes) for step in run.steps if step.kind == "move"]
    planned = [(move.array, move.source, move.dest, move.num_bytes) for move in run.plan.moves]
    assert Counter(moves) == Counter(planned)
    home = WORKLOAD.specs["sum3"].num_bytes
    assert run.moved_bytes == run.plan.total_bytes == sum(hal.moved_bytes.values()) + home
    assert len({(name, dest) for name, _, dest, _ in moves}) == len(moves)  # to no device twice
    alone = orchestrator(hal).optimize_data_movement(WORKLOAD, dict.fromkeys(WORKLOAD.by_name, H100))
    assert alone.total_bytes == WORKLOAD.num_bytes(*WORKLOAD.inputs, "sum3") < alone.bytes_without_plan
    assert {move.source for move in alone.to("h100_80g_nvl8")} == {"host"}


@given(places=st.lists(st.integers(0, 2), min_size=len(WORKLOAD.by_name), max_size=len(WORKLOAD.by_name)))
def test_each_array_moves_once_to_each_device_that_lacks_it_and_no_more(places: list[int]) -> None:
    mapping = {name: DEVICES[place] for name, place in zip(WORKLOAD.by_name, places, strict=True)}
    plan = DataMovementOptimizer().plan(WORKLOAD, mapping)
    home = {name: mapping[name].name if name in mapping else HOST for name in (*WORKLOAD.inputs, *WORKLOAD.by_name)}
    needed = {(name, mapping[one.name].name) for one in WORKLOAD.operations for name in one.reads()}
    needed |= {(name, HOST) for name in WORKLOAD.wanted}
    least = [WORKLOAD.num_bytes(name) for name, dest in needed if home[name] != dest]
    assert plan.total_bytes == sum(least)


def test_an_array_comes_from_the_device_that_sends_it_soonest() -> None:
    operations = tuple(
        WorkloadOperation(name, "tanh", {"x": read}) for name, read in (("a", "x"), ("b", "a"), ("c", "a"))
    )
    workload = WorkloadProfile("spread", operations, {"x": np.ones((512, 512), np.float32)})
    gh200 = HardwareCapabilityProfile.from_device("gh200_96g_nvl4")
    plan = orchestrator(layer()).optimize_data_movement(workload, {"a": T4, "b": gh200, "c": A100})
    source = {(move.array, move.dest): move.source for move in plan.moves}
    assert source["a", "gh200_96g_nvl4"] == "t4"
    assert source["a", "a100_80g"] == "gh200_96g_nvl4"  # which has had it from the T4 and has the quicker link


def test_what_only_a_dead_device_held_is_computed_again() -> None:
    chain = WorkloadProfile(
        "chain",
        tuple(WorkloadOperation(f"t{step}", "tanh", {"x": f"t{step - 1}" if step else "x"}) for step in range(4)),
        {"x": np.full((8, 8), 0.5, np.float32)},
    )
    mapping = {"t0": A100, "t1": A100, "t2": A100, "t3": T4}
    run = orchestrator(layer("a100_80g", 3)).execute_multi_device_workload(chain, mapping)
    (recovery,) = run.recoveries
    assert (recovery.found_by, recovery.lost, recovery.again) == ("t3", ("t2",), ("t0", "t1", "t2"))
    assert recovery.moved_to == {"t4": ("t0", "t1", "t2")}
    np.testing.assert_array_equal(run.outputs["t3"], np.tanh(np.tanh(np.tanh(np.tanh(chain.inputs["x"])))))


def test_a_failure_costs_time_and_nothing_goes_on_before_it(undisturbed: Any) -> None:
    run = orchestrator(layer("h100_80g_nvl8", 4)).execute_multi_device_workload(WORKLOAD, ROUND_ROBIN)
    number = [each.step.kind for each in run.timeline.steps].index("failure")
    _, *later = run.timeline.steps[number:]
    assert all(each.start_s >= run.timeline.steps[number].end_s for each in later)
    assert run.seconds > undisturbed.seconds


def test_two_devices_may_die_and_a_spare_takes_over(undisturbed: Any) -> None:
    hal = layer("a100_80g", 2, (*NAMES, "l40s_48g_pcie8"))
    hal.register_backend("t4", FailingBackend(SimulatedBackend("t4"), 3))
    hal.register_backend("h100_80g_nvl8", FailingBackend(SimulatedBackend("h100_80g_nvl8"), 5))
    run = orchestrator(hal).execute_multi_device_workload(WORKLOAD, ROUND_ROBIN, spares=["l40s_48g_pcie8"])
    np.testing.assert_array_equal(run.outputs["sum3"], undisturbed.outputs["sum3"])
    assert {recovery.device for recovery in run.recoveries} == set(NAMES)


def test_when_the_last_device_dies_so_does_the_run() -> None:
    with pytest.raises(DeviceFailure, match=r"all devices have died, t4 as the last, at .* of branches; give spares"):
        orchestrator(layer("t4", 2)).execute_multi_device_workload(WORKLOAD, dict.fromkeys(WORKLOAD.by_name, T4))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=len(WORKLOAD.operations), max_size=len(WORKLOAD.operations)),
    st.integers(0, 12),
    st.sampled_from(["", *NAMES]),
)
def test_any_mapping_and_any_failure_give_the_same_numbers(places: list[int], after: int, dies: str) -> None:
    mapping = dict(zip(WORKLOAD.by_name, (DEVICES[place] for place in places), strict=True))
    run = orchestrator(layer(dies, after)).execute_multi_device_workload(WORKLOAD, mapping)
    alone = orchestrator(layer()).execute_multi_device_workload(WORKLOAD, [H100])
    np.testing.assert_array_equal(run.outputs["sum3"], alone.outputs["sum3"])
    again = [name for recovery in run.recoveries for name in recovery.again]
    computed = Counter(step.name for step in run.steps if step.kind == "compute")
    assert sum(computed.values()) == len(WORKLOAD.operations) + len(again)
    assert {name for name, times in computed.items() if times > 1} == set(again)
    if run.recoveries:
        failed = [step.kind for step in run.steps].index("failure")
        assert all(dies not in (step.device, step.source) for step in run.steps[failed + 1 :])
    else:
        assert run.moved_bytes == run.plan.total_bytes


def test_the_timeline_keeps_every_order(undisturbed: Any) -> None:
    ends: dict[str, float] = {}
    busy: dict[str, float] = {}
    for number, each in enumerate(undisturbed.timeline.steps):
        for other in each.step.after:
            assert undisturbed.timeline.steps[other].end_s <= each.start_s, number
        if each.step.kind == "compute":
            assert each.start_s >= busy.get(each.step.device, 0.0)
            busy[each.step.device] = ends[each.step.name] = each.end_s
            assert each.end_s - each.start_s == pytest.approx(each.step.seconds)
    for name, before in dependencies(WORKLOAD).items():
        assert all(ends[other] < ends[name] for other in before)
    assert undisturbed.seconds == max(each.end_s for each in undisturbed.timeline.steps)


def pairs(**graph: list[str]) -> EnhancedWorkloadProfile:
    """Return three operations each on an A100 and a T4 that read nothing of one another."""
    operations = tuple(WorkloadOperation(f"{side}{step}", "tanh", {"x": "x"}) for step in range(3) for side in "at")
    return EnhancedWorkloadProfile("pairs", operations, {"x": np.ones((8, 8), np.float32)}, dependency_graph=graph)


def meeting(meet: Any) -> HardwareAbstractionLayer:
    """Return an A100 and a T4 that call a function before each operation."""
    hal = layer()
    for name in ("a100_80g", "t4"):
        compute = hal.hardware_backends[name].execute
        hal.hardware_backends[name].execute = lambda *given, compute=compute: (meet(), compute(*given))[1]  # type: ignore[method-assign]
    return hal


def on_both(workload: WorkloadProfile) -> dict[str, HardwareCapabilityProfile]:
    return {name: {"a": A100, "t": T4}[name[0]] for name in workload.by_name}


def test_devices_compute_at_the_same_time_and_both_clocks_are_told() -> None:
    workload = pairs()
    together = threading.Barrier(2, timeout=10)  # each operation waits for one on the other device
    run = orchestrator(meeting(together.wait)).execute_multi_device_workload(workload, on_both(workload))
    assert [each.step for each in run.measured] == list(run.steps)
    computed = [each for each in run.measured if each.step.kind == "compute"]
    assert len({each.step.device for each in computed}) == 2
    for one, other in zip(computed[::2], computed[1::2], strict=True):
        assert max(one.start_s, other.start_s) < min(one.end_s, other.end_s)
    assert run.measured_s == max(each.end_s for each in run.measured) > run.seconds  # these are of large devices


def test_two_devices_that_sleep_take_the_time_of_one() -> None:
    workload = pairs()
    hal = meeting(lambda: time.sleep(0.05))
    run = orchestrator(hal).execute_multi_device_workload(workload, on_both(workload))
    busy = sum(each.end_s - each.start_s for each in run.measured if each.step.kind == "compute")
    assert busy >= 6 * 0.05
    assert 3 * 0.05 <= run.measured_s < 0.8 * busy


def test_a_dependency_graph_is_honoured_by_both_clocks_and_the_plans() -> None:
    workload = pairs(a1=["t0"])
    slow_t4 = meeting(lambda: time.sleep(0.02 * threading.current_thread().name.startswith("t4")))
    run = orchestrator(slow_t4).execute_multi_device_workload(workload, on_both(workload))
    for clock in (run.measured, run.timeline.steps):
        when = {each.step.name: each for each in clock if each.step.kind == "compute"}
        assert when["a1"].start_s >= when["t0"].end_s
    assert run.waits["a1"] == ("t0",)
    choices = {name: [device.name] for name, device in on_both(workload).items()}
    scheduled = ListScheduler(workload, DEVICES).placed(choices)
    assert scheduled.finish_s["a1"] > scheduled.finish_s["t0"]


@pytest.mark.ci
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=15, max_size=15), st.integers(0, 5))
def test_what_happens_does_not_depend_on_which_worker_is_quicker(places: list[int], after: int) -> None:
    mapping = dict(zip(WORKLOAD.by_name, (DEVICES[place] for place in places), strict=True))
    runs = [orchestrator(layer("t4", after)).execute_multi_device_workload(WORKLOAD, mapping) for _ in range(2)]
    assert runs[0].steps == runs[1].steps
    assert runs[0].recoveries == runs[1].recoveries
    assert runs[0].timeline == runs[1].timeline


def test_moves_over_one_link_share_it() -> None:
    workload = branches(count=2, size=256)
    one = orchestrator(layer()).execute_multi_device_workload(workload, dict.fromkeys(workload.by_name, T4))
    moves = [each for each in one.timeline.steps if each.step.kind == "move" and each.step.device == "t4"]
    together = sum(each.step.num_bytes for each in moves)
    link = T4.device.mem2
    assert max(each.end_s for each in moves) >= together / (link.GBps * 1e9)


def test_waits_are_no_more_than_another_device_makes_necessary() -> None:
    manager = orchestrator(layer()).sync_manager
    chain = tuple(WorkloadOperation(f"t{step}", "tanh", {"x": f"t{step - 1}" if step else "x"}) for step in range(3))
    join = WorkloadOperation("join", "add", {"x": "t0", "y": "t2"})
    workload = WorkloadProfile("waits", (*chain, join), {"x": np.ones(4, np.float32)})
    waits = manager.plan(workload, {"t0": H100, "t1": H100, "t2": H100, "join": A100})
    assert waits == {"t0": (), "t1": (), "t2": (), "join": ("t2",)}  # who has seen t2 has seen t0
    assert manager.barrier({"a": 1.0, "b": 3.0}) == 3.0


@given(st.lists(st.integers(0, 2), min_size=len(WORKLOAD.operations), max_size=len(WORKLOAD.operations)))
def test_waits_and_the_order_of_each_device_keep_every_dependency(places: list[int]) -> None:
    mapping = dict(zip(WORKLOAD.by_name, (DEVICES[place] for place in places), strict=True))
    waits = orchestrator(layer()).sync_manager.plan(WORKLOAD, mapping)
    sure: dict[str, set[str]] = {}
    latest: dict[str, str] = {}
    for name in WORKLOAD.by_name:
        device = mapping[name].name
        before = [*waits[name], *([latest[device]] if device in latest else [])]
        sure[name] = {other for each in before for other in {each, *sure[each]}}
        latest[device] = name
        assert set(dependencies(WORKLOAD)[name]) <= sure[name]
        assert all(mapping[other].name != device for other in waits[name])


def test_a_power_budget_is_kept_and_costs_time(undisturbed: Any) -> None:
    assert undisturbed.timeline.peak_watts > 900
    run = orchestrator(layer()).execute_multi_device_workload(WORKLOAD, ROUND_ROBIN, power_budget_W=900)
    assert run.timeline.peak_watts is not None
    assert run.timeline.peak_watts <= 900
    assert run.seconds > undisturbed.seconds
    np.testing.assert_array_equal(run.outputs["sum3"], undisturbed.outputs["sum3"])
    more = {device.name: (device.tdp_W or 0.0) - (device.idle_W or 0.0) for device in DEVICES}
    rest = sum(device.idle_W or 0.0 for device in DEVICES)
    worked = sum(watts * run.timeline.busy_s(name) for name, watts in more.items())
    assert run.timeline.energy_joules == pytest.approx(rest * run.seconds + worked)
    task = EnhancedTestTask("task", WORKLOAD, power_budget=900)
    done = orchestrator(layer()).execute_task(task, DEVICES)
    assert task.data_movement_plan["total_bytes"] == done.moved_bytes
    assert set(task.execution_plan["device_mapping"]) == set(WORKLOAD.by_name)


def test_a_budget_that_no_work_fits_into_is_refused() -> None:
    with pytest.raises(mt.UsageError, match=r"power_budget_W \(300\) must let h100_80g_nvl8 work beside the others"):
        orchestrator(layer()).execute_multi_device_workload(WORKLOAD, ROUND_ROBIN, power_budget_W=300)
    phone = HardwareCapabilityProfile.from_device("phone")
    hal = layer(names=("phone",))
    mapping = dict.fromkeys(WORKLOAD.by_name, phone)
    assert orchestrator(hal).execute_multi_device_workload(WORKLOAD, mapping).timeline.energy_joules is None
    with pytest.raises(mt.UsageError, match="the config of phone has no power"):
        orchestrator(hal).execute_multi_device_workload(WORKLOAD, mapping, power_budget_W=300)


def shared(undisturbed: Any, work: tuple[float, float], count: int, shares: list[float] | None) -> list[float]:
    """Return when runs of one operation on an H100 end that share it, s."""
    step = Step("compute", "a", H100.name, seconds=0.5 + max(work), work=work)
    return [each.seconds for each in share_devices([replace(undisturbed, steps=(step,))] * count, shares)]


def test_workloads_share_units_and_bandwidth_of_a_device_in_equal_parts(undisturbed: Any) -> None:
    assert shared(undisturbed, (2.0, 0.5), 1, None) == [2.5]
    assert shared(undisturbed, (2.0, 0.5), 2, None) == [2.5, 5.0]  # each takes all units
    assert shared(undisturbed, (2.0, 0.0), 4, [0.25] * 4) == [8.5] * 4  # starting it takes as long
    assert shared(undisturbed, (0.0, 2.0), 4, [0.25] * 4) == [8.5] * 4
    assert shared(undisturbed, (2.0, 0.5), 3, [0.5] * 3) == [4.5, 4.5, 9.0]  # the third waits


def test_devices_are_shared_by_the_rule_of_the_platform(undisturbed: Any) -> None:
    work = (2.0, 1.5)
    device = {"device_id": "gpu", "peak_tflops": {"fp16": 1}, "memory_capacity_bytes": 1, "memory_gbps": 1}
    platform = VirtualHardwarePlatform().initialize({"compute_devices": [{**device, "processing_units": 132}]})
    asked = {"flops_required": work[0] * 1e12, "bytes_moved": work[1] * 1e9}
    tasks = [
        platform.submit_computation_task("gpu", asked | {"num_processing_units_requested": units})
        for units in (66, 33, 33)
    ]
    platform.run()
    shares = [0.5, 0.25, 0.25]
    assert [end - 0.5 for end in shared(undisturbed, work, 3, shares)] == pytest.approx(
        [cast(ComputeResult, t.value).end for t in tasks]
    )


def test_two_runs_that_share_devices_are_slower_than_alone_and_no_slower_than_one_after_the_other(
    undisturbed: Any,
) -> None:
    one, other = share_devices([undisturbed, undisturbed], [0.5, 0.5])
    assert undisturbed.seconds < one.seconds == other.seconds
    turns = share_devices([undisturbed, undisturbed])
    assert undisturbed.seconds < max(each.seconds for each in turns) <= 2 * undisturbed.seconds
    assert share_devices([undisturbed])[0] == undisturbed.timeline
    for shares, message in (
        ([0.001], "leave a unit of the 132 of h100_80g_nvl8, got 0.001"),
        ([2.0], "in"),
        ([], "each of 1 runs"),
    ):
        with pytest.raises(mt.UsageError, match=message):
            share_devices([undisturbed], shares)
    thermal = mt.Thermal(0.2, 100, 70)
    with pytest.raises(mt.UsageError, match="h100_80g_nvl8 warms up, and heat of shared units is not modelled"):
        share_devices([replace(undisturbed, devices=(replace(H100, thermal=thermal),))])


def test_what_a_device_fuses_is_one_step_of_the_price_of_all(undisturbed: Any) -> None:
    alone = orchestrator(layer()).execute_multi_device_workload(WORKLOAD, [H100])
    manager = HardwareAwareWorkloadManager(layer(), EnhancedHardwareTaxonomy())
    took = {each.name: each.seconds for each in alone.steps if each.kind == "compute"}
    chains = manager.fuse_operations(WORKLOAD, H100)
    assert [each.operations for each in chains] == [(f"up{branch}", f"act{branch}") for branch in range(4)]
    for chain in chains:
        assert [took[name] for name in chain.operations] == [0.0, H100.simulator.predict(chain.cost)]
    apart = {"up1": A100, "act1": T4}
    split = orchestrator(layer()).execute_multi_device_workload(WORKLOAD, dict.fromkeys(took, H100) | apart)
    took = {each.name: each.seconds for each in split.steps if each.kind == "compute"}
    assert {name: took[name] for name in apart} == {
        name: device.simulator.predict(WORKLOAD.costs[name]) for name, device in apart.items()
    }


def test_five_kinds_of_device_share_a_batch_and_give_its_numbers() -> None:
    names = ("h100_80g_nvl8", "mi300x_192g_8", "tpu_v5p", "l40s_48g_pcie8", "xeon_8480plus")
    devices = profiles_of(names)
    shares = dict(zip(names, (12, 8, 6, 5, 1), strict=True))
    cut, mapping = split_by_samples(WORKLOAD, shares, devices)
    run = orchestrator(layer(names=names)).execute_multi_device_workload(cut, mapping)
    assert {step.device for step in run.steps if step.kind == "compute"} == set(names)
    np.testing.assert_allclose(run.outputs["sum3"], by_numpy(WORKLOAD)["sum3"], rtol=2e-4, atol=2e-5)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_real_libraries_are_mixed_with_simulated_devices() -> None:
    hal = layer()
    hal.register_backend("a100_80g", HostBackend("torch"))
    hal.register_backend("t4", HostBackend("jax"))
    run = orchestrator(hal).execute_multi_device_workload(WORKLOAD, ROUND_ROBIN)
    assert set(hal.executed) == {"h100_80g_nvl8", "torch", "jax"}
    np.testing.assert_allclose(run.outputs["sum3"], by_numpy(WORKLOAD)["sum3"], rtol=2e-4, atol=2e-5)


def test_a_coordinator_of_ones_own_computes_for_its_class() -> None:
    asked: list[str] = []

    class Counting:
        def compute(self, hal: Any, key: Any, operation: WorkloadOperation, inputs: Any) -> Any:
            asked.append(operation.name)
            return LayerCoordinator().compute(hal, key, operation, inputs)

    made = orchestrator(layer(names=(*NAMES, "xeon_8480plus")))
    made.register_device_coordinator(HardwareClass.CPU, Counting())
    xeon = HardwareCapabilityProfile.from_device("xeon_8480plus")
    made.execute_multi_device_workload(WORKLOAD, ROUND_ROBIN | {"act1": xeon, "sum2": xeon})
    assert asked == ["act1", "sum2"]
    with pytest.raises(mt.UsageError, match=r"a coordinator needs a method compute\(.*and str has none"):
        made.register_device_coordinator("gpu", "cuda")  # type: ignore[arg-type]


def test_a_device_holds_what_it_needs_and_no_more_than_it_has(undisturbed: Any) -> None:
    everything = sum(spec.num_bytes for spec in WORKLOAD.specs.values())
    assert all(0 < held < everything for held in undisturbed.peak_bytes.values())
    esp32 = HardwareCapabilityProfile.from_device("esp32")
    operations = (WorkloadOperation("kept", "tanh", {"x": "a"}), WorkloadOperation("sum", "add", {"x": "a", "y": "b"}))
    inputs = {name: np.ones(40_000, np.float32) for name in "ab"}
    large = WorkloadProfile("large", operations, inputs, outputs=("kept", "sum"))
    with pytest.raises(mt.OutOfMemoryError, match="esp32 would hold 640,000 bytes of large, and has 532,480; divide"):
        orchestrator(layer(names=("esp32",))).execute_multi_device_workload(large, dict.fromkeys(large.by_name, esp32))


def test_mistakes_are_named() -> None:
    made = orchestrator(layer())
    nothing = WorkloadProfile("nothing", (), {"x": np.ones(3)})  # is none
    assert made.execute_multi_device_workload(nothing, {}, spares=["t4"], power_budget_W=70).seconds == 0
    with pytest.raises(mt.UsageError, match="branches is computed with real numbers, and x is an ArraySpec"):
        made.execute_multi_device_workload(priced_branches(), DEVICES)
    with pytest.raises(mt.UsageError, match="every operation of branches needs a device, and sum3 has none"):
        made.execute_multi_device_workload(WORKLOAD, {n: d for n, d in ROUND_ROBIN.items() if n != "sum3"})
    with pytest.raises(mt.UsageError, match=r"names 'sum33', which is no operation of branches; did you mean"):
        made.execute_multi_device_workload(WORKLOAD, ROUND_ROBIN | {"sum33": A100})
    tpu = HardwareCapabilityProfile.from_device("tpu_v5p")
    with pytest.raises(NoBackendError, match="tpu_v5p has no backend; tried 'tpu_v5p', 'tpu_v5p' and class tpu"):
        made.execute_multi_device_workload(WORKLOAD, ROUND_ROBIN | {"sum3": tpu})
    other = HardwareCapabilityProfile.from_device("l40s_48g_pcie8", name="t4")
    with pytest.raises(mt.UsageError, match="two devices are called 't4'"):
        made.execute_multi_device_workload(WORKLOAD, ROUND_ROBIN, spares=[other])
