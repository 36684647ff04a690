"""Workloads: graphs that can be computed, what they cost, and what is worked out of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.machine.devices import make_simulator, matmul
from minitrain.machine.heterogeneous import (
    ArraySpec,
    EnhancedTestTask,
    EnhancedWorkloadProfile,
    HardwareCapabilityProfile,
    HeterogeneousScheduler,
    PrecisionType,
    WorkloadOperation,
    WorkloadProfile,
    profiles_of,
    split_by_samples,
)
from tests.machine.heterogeneous.workload_examples import branches, priced_branches

A100 = HardwareCapabilityProfile.from_device("a100_80g")


def test_a_workload_knows_its_arrays_and_costs() -> None:
    workload = branches(count=2, size=8, batch=4)
    assert workload.specs["up0"] == ArraySpec((4, 16), "float32")
    assert workload.costs["up0"].flops == matmul(4, 8, 16).flops
    assert workload.costs["up0"].bytes == matmul(4, 8, 16).bytes
    assert workload.program.flops == sum(cost.flops for cost in workload.costs.values())
    assert workload.wanted == ("sum1",)
    assert workload.batch_size == 4


def test_at_another_batch_or_precision_only_what_depends_on_it_changes() -> None:
    workload = branches(count=1, size=8, batch=4).at_batch(12)
    assert workload.specs["down0"].shape == (12, 8)
    assert workload.specs["w0"].shape == (8, 16)
    assert workload.costs["up0"].flops == 3 * branches(count=1, size=8, batch=4).costs["up0"].flops
    half = branches(count=1).in_precision(PrecisionType.FP16)
    assert half.inputs["x"].dtype == np.float16
    assert {spec.datatype for spec in half.specs.values()} == {"float16"}
    assert half.costs["up0"].bytes == branches(count=1).costs["up0"].bytes / 2
    with pytest.raises(mt.UsageError, match="twice has no batch; name the inputs with a row a sample"):
        WorkloadProfile("twice", (operation("b", x="a", y="a"),), {"a": ArraySpec((4, 8))}).at_batch(8)


def operation(name: str, **inputs: Any) -> WorkloadOperation:
    return WorkloadOperation(name, "add", inputs)


@pytest.mark.parametrize(
    ("operations", "named", "message"),
    [
        ((operation("b", x="a", y="c"),), {}, "operation b reads 'c', which no input and no operation before it gives"),
        ((operation("b", x="c", y="a"), operation("c", x="a", y="a")), {}, "operation b reads 'c'"),
        ((operation("a", x="a", y="a"),), {}, "two arrays called 'a'; give operations names of their own"),
        ((operation("b", x="a", y="a"),), {"outputs": ("bb",)}, "names 'bb', .* did you mean \"b\""),
        ((operation("b", x="a", y="other"),), {}, "add cannot take arrays of shapes"),
        ((operation("b", x="a", y="a"),), {"batch_inputs": ("a", "other")}, "equally many rows, got a 4, other 3"),
    ],
)
def test_a_graph_that_cannot_be_computed_is_refused(operations: Any, named: Any, message: str) -> None:
    inputs = {"a": ArraySpec((4, 8)), "other": ArraySpec((3, 8))}
    with pytest.raises(mt.UsageError, match=message):
        WorkloadProfile("wrong", operations, inputs, **named).specs  # noqa: B018


def test_what_the_specification_lists_is_worked_out_of_the_graph() -> None:
    found = EnhancedWorkloadProfile.of(branches(count=3))
    assert found.dependency_graph["sum2"] == ["sum1", "down2"]
    waits = EnhancedWorkloadProfile(
        "waits", found.operations, found.inputs, batch_inputs=("x",), dependency_graph={"up1": ["up0"]}
    )
    assert EnhancedWorkloadProfile.of(waits).at_batch(4).dependency_graph["up1"] == ["up0"]
    assert waits.dependency_graph["act1"] == ["up1"]
    with pytest.raises(mt.UsageError, match="in the dependency graph, up0 waits for 'up1', which no input and no oper"):
        EnhancedWorkloadProfile("waits", found.operations, found.inputs, dependency_graph={"up0": ["up1"]})
    with pytest.raises(mt.UsageError, match="waits cannot be cut by samples, since up1 waits for operations that it"):
        split_by_samples(waits, {"a100_80g": 32}, [A100])
    assert found.data_access_patterns == {"x": "shared"} | dict.fromkeys(("w0", "v0", "w1", "v1", "w2", "v2"), "once")
    assert (found.memory_access_patterns["up0"], found.memory_access_patterns["act0"]) == ("blocked", "streaming")
    assert found.parallelism_characteristics["width"] == pytest.approx(3, rel=0.01)
    assert list(found.decomposable_components) == ["component-0"]
    apart = WorkloadProfile("apart", (operation("b", x="a", y="a"), operation("c", x="a", y="a")), {"a": np.ones(3)})
    components = EnhancedWorkloadProfile.of(apart).decomposable_components
    assert [each["operations"] for each in components.values()] == [["b"], ["c"]]
    before, grown = (each.decomposable_components["component-0"] for each in (found, found.at_batch(64)))
    assert grown["flops"] == 2 * before["flops"]
    named = EnhancedWorkloadProfile("own", apart.operations, apart.inputs, data_access_patterns={"a": "kept"})
    assert named.data_access_patterns == {"a": "kept"}  # what is given is not worked out


def test_compatibility_ranks_devices_by_what_they_take() -> None:
    workload = EnhancedWorkloadProfile.of(priced_branches())
    devices = profiles_of(["h100_80g_nvl8", "a100_80g", "t4", "esp32"])
    h100, a100, t4, esp32 = (workload.calculate_hardware_compatibility(device) for device in devices)
    assert h100 > a100 > t4 > esp32 == 0
    assert a100 == 1 / make_simulator("a100_80g").predict(workload.program)


def test_a_task_is_prepared_for_a_device_within_its_power_budget() -> None:
    task = EnhancedTestTask("task", branches(count=1), power_budget=400)
    task.prepare_for_hardware(A100)
    assert task.hardware_context["device"] == "a100_80g"
    assert task.execution_plan["seconds"] == make_simulator("a100_80g").predict(task.workload.program)
    assert task.data_movement_plan["inputs_bytes"] == 4 * (32 * 64 + 2 * 64 * 128)
    phone = HardwareCapabilityProfile.from_device("phone")
    with pytest.raises(mt.UsageError, match="task has a power budget, and the config of phone has no power; add power"):
        task.prepare_for_hardware(phone)
    with pytest.raises(mt.UsageError, match="phone: it draws an unknown power of 400 W"):
        HeterogeneousScheduler([phone]).schedule([task])
    task.power_budget = 399
    with pytest.raises(mt.UsageError, match="a100_80g draws 400 W, and the power budget of task is 399 W"):
        task.prepare_for_hardware(A100)


def test_tasks_go_to_the_device_that_ends_them_first() -> None:
    tasks = [EnhancedTestTask(f"task {place}", priced_branches(count=1 + place)) for place in range(4)]
    alone = [each.end_s - each.start_s for each in HeterogeneousScheduler(["h100_80g_nvl8"]).schedule(tasks)]
    found = HeterogeneousScheduler(["h100_80g_nvl8", "a100_80g"]).schedule(tasks)
    assert {each.task.task_id: each.device.name for each in found}["task 3"] == "h100_80g_nvl8"
    assert {each.device.name for each in found} == {"h100_80g_nvl8", "a100_80g"}
    assert max(each.end_s for each in found) < sum(alone)
    assert all(each.task.hardware_context["device"] == each.device.name for each in found)


def test_a_task_that_no_device_can_do_says_why_each_cannot() -> None:
    task = EnhancedTestTask("large", priced_branches(), power_budget=100)
    with pytest.raises(mt.UsageError, match=r"no device can do large; a100_80g: it draws 400 W of 100 W; esp32: "):
        HeterogeneousScheduler(["a100_80g", "esp32"]).schedule([task])
