"""The workload manager: shares, batch sizes, precisions, memory and fusion, by the prices of devices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import minitrain as mt
from minitrain.machine.heterogeneous import (
    ArraySpec,
    EnhancedHardwareTaxonomy,
    FusionRule,
    HardwareAwareWorkloadManager,
    HardwareCapabilityProfile,
    HardwareClass,
    MemoryPlan,
    PrecisionType,
    WorkloadOperation,
    WorkloadProfile,
    profiles_of,
    split_by_samples,
    standard_layer,
)
from minitrain.machine.heterogeneous.workload_manager import ListScheduler
from tests.machine.heterogeneous.workload_examples import branches, priced_branches

DEVICES = profiles_of(["h100_80g_nvl8", "a100_80g", "t4"])
H100, A100, T4 = DEVICES
ESP32 = HardwareCapabilityProfile.from_device("esp32")


@pytest.fixture(scope="module")
def manager() -> HardwareAwareWorkloadManager:
    return HardwareAwareWorkloadManager(standard_layer(), EnhancedHardwareTaxonomy())


def test_branches_are_divided_and_quicker_than_on_one_device(manager: HardwareAwareWorkloadManager) -> None:
    workload = priced_branches(size=8192, batch=8192)
    found = manager.decompose_workload(workload, ["h100_80g_nvl8", "h100_80g_nvl8"])
    alone = manager.decompose_workload(workload, ["h100_80g_nvl8"])
    assert sorted(map(len, found["components"].values())) == [6, 9]
    assert found["seconds"] < 0.75 * alone["seconds"]
    assert set(found["device_mapping"]) == set(workload.by_name)
    with pytest.raises(mt.UsageError, match=r"no device of h100_80g_nvl8, a100_80g, t4 computes matmul .* in float64"):
        manager.decompose_workload(branches(count=1, datatype="float64"), DEVICES)


def test_a_chain_and_what_takes_longer_to_send_than_to_compute_stay(manager: HardwareAwareWorkloadManager) -> None:
    for workload, devices in ((priced_branches(), ["h100_80g_nvl8", "t4"]), (priced_branches(count=1), DEVICES)):
        assert list(manager.decompose_workload(workload, devices)["components"]) == ["h100_80g_nvl8"]


@pytest.mark.few(1)
@pytest.mark.parametrize(("size", "batch"), [(64, 32), (1024, 1024), (4096, 512)])
def test_a_decomposition_is_never_slower_than_one_device(
    manager: HardwareAwareWorkloadManager, size: int, batch: int
) -> None:
    workload = priced_branches(count=2, size=size, batch=batch)
    alone = [manager.decompose_workload(workload, [device])["seconds"] for device in DEVICES]
    assert manager.decompose_workload(workload, DEVICES)["seconds"] <= min(alone)


def test_the_list_schedule_is_near_the_best_of_all_mappings() -> None:
    workload = priced_branches(count=2, batch=2048)
    scheduler = ListScheduler(workload, [H100, A100])
    order = scheduler.by_urgency()
    mappings = product([[H100.name], [A100.name]], repeat=len(order))
    best = min(scheduler.placed(dict(zip(order, devices, strict=True))).seconds for devices in mappings)
    assert best <= scheduler.schedule().seconds <= 1.03 * best


def test_equal_devices_get_equal_shares_and_a_slow_one_few_or_none(manager: HardwareAwareWorkloadManager) -> None:
    workload = priced_branches(count=1, size=2048, batch=64)
    equal = manager.share_samples(workload, ["a100_80g"] * 4)
    assert set(equal.values()) == {16}
    mixed = manager.share_samples(priced_branches(count=1, batch=1024), ["h100_80g_nvl8", "a100_80g", "xeon_8480plus"])
    assert sum(mixed.values()) == 1024
    assert mixed["h100_80g_nvl8"] > mixed["a100_80g"] > mixed["xeon_8480plus"]


def test_a_batch_of_the_size_that_is_chosen_is_nearly_as_good_as_any(manager: HardwareAwareWorkloadManager) -> None:
    workload = priced_branches(count=1, size=1024)
    chosen = manager.optimize_batch_size(workload, A100, largest=2**14)
    throughput = {
        size: size / sum(A100.simulator.predict(cost) for cost in workload.at_batch(size).costs.values())
        for size in (chosen // 2, chosen, 2**14)
    }
    assert throughput[chosen // 2] < 0.95 * throughput[2**14] <= throughput[chosen] * 1.0001


def test_memory_bounds_the_batch_and_a_sample_that_does_not_fit_is_refused(
    manager: HardwareAwareWorkloadManager,
) -> None:
    small = priced_branches(count=1, size=64)
    assert manager.optimize_batch_size(small, ESP32) < manager.optimize_batch_size(small, A100)
    with pytest.raises(
        mt.UsageError, match=r"one sample of branches must fit into esp32, and needs [\d,]+ bytes of its"
    ):
        manager.optimize_batch_size(priced_branches(), ESP32)


def test_the_quickest_precision_that_device_and_workload_have_is_chosen(manager: HardwareAwareWorkloadManager) -> None:
    allowed = (PrecisionType.FP32, PrecisionType.BF16, PrecisionType.FP8)
    workload = priced_branches(count=1, precisions=allowed)
    assert manager.select_precision(workload, H100) is PrecisionType.FP8
    assert manager.select_precision(workload, A100) is PrecisionType.BF16
    assert manager.select_precision(workload, T4) is PrecisionType.FP32
    only = priced_branches(count=1, precisions=(PrecisionType.FP8,))
    with pytest.raises(mt.UsageError, match="may be computed in float8, and t4 computes float16, float32"):
        manager.select_precision(only, T4)


def test_memory_plans_are_tried_in_order(manager: HardwareAwareWorkloadManager) -> None:
    workload = priced_branches(count=4, size=256, batch=2**16)
    everything = sum(spec.num_bytes for spec in workload.specs.values())
    assert manager.optimize_memory_footprint(workload, A100) == MemoryPlan("keep_all", everything)

    def within(share: float) -> MemoryPlan:
        from dataclasses import replace

        room = replace(A100.device, mem1=replace(A100.device.mem1, GiB=share * everything / 2**30))
        return manager.optimize_memory_footprint(workload, HardwareCapabilityProfile("small", room))

    freed = within(0.6)
    assert freed.strategy == "free_after_last_use"
    assert freed.freed_after is not None
    assert freed.freed_after["act0"] == ("up0",)
    cut = within(0.1)
    assert (cut.strategy, cut.num_microbatches > 1) == ("microbatches", True)
    with pytest.raises(mt.UsageError, match=r"no memory strategy .* brings branches into the"):
        manager.optimize_memory_footprint(workload, ESP32)


def test_what_is_freed_leaves_room_that_the_peak_counts(manager: HardwareAwareWorkloadManager) -> None:
    chain = WorkloadProfile(
        "chain",
        tuple(WorkloadOperation(f"t{step}", "tanh", {"x": f"t{step - 1}" if step else "x"}) for step in range(5)),
        {"x": ArraySpec((1000,))},
    )
    plan = manager.memory_optimization_strategies["free_after_last_use"](chain, 0)
    assert plan is not None
    assert plan.peak_bytes == 2 * 4000


def test_elementwise_operations_fuse_behind_a_product_on_a_gpu(manager: HardwareAwareWorkloadManager) -> None:
    workload = branches(count=1, size=64, batch=32)
    (fused,) = manager.fuse_operations(workload, A100)
    between = workload.specs["up0"].num_bytes
    assert (fused.operations, fused.saved_bytes) == (("up0", "act0"), 2 * between)
    apart = workload.costs["up0"].bytes + workload.costs["act0"].bytes
    assert fused.cost.bytes == apart - 2 * between
    assert fused.cost.flops == workload.costs["up0"].flops + workload.costs["act0"].flops
    assert manager.fuse_operations(workload, HardwareCapabilityProfile.from_device("xeon_8480plus")) == []


def test_a_result_that_somebody_else_reads_is_not_fused_away(manager: HardwareAwareWorkloadManager) -> None:
    operations = (
        WorkloadOperation("p", "matmul", {"x": "a", "y": "a"}),
        WorkloadOperation("t", "tanh", {"x": "p"}),
        WorkloadOperation("s", "add", {"x": "p", "y": "t"}),
    )
    workload = WorkloadProfile("shared", operations, {"a": ArraySpec((8, 8))})
    assert [fusion.operations for fusion in manager.fuse_operations(workload, A100)] == [("t", "s")]
    wanted = WorkloadProfile("wanted", operations, {"a": ArraySpec((8, 8))}, outputs=("t", "s"))
    assert manager.fuse_operations(wanted, A100) == []


def test_an_operation_is_fused_into_one_chain_at_most_and_waits_for_nothing_new() -> None:
    manager = HardwareAwareWorkloadManager(standard_layer(), EnhancedHardwareTaxonomy())
    operations = (
        WorkloadOperation("p", "matmul", {"x": "a", "y": "a"}),
        WorkloadOperation("t", "tanh", {"x": "p"}),
        WorkloadOperation("residual", "add", {"x": "t", "y": "a"}),
        WorkloadOperation("other", "sin", {"x": "a"}),
        WorkloadOperation("join", "add", {"x": "residual", "y": "other"}),
    )
    workload = WorkloadProfile("chains", operations, {"a": ArraySpec((8, 8))})
    chains = [fusion.operations for fusion in manager.fuse_operations(workload, A100)]
    assert chains == [("p", "t", "residual")]  # what joins waits for the other


@pytest.mark.parametrize("names", [["a100_80g"], ["xeon_8480plus"], ["a100_80g", "a100_80g"]])
def test_schedules_price_what_is_fused_as_one(names: list[str]) -> None:
    """One branch of operations: what a schedule saves is the price of its parts less that of what is fused."""
    manager = HardwareAwareWorkloadManager(standard_layer(), EnhancedHardwareTaxonomy())
    manager.taxonomy.define_relationship("host", HardwareClass.GPU, "shares_memory_with")  # so that nothing moves
    workload, device = priced_branches(count=1), HardwareCapabilityProfile.from_device(names[0])
    fused = manager.decompose_workload(workload, names)
    chains = manager.fuse_operations(workload, device)
    manager.operation_fusion_rules.clear()
    apart = manager.decompose_workload(workload, names)
    predict = device.simulator.predict
    saved = sum(sum(predict(workload.costs[n]) for n in each.operations) - predict(each.cost) for each in chains)
    assert bool(saved) is (names != ["xeon_8480plus"])  # whose rules have no products
    assert apart["seconds"] - fused["seconds"] == pytest.approx(saved)
    assert len({device.name for device in fused["device_mapping"].values()}) == 1


def test_a_rule_of_ones_own_comes_first() -> None:
    manager = HardwareAwareWorkloadManager(standard_layer(), EnhancedHardwareTaxonomy())
    manager.register_fusion_rule(FusionRule("mlp", ("matmul", "gelu", "matmul"), frozenset({HardwareClass.CPU})))
    xeon = HardwareCapabilityProfile.from_device("xeon_8480plus")
    assert [each.operations for each in manager.fuse_operations(branches(count=1), xeon)] == [("up0", "act0", "down0")]
    with pytest.raises(mt.UsageError, match="fusion rule 'one' needs two kinds of operation or more"):
        FusionRule("one", ("matmul",))
    with pytest.raises(mt.UsageError, match="no operation 'matmull'"):
        FusionRule("two", ("matmull", "*"))


@pytest.mark.parametrize(
    ("op_type", "inputs", "options"),
    [
        ("mean", {"x": "x"}, {"axis": 0}),
        ("sum", {"x": "x"}, {}),
        ("softmax", {"x": "x"}, {"axis": 0}),
        ("matmul", {"x": "w", "y": "x"}, {}),
        ("matmul", {"y": "x", "x": "w"}, {}),
        ("swapaxes", {"x": "x"}, {"axis1": 0, "axis2": 1}),
        ("reshape", {"x": "x"}, {"shape": (2, -1)}),
        ("concatenate", {"arrays": ["x", "x"]}, {"axis": 0}),
        ("take", {"x": "x"}, {"index": 0}),
        ("add", {"x": "x", "y": "w"}, {}),
    ],
)
def test_an_operation_that_mixes_samples_is_not_cut(
    op_type: str, inputs: dict[str, str], options: dict[str, int]
) -> None:
    operation = WorkloadOperation("mixed", op_type, inputs, options)
    workload = WorkloadProfile("wrong", (operation,), {"x": np.ones((4, 4)), "w": np.ones((4, 4))}, batch_inputs=("x",))
    with pytest.raises(mt.UsageError, match=rf"wrong cannot be cut by samples, since mixed \({op_type}\) mixes"):
        split_by_samples(workload, {"a100_80g": 2, "t4": 2}, [A100, T4])
    with pytest.raises(mt.UsageError, match=r"shares must add up to the batch of wrong \(4\).* got 3"):
        split_by_samples(workload, {"a100_80g": 3}, [A100])


def test_shares_beat_equal_ones_and_those_by_peak_on_a_mixed_cluster(manager: HardwareAwareWorkloadManager) -> None:
    devices = profiles_of(
        ["h100_80g_nvl8"] * 4 + ["a100_80g"] * 4 + ["l40s_48g_pcie8"] * 8 + ["tpu_v5p", "xeon_8480plus"]
    )
    layers = [WorkloadOperation(f"x{layer + 1}", "matmul", {"x": f"x{layer}", "y": "w"}) for layer in range(8)]
    inputs = {"x0": ArraySpec((1024, 1024, 4096), "float16"), "w": ArraySpec((4096, 4096), "float16")}
    workload = WorkloadProfile("layers", tuple(layers), inputs, batch_inputs=("x0",))

    def seconds(device: HardwareCapabilityProfile, samples: int) -> float:
        costs = workload.at_batch(max(1, samples)).costs.values()
        return sum(device.simulator.predict(cost) for cost in costs) if samples else 0.0

    def slowest(shares: list[int]) -> float:
        return max(seconds(device, share) for device, share in zip(devices, shares, strict=True))

    shares = list(manager.share_samples(workload, devices).values())
    peaks = [device.peak_flop_per_s["float16"] for device in devices]
    equal = [
        61 if device.hardware_class is not HardwareClass.CPU else 0 for device in devices
    ]  # 1,024 / 17, rounded up
    assert sum(shares) == 1024
    assert slowest(shares) < 0.7 * slowest(equal)
    assert slowest(shares) < slowest([round(1024 * peak / sum(peaks)) for peak in peaks])
    alone = sum(1024 / seconds(device, 1024) for device in devices)
    assert 1024 / slowest(shares) > 0.95 * alone

    def idle(shares: list[int]) -> float:
        busy = sum(seconds(device, share) for device, share in zip(devices, shares, strict=True))
        return 1 - busy / slowest(shares) / len(devices)

    assert idle(shares) < 0.75 * idle(equal)


def test_each_kind_of_device_that_joins_adds_its_speed(manager: HardwareAwareWorkloadManager) -> None:
    kinds = profiles_of(["t4", "a100_80g", "tpu_v5p", "l40s_48g_pcie8", "mi300x_192g_8", "h100_80g_nvl8"])
    inputs = {"x": ArraySpec((2048, 512, 2048), "float16"), "w": ArraySpec((2048, 2048), "float16")}
    product = (WorkloadOperation("y", "matmul", {"x": "x", "y": "w"}),)
    workload = WorkloadProfile("layer", product, inputs, batch_inputs=("x",))

    def rate(device: HardwareCapabilityProfile, samples: int) -> float:
        return samples / device.simulator.predict(workload.at_batch(samples).costs["y"])

    before = 0.0
    for count in range(1, len(kinds) + 1):
        shares = {name: share for name, share in manager.share_samples(workload, kinds[:count]).items() if share}
        speed = 2048 / max(
            share / rate(next(k for k in kinds if k.name == name), share) for name, share in shares.items()
        )
        assert speed > 0.9 * sum(rate(device, 2048) for device in kinds[:count])
        assert speed > before
        before = speed
