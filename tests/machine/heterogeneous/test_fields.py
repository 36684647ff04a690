"""Each field that users give of the room's workloads, tasks, rules and devices decides something, and heat does too.

`CASES` has a way to change each field and something that is seen of it. What the room itself fills in (`FILLED`: plans,
runs, reports) is not among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.machine import heterogeneous
from minitrain.machine.heterogeneous import (
    ArraySpec,
    ComprehensiveHardwareProfiler,
    DataMovementOptimizer,
    DetectedDevice,
    EnhancedHardwareDetector,
    EnhancedHardwareTaxonomy,
    EnhancedTestTask,
    EnhancedWorkloadProfile,
    FusionRule,
    HardwareAwareWorkloadManager,
    HardwareCapabilityProfile,
    HardwareClass,
    HardwareRelationship,
    HeterogeneousScheduler,
    MultiDeviceOrchestrator,
    PrecisionType,
    Suite,
    WorkloadOperation,
    profiles_of,
    split_by_samples,
)
from minitrain.machine.heterogeneous.timeline import Step, timeline
from minitrain.machine.heterogeneous.workload_manager import operation_s, workload_s
from minitrain.machine.heterogeneous.workloads import free_after_last_use, fusions
from tests.machine.heterogeneous.test_orchestrator import DEVICES, layer
from tests.machine.heterogeneous.workload_examples import branches, priced_branches

A100, T4 = profiles_of(["a100_80g", "t4"])
A100S = profiles_of(["a100_80g"] * 4)
LARGE = EnhancedWorkloadProfile.of(priced_branches())
MANAGER = HardwareAwareWorkloadManager(layer(), EnhancedHardwareTaxonomy())
SOFTMAX = WorkloadOperation("y", "softmax", {"x": "x"}, {"axis": 1})
RULE = FusionRule("own", ("matmul", "*"))
TASK = EnhancedTestTask("task", LARGE)


def placed(workload: Any) -> dict[str, str]:
    """Return the name of the device of each operation, on four A100s."""
    found = MANAGER.decompose_workload(workload, A100S)["device_mapping"]
    return {name: device.name for name, device in found.items()}


def chosen(workload: Any) -> list[str]:
    return [device.name for device in MANAGER.able(workload, [A100, "esp32"])]


def refused(workload: Any) -> str:
    with pytest.raises(mt.UsageError, match="no device of esp32") as caught:
        MANAGER.decompose_workload(workload, ["esp32"])
    return str(caught.value)


def unfit(task: EnhancedTestTask) -> str:
    with pytest.raises(mt.UsageError, match="no device can do") as caught:
        HeterogeneousScheduler(["esp32"]).schedule([replace(task)])
    return str(caught.value)


def prepared(name: str) -> Callable[[EnhancedTestTask], Any]:
    """Return what a task's field is before it is prepared, and that preparing replaces it."""

    def seen(task: EnhancedTestTask) -> Any:
        copy = replace(task)
        before = dict(getattr(copy, name))
        copy.prepare_for_hardware(A100)
        assert getattr(copy, name) not in ({}, before)
        return before

    return seen


def drawn(task: EnhancedTestTask) -> str:
    """Return which device a task goes to; the A100 is quicker, and draws 400 W."""
    return HeterogeneousScheduler([A100, T4]).schedule([replace(task)])[0].device.name


def fingerprint(device: HardwareCapabilityProfile) -> str:
    return ComprehensiveHardwareProfiler(EnhancedHardwareDetector()).generate_hardware_fingerprint(device)


def fused(rule: FusionRule, hardware: HardwareClass = HardwareClass.CPU) -> list[Any]:
    return [(each.rule, each.operations) for each in fusions(LARGE, [rule], hardware)]


def shape(operation: WorkloadOperation) -> Any:
    """Return which rows of a batch an operation keeps apart, or why it keeps none."""
    workload = EnhancedWorkloadProfile("one", (operation,), {"x": ArraySpec((4, 8)), "z": ArraySpec((4, 2))})
    workload = replace(workload, batch_inputs=("x", "z"))
    try:
        split_by_samples(workload, {"a100_80g": 4}, [A100])
    except mt.UsageError as error:
        return str(error)
    return workload.specs, workload.costs


def verified(device: HardwareCapabilityProfile) -> str:
    profiler = ComprehensiveHardwareProfiler(EnhancedHardwareDetector(), layer(), Suite((256,), (2**16,), 1))
    return profiler.verify_capabilities(device).verdict


def lacks(workload: Any) -> str:
    with pytest.raises(mt.UsageError, match="no device has what") as caught:
        MANAGER.able(workload, [A100])
    return str(caught.value)


def found(device: DetectedDevice) -> Any:
    return fingerprint(replace(A100, detected=device)), device.unknown


def ways(relation: HardwareRelationship) -> Any:
    """Return what moves take to an A100 from a T4 and from the host."""
    taxonomy = EnhancedHardwareTaxonomy()
    taxonomy.define_relationship(relation.source, relation.target, relation.kind, **relation.properties)
    return [DataMovementOptimizer(taxonomy).way(2**27, source, A100) for source in (T4, None)]


def benchmarked(suite: Suite) -> Any:
    rungs = suite.rungs(layer(), "a100_80g", "float32", 2**30)
    return [(each.size, len(each.measured.samples_s), each.error) for each in rungs]


DETECTED = DetectedDevice("one", HardwareClass.GPU)
PEERS = HardwareRelationship("t4", "a100_80g", "peer_of", {"bytes_per_s": 1e12})
SUITE = Suite((8,), (16,), 2)
Case = tuple[Any, Any, Callable[[Any], Any]]
CASES: dict[tuple[type, str], Case] = {
    (ArraySpec, "shape"): (ArraySpec((2, 3)), (2, 4), lambda each: each.num_bytes),
    (ArraySpec, "datatype"): (ArraySpec((2, 3)), "float16", lambda each: each.num_bytes),
    (WorkloadOperation, "name"): (SOFTMAX, "other", shape),
    (WorkloadOperation, "op_type"): (replace(SOFTMAX, options={}), "tanh", shape),
    (WorkloadOperation, "inputs"): (SOFTMAX, {"x": "z"}, shape),
    (WorkloadOperation, "options"): (SOFTMAX, {"axis": 0}, shape),
    (EnhancedWorkloadProfile, "workload_id"): (replace(LARGE, requires={"x": 1.0}), "other", lacks),
    (EnhancedWorkloadProfile, "operations"): (
        LARGE,
        (*LARGE.operations, WorkloadOperation("more", "tanh", {"x": "x"})),
        lambda each: workload_s(each, A100),
    ),
    (EnhancedWorkloadProfile, "inputs"): (
        LARGE,
        priced_branches(batch=8192).inputs,
        lambda each: workload_s(each, A100),
    ),
    (EnhancedWorkloadProfile, "outputs"): (LARGE, ("down0", "sum3"), lambda each: free_after_last_use(each, 0)),
    (EnhancedWorkloadProfile, "batch_inputs"): (LARGE, (), lambda each: MANAGER.decompose_workload(each, A100S).keys()),
    (EnhancedWorkloadProfile, "precisions"): (
        LARGE,
        (PrecisionType.FP32,),
        lambda each: MANAGER.select_precision(each, A100),
    ),
    (EnhancedWorkloadProfile, "requires"): (LARGE, {"tensor_cores": 1.0}, chosen),
    (EnhancedWorkloadProfile, "decomposable_components"): (
        LARGE,
        {"both": {"operations": ["up0", "down0", "up1", "down1", "up2", "down2"]}},
        lambda each: len({placed(each)[f"up{branch}"] for branch in range(3)}),
    ),
    (EnhancedWorkloadProfile, "data_access_patterns"): (
        LARGE,
        {"w0": "kept"},
        lambda each: free_after_last_use(each, 0).freed_after,
    ),
    (EnhancedWorkloadProfile, "memory_access_patterns"): (
        LARGE,
        {"sum1": "view"},
        lambda each: workload_s(each, A100),
    ),
    (EnhancedWorkloadProfile, "parallelism_characteristics"): (
        LARGE,
        {"width": 1.5},
        lambda each: len(set(placed(each).values())),
    ),
    (EnhancedWorkloadProfile, "dependency_graph"): (
        LARGE,
        {"up1": ["down0"], "up2": ["down1"], "up3": ["down2"]},
        lambda each: MANAGER.decompose_workload(each, A100S)["seconds"],
    ),
    (FusionRule, "name"): (RULE, "other", fused),
    (FusionRule, "pattern"): (RULE, ("gelu", "matmul"), fused),
    (FusionRule, "hardware"): (RULE, frozenset({HardwareClass.GPU}), fused),
    (EnhancedTestTask, "task_id"): (TASK, "other", unfit),
    (EnhancedTestTask, "workload"): (
        TASK,
        EnhancedWorkloadProfile.of(priced_branches(count=2)),
        lambda task: HeterogeneousScheduler([A100]).schedule([replace(task)])[0].end_s,
    ),
    **{
        (EnhancedTestTask, name): (TASK, {"own": 1}, prepared(name))
        for name in ("hardware_context", "execution_plan", "data_movement_plan")
    },
    (EnhancedTestTask, "power_budget"): (TASK, 100.0, drawn),
    (HardwareCapabilityProfile, "name"): (A100, "other", lambda each: MANAGER.decompose_workload(LARGE, [each])),
    (HardwareCapabilityProfile, "spread"): (A100, {"memory": 0.5}, verified),
    (HardwareCapabilityProfile, "device"): (A100, T4.device, lambda each: workload_s(LARGE, each)),
    (HardwareCapabilityProfile, "detected"): (
        A100,
        DetectedDevice("one", HardwareClass.GPU, uuid="GPU-1"),
        fingerprint,
    ),
    (HardwareCapabilityProfile, "thermal"): (
        replace(A100, name="hot"),
        mt.Thermal(0.2, 100, 70),
        lambda each: timeline([Step("compute", "a", "hot", seconds=20, hot_s=50)], [each]).seconds,
    ),
    **{
        (DetectedDevice, name): (DETECTED, other, found)
        for name, other in {
            "name": "other",
            "hardware_class": HardwareClass.NPU,
            "vendor": "NVIDIA",
            "num_units": 4,
            "memory_bytes": 2**34,
            "clock_Hz": 1e9,
            "tdp_W": 300.0,
            "temperature_C": 40.0,
            "features": {"vector_bits": 512},
            "caches": ((1, 2**15),),
            "uuid": "GPU-1",
            "num_cores": 8,
        }.items()
    },
    (HardwareRelationship, "source"): (PEERS, "host", ways),
    (HardwareRelationship, "target"): (PEERS, "l40s_48g_pcie8", ways),
    (HardwareRelationship, "kind"): (PEERS, "shares_memory_with", ways),
    (HardwareRelationship, "properties"): (PEERS, {"bytes_per_s": 2e12}, ways),
    (Suite, "matmul_sizes"): (SUITE, (8, 16), benchmarked),
    (Suite, "stream_elements"): (SUITE, (32,), benchmarked),
    (Suite, "num_samples"): (SUITE, 3, benchmarked),
    (Suite, "seed"): (SUITE, 1, benchmarked),
}


GIVEN = tuple(dict.fromkeys(kind for kind, _ in CASES))
BELOW = {"TestTask": EnhancedTestTask, "WorkloadProfile": EnhancedWorkloadProfile}
FILLED = {
    *("Claim", "DataMovementPlan", "Execution", "Fusion", "MemoryPlan", "Move", "OrchestratedRun", "Placed"),
    *("Recovery", "ScheduledTask", "VerificationReport"),
}
EVERY = [(kind, each.name) for kind in GIVEN for each in fields(kind)]


@pytest.mark.few(2)
@pytest.mark.parametrize(("kind", "name"), EVERY, ids=[f"{kind.__name__}.{name}" for kind, name in EVERY])
def test_each_field_decides_something(kind: type, name: str) -> None:
    given, other, seen = CASES[kind, name]
    assert seen(given) == seen(given)
    assert seen(replace(given, **{name: other})) != seen(given)


def test_every_public_class_with_fields_is_given_or_filled_in() -> None:
    public = vars(heterogeneous)
    with_fields = {name for name, kind in public.items() if isinstance(kind, type) and is_dataclass(kind)}
    assert with_fields == {kind.__name__ for kind in GIVEN} | set(BELOW) | FILLED
    for name, kind in BELOW.items():
        assert {each.name for each in fields(public[name])} <= {each.name for each in fields(kind)}


@pytest.mark.ci
def test_components_stay_on_one_device_and_less_is_never_quicker() -> None:
    names = [f"{each}{branch}" for branch in (0, 2) for each in ("up", "act", "down")]
    whole = replace(LARGE, decomposable_components={"pair": {"operations": names}})
    assert len({placed(whole)[name] for name in names}) == 1
    assert len(set(placed(whole).values())) > 1
    free, bound = (MANAGER.decompose_workload(each, A100S)["seconds"] for each in (LARGE, whole))
    assert bound > free
    figures = whole.decomposable_components["pair"]
    assert figures["flops"] == sum(LARGE.costs[name].flops for name in names)
    assert whole.at_batch(8192).decomposable_components["pair"]["flops"] == 2 * figures["flops"]


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [1, 1.5, 3])
def test_no_more_devices_compute_than_a_workload_is_said_to_be_wide(width: float) -> None:
    narrow = replace(LARGE, parallelism_characteristics={"width": width, "batch": 64})
    assert len(set(placed(narrow).values())) == np.ceil(width)
    assert MANAGER.optimize_batch_size(narrow, A100) <= 64 < MANAGER.optimize_batch_size(LARGE, A100)


def test_what_is_kept_stays_on_the_device_through_cuts_and_runs() -> None:
    small = EnhancedWorkloadProfile.of(branches())
    weights = replace(small, data_access_patterns=dict.fromkeys(("w0", "w1", "w2", "w3"), "kept"))
    peaks = []
    for workload in (small, weights, weights.with_inputs(small.inputs)):
        cut, mapping = split_by_samples(workload, {DEVICES[0].name: 32}, DEVICES[:1])
        run = MultiDeviceOrchestrator(MANAGER).execute_multi_device_workload(cut, mapping)
        peaks.append(run.peak_bytes[DEVICES[0].name])
    assert peaks[0] < peaks[1] == peaks[2]


def test_a_view_moves_nothing_in_a_cut_either() -> None:
    views = replace(LARGE, memory_access_patterns={"act0": "view"})
    cut, _ = split_by_samples(views, {"a100_80g": 4096}, [A100])
    assert (cut.costs["act0@a100_80g"].bytes, views.at_batch(64).costs["act0"].bytes) == (0, 0)
    assert cut.costs["act1@a100_80g"].bytes == LARGE.costs["act1"].bytes > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data_access_patterns": {"q": "kept"}}, "data_access_patterns names 'q'"),
        ({"data_access_patterns": {"x": "random"}}, "may say kept of x, which is 'shared' otherwise, got 'random'"),
        ({"memory_access_patterns": {"up0": "random"}}, "may say view of up0, which is 'blocked' otherwise"),
        ({"parallelism_characteristics": {"width": 0}}, "may say width and batch, each at least 1, got width 0"),
        ({"parallelism_characteristics": {"arithmetic_intensity": 3.0}}, "may say width and batch"),
        ({"decomposable_components": {"a": {"operations": ["up9"]}}}, "decomposable_components names 'up9'"),
        (
            {"decomposable_components": {"a": {"operations": ["up0"]}, "b": {"operations": ["up0"]}}},
            "must not share operations, and up0 is in two",
        ),
    ],
)
def test_what_would_decide_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        replace(LARGE, **given)


THERMAL = mt.Thermal(resistance_K_per_W=0.2, capacity_J_per_K=100, throttle_C=70, ambient_C=30)


@pytest.mark.ci
def test_heat_slows_a_device_of_the_orchestrator_by_the_law_of_its_clock() -> None:
    """A device that sustains 200 W has the clock that these leave beside its idle power, and draws no more."""
    cool, hot = (mt.Cluster([mt.Devices("l40s_48g_pcie8", 1, thermal=each)]) for each in (None, THERMAL))
    (usual,), (warm,) = profiles_of(cool), profiles_of(hot)
    assert usual.idle_W is not None
    assert usual.tdp_W is not None
    share = ((200 - usual.idle_W) / (usual.tdp_W - usual.idle_W)) ** (1 / 3)
    slow = warm.throttled
    assert usual.throttled == usual
    assert slow.tdp_W == pytest.approx(200)
    product, copied = LARGE.costs["up0"], LARGE.costs["act0"]
    dispatch = usual.simulator.dispatch_s
    assert operation_s(product, warm) == operation_s(product, usual)
    assert operation_s(product, slow) - dispatch == pytest.approx((operation_s(product, usual) - dispatch) / share)
    assert operation_s(copied, slow) == operation_s(copied, usual)  # the memory has a clock of its own
    manager = HardwareAwareWorkloadManager(layer(names=("l40s_48g_pcie8",)), EnhancedHardwareTaxonomy())
    workload = branches(size=512, batch=512)

    def run(device: HardwareCapabilityProfile, **more: Any) -> Any:
        return MultiDeviceOrchestrator(manager).execute_multi_device_workload(workload, [device], **more)

    plain, first = run(usual), run(warm)
    assert first.seconds == plain.seconds
    last = first.timeline.temperatures_C[warm.name]
    assert 30 < last < 31  # so short a run
    again = run(warm, temperatures_C=first.timeline.temperatures_C)
    assert last < again.timeline.temperatures_C[warm.name]
    throttled = run(warm, temperatures_C={warm.name: 90.0})  # hotter than it may be
    assert throttled.seconds > plain.seconds
    assert first.timeline.peak_watts > throttled.timeline.peak_watts
    np.testing.assert_array_equal(throttled.outputs["sum3"], plain.outputs["sum3"])
    with pytest.raises(mt.UsageError, match="temperatures_C names 'l40s', and the devices that have a Thermal are l40"):
        run(warm, temperatures_C={"l40s": 50.0})


def test_temperatures_follow_the_law_of_a_resistance_and_a_capacity_during_a_run() -> None:
    """One step until it throttles and beyond, another after it has cooled down: dT/dt = (P R - (T - ambient)) / R C."""
    hot, other = replace(A100, name="hot", thermal=THERMAL), replace(A100, name="other")
    steps = [
        Step("compute", "first", "hot", seconds=20, hot_s=50),
        Step("compute", "between", "other", (0,), seconds=7),
        Step("compute", "second", "hot", (1,), seconds=1, hot_s=3),
    ]
    found = timeline(steps, [hot, other])
    tau, drawn, idle = 20.0, 0.2 * 400, 0.2 * (A100.idle_W or 0)
    until_hot = tau * np.log(drawn / (drawn - 40))  # from 30 to 70 degrees on the way to 110
    first, _, second = found.steps
    assert 0 < until_hot < 20
    assert first.end_s == pytest.approx(until_hot + (1 - until_hot / 20) * 50)
    assert first.temperature_C == pytest.approx(70)
    cooled = 30 + idle + (40 - idle) * np.exp(-7 / tau)
    assert second.end_s - second.start_s == pytest.approx(1)
    assert second.temperature_C == pytest.approx(30 + drawn + (cooled - 30 - drawn) * np.exp(-1 / tau))
    assert found.temperatures_C == {"hot": second.temperature_C}
    rest = 2 * (A100.idle_W or 0) * found.seconds
    worked = (400 - (A100.idle_W or 0)) * (until_hot + 7 + 1) + (200 - (A100.idle_W or 0)) * (first.end_s - until_hot)
    assert found.energy_joules == pytest.approx(rest + worked)
