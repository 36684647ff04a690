"""Tasks, transfers and collectives that share a platform; the values are those of the specification's formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from simpy import Environment

from minitrain.errors import MinitrainError, OutOfMemoryError, UsageError
from minitrain.machine.platform import HardwareResourceProfile, VirtualHardwarePlatform
from minitrain.machine.platform.platform import LevelOfDetail
from minitrain.machine.platform.profile import read_models

GPU = {
    "device_id": "gpu0",
    "device_type": "GPU",
    "peak_tflops": {"fp16": 312, "int8": 624},
    "memory_capacity_bytes": 80_000_000_000,
    "memory_gbps": 2000,
    "processing_units": 108,
}
WIRE = {
    "link_id": "client_to_server",
    "source_id": "client_node_0",
    "dest_id": "framework_entry_0",
    "bandwidth_bps": 10_000_000_000,
    "latency_s": 0.0001,
}
RING = [
    {"link_id": f"l{i}", "source_id": f"n{i}", "dest_id": f"n{(i + 1) % 8}", "bandwidth_bps": 10e9, "latency_s": 1e-4}
    for i in range(8)
]
LEVELS: tuple[LevelOfDetail, ...] = ("high", "medium")
HEAVY = {"flops_required_fp16": 1e12, "memory_read_bytes": 1e9, "memory_write_bytes": 1e9}
LIGHT = {"flops_required_fp16": 1e9, "memory_read_bytes": 6e9}


def outcome(process: Any) -> Any:
    """Return the value of a process that has ended."""
    return process.value


def platform(**profile: Any) -> VirtualHardwarePlatform:
    return VirtualHardwarePlatform().initialize(profile or {"compute_devices": [GPU], "network_links": [WIRE]})


@pytest.mark.parametrize(
    ("task", "efficiency", "seconds", "bound"),
    [
        (HEAVY, (1.0, 1.0), 0.003205128205128205, "compute"),
        (HEAVY, (0.5, 0.8), 0.00641025641025641, "compute"),
        (LIGHT, (1.0, 1.0), 0.003, "memory"),
        (LIGHT, (0.5, 0.8), 0.00375, "memory"),
        # a hint leaves FLOP the time that they take
        ({**HEAVY, "is_memory_bound_hint": True}, (1.0, 1.0), 0.003205128205128205, "compute"),
        ({**LIGHT, "is_memory_bound_hint": True}, (1.0, 1.0), 6e9 / 1.8e12, "memory"),
        ({"flops_required": 1e12, "bytes_moved": 2e9}, (1.0, 1.0), 0.003205128205128205, "compute"),
        ({"flops_required": 624e9, "precision": "int8"}, (1.0, 1.0), 0.001, "compute"),
        ({"bytes_moved": 2e9, "memory_read_bytes": 2e9}, (1.0, 0.5), 0.004, "memory"),
    ],
)
def test_a_task_lasts_as_the_roofline_says(
    task: dict[str, Any], efficiency: tuple[float, float], seconds: float, bound: str
) -> None:
    ours = platform()
    ours.set_efficiency_factors(*efficiency)
    process = ours.submit_computation_task("gpu0", task)
    assert ours.run() == seconds
    assert (outcome(process).start, outcome(process).end, outcome(process).bound) == (0.0, seconds, bound)


@pytest.mark.parametrize(
    ("operation_type", "compute_s", "memory_s"),
    [
        ("matmul", 0.0125, 0.01 / 0.9),
        ("convolution", 0.01 / 0.6, 0.01 / 0.9),
        ("attention", 0.01 / 0.6, 0.01 / 0.9),
        ("elementwise", 0.04, 0.01 / 0.9),
        ("memory_bound", 0.01, 0.01 / 0.9),
        (None, 0.01, 0.01),
    ],
)
def test_each_type_of_operation_has_its_efficiency(
    operation_type: str | None, compute_s: float, memory_s: float
) -> None:
    task = {"flops_required": 3.12e12, "bytes_moved": 20e9}
    found = outcome_of(platform(), task if operation_type is None else {**task, "operation_type": operation_type})
    assert (found.compute_s, found.memory_s) == pytest.approx((compute_s, memory_s))
    assert found.end == max(found.compute_s, found.memory_s)


def test_the_efficiency_of_a_type_can_be_set_beside_that_of_all() -> None:
    ours, task = platform(), {"flops_required": 3.12e12}
    ours.set_efficiency_factors(mfu=0.5)
    ours.set_efficiency_factors(mfu=0.4, operation_type="convolution")
    assert outcome_of(ours, {**task, "operation_type": "convolution"}).compute_s == pytest.approx(0.05)
    assert outcome_of(ours, task).compute_s == pytest.approx(0.02)
    with pytest.raises(UsageError, match="operation_type"):
        ours.set_efficiency_factors(operation_type="conv")


@pytest.mark.parametrize("level", LEVELS)
def test_layers_have_types_of_their_own_and_a_task_runs_beside_its_layers(level: LevelOfDetail) -> None:
    layers = [{"flops_required": 3.12e12, "operation_type": kind} for kind in ("matmul", "attention")]
    ours = VirtualHardwarePlatform(level).initialize({"compute_devices": [GPU]})
    assert outcome_of(ours, {"layers": layers}).end == pytest.approx(0.01 / 0.8 + 0.01 / 0.6)
    untyped = {"operation_type": "elementwise", "layers": [{"flops_required": 3.12e12}]}
    assert outcome_of(ours, untyped).compute_s == pytest.approx(0.01 / 0.25)
    begin = ours.env.now
    assert outcome_of(ours, {"flops_required": 3.12e12, "layers": layers}).end - begin == pytest.approx(
        0.01 + 0.01 / 0.8 + 0.01 / 0.6
    )


def test_the_shipped_database_agrees_with_the_models_that_are_known() -> None:
    shipped, known = read_models("configs/model_params.json"), read_models(None)
    assert {"llama2-7b", "llama2-70b"} <= set(shipped) & set(known)
    for name in set(shipped) & set(known):
        assert shipped[name].num_layers == known[name].num_layers
        assert shipped[name].parameters == pytest.approx(known[name].parameters, rel=0.01)
        assert shipped[name].flops_per_token == pytest.approx(known[name].flops_per_token, rel=0.01)


def ends_of(ours: VirtualHardwarePlatform, *tasks: dict[str, Any]) -> list[float]:
    """Return when some tasks of one device end that are submitted together."""
    processes = [ours.submit_computation_task("gpu0", task) for task in tasks]
    ours.run()
    return [outcome(process).end for process in processes]


def test_tasks_of_half_the_units_last_twice_as_long_side_by_side() -> None:
    alone = 0.003205128205128205
    for units, ends in ((54, [2 * alone, 2 * alone]), (108, [alone, 2 * alone]), (None, [alone, 2 * alone])):
        ours = platform()
        assert ends_of(ours, *[{**HEAVY, "num_processing_units_requested": units}] * 2) == ends
        assert ours.utilization()["gpu0"] == pytest.approx(1.0)


@pytest.mark.parametrize("read_bytes", [0, 1e6])
def test_tenants_together_compute_no_more_than_the_device(read_bytes: float) -> None:
    one_second = {"flops_required_fp16": 312e12, "memory_read_bytes": read_bytes}
    for tenants in (4, 108):
        task = {**one_second, "num_processing_units_requested": 108 // tenants}
        assert ends_of(platform(), *[task] * tenants) == [float(tenants)] * tenants


def test_the_specification_s_meaning_of_units_is_an_option() -> None:
    ours = VirtualHardwarePlatform(unit_rates="specified").initialize({"compute_devices": [GPU]})
    tasks = [{**task, "num_processing_units_requested": 36} for task in (HEAVY, LIGHT, LIGHT)]
    assert ends_of(ours, *tasks) == [0.003205128205128205, 0.003, 0.003]


def test_memory_bandwidth_is_shared_fairly() -> None:
    light = {**LIGHT, "num_processing_units_requested": 27}
    assert ends_of(platform(), light) == [0.003]
    assert ends_of(platform(), light, light) == [0.006, 0.006]
    # this one asks for a tenth of the bandwidth as long as it computes, and gets it; the others share the rest
    modest = {"flops_required_fp16": 78e12 * 0.01, "memory_read_bytes": 2e9, "num_processing_units_requested": 27}
    assert ends_of(platform(), modest, light, light) == pytest.approx([0.01, 0.006 / 0.9, 0.006 / 0.9])
    ours = platform()
    ours.set_efficiency_factors(mbu=0.8)
    assert ends_of(ours, light, light) == pytest.approx([0.0075, 0.0075])


def test_a_task_that_others_slow_down_is_bound_by_memory() -> None:
    ours = platform()
    task = {"flops_required_fp16": 78e12 * 0.001, "memory_read_bytes": 1.5e9, "num_processing_units_requested": 27}
    alone = outcome_of(ours, task)
    assert (alone.bound, alone.end) == ("compute", 0.001)
    together = [ours.submit_computation_task("gpu0", task) for _ in range(2)]
    ours.run()
    assert [(outcome(one).bound, outcome(one).end) for one in together] == [("memory", pytest.approx(0.0025))] * 2


def outcome_of(ours: VirtualHardwarePlatform, task: dict[str, Any]) -> Any:
    """Return the result of a task that runs alone."""
    process = ours.submit_computation_task("gpu0", task)
    ours.run()
    return outcome(process)


def test_a_transfer_takes_latency_and_bytes_and_two_share_their_link_in_one_direction() -> None:
    sent = {"source_node_id": "client_node_0", "dest_node_id": "framework_entry_0", "data_size_bytes": 125e6}
    ours = platform()
    one = ours.submit_network_transfer_task("client_node_0", "framework_entry_0", 125e6)
    back = ours.submit_network_transfer_task("framework_entry_0", "client_node_0", 125e6)
    assert (ours.run(), outcome(one).end, outcome(back).end) == (0.1001, 0.1001, 0.1001)
    ours = platform()
    ends = [ours.submit_network_transfer_task(**sent) for _ in range(2)]  # type: ignore[arg-type]  # mypy joins the types
    assert ours.run() == 0.2001
    assert [outcome(process).end for process in ends] == [0.2001, 0.2001]
    assert outcome(ends[0]).slowed_by == "client_to_server"
    assert outcome(ends[0]).shared_with == (outcome(ends[1]).task_id,)


def took(level: LevelOfDetail, links: list[dict[str, Any]], *tasks: tuple[Any, ...]) -> float:
    """Return how long some collectives take together."""
    ours = VirtualHardwarePlatform(level).initialize({"network_links": links})
    for task in tasks:
        ours.submit_collective_task(*task)
    return ours.run()


def test_a_link_s_utilization_is_what_it_carried_of_what_it_could() -> None:
    link = {"link_id": "wire", "source_id": "a", "dest_id": "b", "bandwidth_bps": 80e9, "latency_s": 0.25}
    ours = VirtualHardwarePlatform().initialize({"network_links": [link]})
    ours.submit_network_transfer_task("a", "b", 5e9)
    ours.submit_network_transfer_task("a", "b", 10e9)
    ours.submit_network_transfer_task("b", "a", 2.5e9)
    ours.run(until=4.0)
    there, back = (ours.utilization()[f"wire: {way}"] for way in ("a to b", "b to a"))
    assert there == pytest.approx(15e9 / (10e9 * 4))  # a rate of 10 GB/s, for 4 s
    assert back == pytest.approx(2.5e9 / (10e9 * 4))
    ours.run(until=8.0)
    assert ours.utilization()["wire: a to b"] == pytest.approx(15e9 / (10e9 * 8))


@pytest.mark.parametrize("level", LEVELS)
def test_collectives_take_what_rings_and_trees_take(level: LevelOfDetail) -> None:
    names = [f"n{i}" for i in range(8)]
    alone = {op: took(level, RING, (op, names, 1e8)) for op in ("AllReduce", "AllGather", "ReduceScatter")}
    assert alone == {"AllReduce": 0.1414, "AllGather": 0.5607, "ReduceScatter": 0.0707}
    assert took(level, RING, ("all_reduce", ["n0"], 1e8)) == 0.0
    assert took(level, RING, *[("all_reduce", names, 1e8)] * 2) == pytest.approx(2 * 0.14 + 0.0014)
    switch = [{"topology": "star", "name": "switch", "endpoints": names, "bandwidth_bps": 8e9}]
    for op, steps in (("broadcast", 3), ("all_reduce", 6)):  # a binomial tree doubles who has it
        assert took(level, switch, (op, names, 1e9, "tree")) == pytest.approx(steps * 1.0)


def test_concurrent_collectives_rate_each_message_once() -> None:
    names = [f"n{i}" for i in range(8)]
    ours = VirtualHardwarePlatform("high").initialize({"network_links": RING})
    for _ in range(20):
        ours.submit_collective_task("all_reduce", names, 1e8)
    assert ours.run() == pytest.approx(20 * 0.14 + 0.0014)
    assert next(ours._transfers.sharing._order) == (20 + 1) * 8 * 14  # and those over one link together


def test_memory_is_taken_and_given_back_at_once() -> None:
    ours = platform()
    assert ours.allocate_memory("gpu0", 60_000_000_000).value == 60_000_000_000
    with pytest.raises(OutOfMemoryError, match=r"30,000,000,000 bytes do not fit beside 60,000,000,000"):
        ours.allocate_memory("gpu0", 30_000_000_000)
    assert ours.free_memory("gpu0", 60_000_000_000).value == 0
    with pytest.raises(UsageError, match="free what was allocated, once"):
        ours.free_memory("gpu0", 1)
    assert ours.get_device_info("gpu0")["memory_used_bytes"] == 0


def test_an_allocation_can_wait_for_its_turn() -> None:
    ours = platform()
    ours.allocate_memory("gpu0", 60_000_000_000)
    got: list[str] = []

    def waits(name: str, size_bytes: int, priority: float = 0) -> None:
        event = ours.allocate_memory("gpu0", size_bytes, wait=True, priority=priority)
        event.callbacks.append(lambda _: got.append(f"{name} at {ours.env.now:g}"))

    waits("large", 50_000_000_000)
    waits("small", 10_000_000_000)  # it would fit, but it came later
    waits("urgent", 30_000_000_000, priority=-1)
    ours.run(until=1.0)
    assert got == []
    ours.free_memory("gpu0", 20_000_000_000)
    ours.run(until=2.0)
    assert got == ["urgent at 1"]
    ours.free_memory("gpu0", 60_000_000_000)
    ours.run()
    assert got == ["urgent at 1", "large at 2", "small at 2"]
    with pytest.raises(OutOfMemoryError, match=r"90,000,000,000 bytes do not fit in 80,000,000,000; allocate less"):
        ours.allocate_memory("gpu0", 90_000_000_000, wait=True)
    ours.allocate_memory("gpu0", 70_000_000_000, wait=True)
    with pytest.raises(OutOfMemoryError, match="an allocation waits for 70,000,000,000 bytes beside 70,000,000,000"):
        ours.run()


@pytest.mark.parametrize(("backfill", "order"), [(False, [0, 1, 2]), (True, [0, 2, 1])])
def test_small_tasks_pass_a_blocked_one_only_where_they_may(backfill: bool, order: list[int]) -> None:
    ours = VirtualHardwarePlatform(backfill=backfill).initialize({"compute_devices": [GPU]})
    tasks = [{**HEAVY, "num_processing_units_requested": units} for units in (81, 54, 27)]
    processes = [ours.submit_computation_task("gpu0", task) for task in tasks]
    ours.run()
    assert sorted(range(3), key=lambda place: (outcome(processes[place]).start, place)) == order


def test_tasks_of_smaller_priority_are_served_first() -> None:
    ours = platform()
    ends = ends_of(ours, *({**HEAVY, "priority": priority} for priority in (3, 2, 1)))
    assert ends[0] < ends[2] < ends[1]  # the first found the device free


def test_tasks_hold_their_memory_while_they_are_there() -> None:
    ours = platform()
    task = {**HEAVY, "memory_occupied_bytes": 50_000_000_000}
    first = ours.submit_computation_task("gpu0", task)
    with pytest.raises(OutOfMemoryError, match="do not fit beside 50,000,000,000"):
        ours.submit_computation_task("gpu0", task)
    second = ours.submit_computation_task("gpu0", {**task, "wait": True})
    with pytest.raises(UsageError, match="1 bytes are freed, but 0 are allocated"):
        ours.free_memory("gpu0", 1)
    ours.run()
    assert outcome(second).start == outcome(first).end
    assert ours.get_device_info("gpu0")["memory_used_bytes"] == 0


def test_a_model_occupies_memory_once_for_all_its_tasks_and_is_refused_where_it_does_not_fit() -> None:
    database = {"mine": {"parameters": 8e9, "flops_per_token": 16e9}}
    for capacity in (8_000_000_000, 16_000_000_000):
        device = {**GPU, "memory_capacity_bytes": capacity}
        ours = VirtualHardwarePlatform().initialize({"compute_devices": [device]}, model_chars_db=database)
        if capacity < 16e9:
            with pytest.raises(OutOfMemoryError, match="16,000,000,000 bytes do not fit in 8,000,000,000"):
                ours.submit_model_task("gpu0", "mine", 1)
            continue
        for _ in range(2):
            ours.submit_model_task("gpu0", "mine", 512, num_processing_units_requested=54)
        assert ours.get_device_info("gpu0")["memory_used_bytes"] == capacity
        ours.run()
        assert ours.get_device_info("gpu0")["memory_used_bytes"] == 0


def test_a_model_task_prices_each_layer_or_the_whole() -> None:
    database = {"mine": {"parameters": 1e9, "flops_per_token": 2e9, "num_layers": 4}}
    ends = []
    for level in LEVELS:
        ours = VirtualHardwarePlatform(level).initialize({"compute_devices": [GPU]}, model_chars_db=database)
        process = ours.submit_model_task("gpu0", "mine", 512)
        ends.append(ours.run())
        assert outcome(process).compute_s == pytest.approx(512 * 2e9 / 312e12)
    assert ends[0] == pytest.approx(ends[1]) == pytest.approx(512 * 2e9 / 312e12)


def test_the_specified_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump({"hardware_profile": {"compute_devices": [GPU], "network_links": [WIRE]}}))
    ours = VirtualHardwarePlatform().initialize(path)
    assert ours.get_device_info("gpu0")["processing_units"] == 108
    assert ours.profile == HardwareResourceProfile([GPU], [], [WIRE])  # type: ignore[list-item]  # mappings become values


def test_a_file_of_ones_own_hardware_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("""
hardware_profile:
  compute_devices:
    - {device_id: node, device_type: CPU, peak_tflops: {fp32: 2}, memory_capacity_bytes: 64_000_000, memory_gbps: 50}
  network_links:
    - {link_id: wire, source_id: node, dest_id: other, bandwidth_bps: 80_000_000_000, latency_s: 0.002}
""")
    ours = VirtualHardwarePlatform().initialize(path)
    computed = ours.submit_computation_task("node", {"flops_required_fp32": 1e12, "memory_read_bytes": 30e9})
    moved = ours.submit_network_transfer_task("node", "other", 5e9)
    ours.run()
    assert (outcome(computed).end, outcome(computed).bound) == (pytest.approx(0.6), "memory")
    assert outcome(moved).end == pytest.approx(0.502)


def test_a_process_of_ones_own_waits_for_tasks_and_takes_memory_of_no_device() -> None:
    env, seen = Environment(), []
    host = {"memory_id": "host", "capacity_bytes": 1000}
    ours = VirtualHardwarePlatform().initialize({"compute_devices": [GPU], "memory_devices": [host]}, env)

    def user() -> Any:
        yield env.timeout(0.5)
        task = yield ours.submit_computation_task("gpu0", {"flops_required_int8": 624e11})
        seen.append((env.now, task.end))

    env.process(user())
    env.run()
    assert seen == [(env.now, env.now)]
    assert env.now == pytest.approx(0.6)
    ours.allocate_memory("host", 900)
    with pytest.raises(OutOfMemoryError, match="host: 200 bytes do not fit beside 900 in 1,000"):
        ours.allocate_memory("host", 200)


MISTAKES: dict[str, tuple[Callable[[VirtualHardwarePlatform], Any], str]] = {
    "an endless sum": (
        lambda p: p.submit_collective_task("AllReduce", ["gpu0"], math.inf),
        "number of bytes >= 0, got inf",
    ),
    "a collective like none": (
        lambda p: p.submit_collective_task("Gossip", ["gpu0"], 1),
        "there is no collective 'Gossip'; use one of all_reduce",
    ),
    "an unknown device": (lambda p: p.submit_computation_task("gpu1", HEAVY), 'did you mean "gpu0"'),
    "an unknown endpoint": (lambda p: p.submit_network_transfer_task("client_node_1", "gpu0", 1), "client_node_0"),
    "no way": (lambda p: p.submit_network_transfer_task("gpu0", "client_node_0", 1), "no links lead from gpu0"),
    "a source twice": (
        lambda p: p.submit_network_transfer_task("gpu0", "gpu0", 1, source_node_id="gpu0"),
        "needs source",
    ),
    "a size below zero": (lambda p: p.submit_network_transfer_task("gpu0", "gpu0", -1), "number of bytes >= 0"),
    "a misspelt key": (lambda p: p.submit_computation_task("gpu0", {"memory_reads": 1}), "memory_read_bytes"),
    "a precision without a rate": (
        lambda p: p.submit_computation_task("gpu0", {"flops_required_fp8": 1}),
        "it has fp16, int8",
    ),
    "too many units": (
        lambda p: p.submit_computation_task("gpu0", {"num_processing_units_requested": 109}),
        "asks for 109 processing units",
    ),
    "an unknown type": (lambda p: p.submit_computation_task("gpu0", {"operation_type": "matmull"}), "matmul"),
    "an efficiency above one": (lambda p: p.set_efficiency_factors(mfu=1.5), r"\(0, 1\]"),
    "an unknown model": (lambda p: p.submit_model_task("gpu0", "lama3-8b", 1), "llama3-8b"),
    "an unknown collective": (lambda p: p.submit_collective_task("gather_all", ["gpu0"], 1), "all_gather"),
    "a tree where there is none": (
        lambda p: p.submit_collective_task("all_gather", ["gpu0", "client_node_0"], 1, algorithm="tree"),
        'use "ring"',
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_at_once(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(MinitrainError, match=message):
        make(platform())


HUGE_NODES = {"topology": "nodes", "num_nodes": 10**6, "devices_per_node": 8}
HUGE_NODES |= dict.fromkeys(("nvlink_bps", "pcie_bps", "nic_bps"), 10**9)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({"compute_device": []}, "compute_devices"),
        ({}, "a hardware profile must list something under compute_devices, memory_devices, network_links; found {}"),
        ({"compute_devices": []}, "a hardware profile must list something"),
        ({"compute_devices": [GPU, GPU]}, "two devices are called"),
        ({"compute_devices": [{**GPU, "memory_gbps": 0}]}, "memory_gbps must be a number above 0"),
        ({"compute_devices": [{"device_id": "x"}]}, "peak_tflops, memory_capacity_bytes, memory_gbps missing"),
        ({"network_links": [{**WIRE, "bandwidth_bps": -1}]}, "bandwidth_bps must be a number above 0"),
        ({"network_links": [{**WIRE, "bandwidth_bps": math.inf}]}, "bandwidth_bps must be a number above 0, got inf"),
        ({"network_links": [WIRE, WIRE]}, "two links are called"),
        ({"network_links": [{"topology": "tours", "dims": [2]}]}, 'did you mean "torus"'),
        ({"network_links": [{"topology": "torus", "dims": [2]}]}, "lacks bandwidth_bps"),
        (
            {"network_links": [{"topology": "torus", "dims": [10**30, 2], "bandwidth_bps": 1e9}]},
            "the product of dims must be at most 131072, got 2000",
        ),
        ({"network_links": [HUGE_NODES]}, "num_nodes x devices_per_node must be at most 131072, got 8000000"),
    ],
)
def test_a_wrong_profile_is_one_clear_error(profile: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        VirtualHardwarePlatform().initialize(profile)


def test_a_platform_that_was_not_set_up_says_so() -> None:
    with pytest.raises(UsageError, match="call initialize"):
        VirtualHardwarePlatform().submit_computation_task("gpu0", HEAVY)
