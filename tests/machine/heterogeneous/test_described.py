"""What is described decides: datatypes, capabilities and relationships place operations and price moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.machine.heterogeneous import (
    DataMovementOptimizer,
    EnhancedHardwareTaxonomy,
    EnhancedTestTask,
    EnhancedWorkloadProfile,
    HardwareAwareWorkloadManager,
    HardwareClass,
    HeterogeneousScheduler,
    MultiDeviceOrchestrator,
    PrecisionType,
    WorkloadOperation,
    WorkloadProfile,
    profiles_of,
)
from tests.machine.heterogeneous.test_orchestrator import layer
from tests.machine.heterogeneous.workload_examples import branches, priced_branches

SIZE = 128 * 2**20
H200S = profiles_of(["h200_141g_nvl8"] * 2)
A100, T4 = profiles_of(["a100_80g", "t4"])


def manager(taxonomy: EnhancedHardwareTaxonomy | None = None) -> HardwareAwareWorkloadManager:
    return HardwareAwareWorkloadManager(layer(), EnhancedHardwareTaxonomy() if taxonomy is None else taxonomy)


def test_devices_of_one_node_do_not_pass_the_host_where_their_network_is_quicker() -> None:
    movement = DataMovementOptimizer()
    assert movement.way(SIZE, H200S[0], H200S[1]).seconds == pytest.approx(0.378e-3, rel=0.01)
    assert movement.way(SIZE, H200S[0], None).seconds == pytest.approx(2.41e-3, rel=0.01)
    through_host = movement.way(SIZE, H200S[0], A100)
    assert (through_host.seconds, through_host.peer_bytes_per_s) == (movement.way(SIZE, A100, None).seconds, None)
    t4s = profiles_of(["t4"] * 2)  # whose network is slower than their host's memory
    assert movement.way(SIZE, *t4s) == movement.way(SIZE, t4s[0], None)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("keys", [("a100_80g", "t4"), ("a100_80g", HardwareClass.GPU), (HardwareClass.GPU, "t4")])
def test_relationships_price_moves(keys: tuple[Any, Any], turned: bool) -> None:
    source, target = keys[::-1] if turned else keys
    movement = DataMovementOptimizer(EnhancedHardwareTaxonomy())
    before = movement.way(SIZE, A100, T4).seconds
    movement.taxonomy.define_relationship(source, target, "peer_of", bytes_per_s=100e9)
    peers = movement.way(SIZE, T4, A100)
    assert (peers.seconds, peers.peer_bytes_per_s) == (SIZE / 100e9, 100e9)
    assert peers.seconds < before
    movement.taxonomy.define_relationship(source, target, "shares_memory_with")
    assert movement.way(SIZE, A100, T4).seconds == 0


@pytest.mark.parametrize("host", ["host", HardwareClass.CPU])
def test_a_host_s_link_is_as_fast_as_is_said(host: Any) -> None:
    movement = DataMovementOptimizer(EnhancedHardwareTaxonomy())
    movement.taxonomy.define_relationship(host, "t4", "hosts", bytes_per_s=1e9)
    assert movement.way(SIZE, None, T4).seconds == movement.way(SIZE, A100, T4).seconds == SIZE / 1e9
    assert movement.way(SIZE, None, A100) == DataMovementOptimizer().way(SIZE, None, A100)


def spread(taxonomy: EnhancedHardwareTaxonomy) -> Any:
    """Return a run in which a T4 sends a large array to an A100."""
    x = np.ones((1024, 1024), np.float32)
    operations = tuple(WorkloadOperation(name, "tanh", {"x": read}) for name, read in (("a", "x"), ("b", "a")))
    workload = WorkloadProfile("spread", operations, {"x": x})
    return MultiDeviceOrchestrator(manager(taxonomy)).execute_multi_device_workload(workload, {"a": T4, "b": A100})


def test_relationships_reach_the_orchestrator_s_timeline() -> None:
    taxonomy = EnhancedHardwareTaxonomy()
    before = spread(taxonomy)
    taxonomy.define_relationship("a100_80g", "t4", "peer_of", bytes_per_s=100e9)
    peers = spread(taxonomy)
    taxonomy.define_relationship("a100_80g", "t4", "shares_memory_with")
    shared = spread(taxonomy)
    saved = DataMovementOptimizer().way(4 * 2**20, T4, A100).seconds
    assert peers.seconds == pytest.approx(before.seconds - saved + 4 * 2**20 / 100e9)
    assert shared.seconds == pytest.approx(before.seconds - saved)
    for run in (peers, shared):
        np.testing.assert_array_equal(run.outputs["b"], before.outputs["b"])


def test_a_device_without_a_datatype_is_not_chosen() -> None:
    halves = priced_branches().in_precision(PrecisionType.BF16)
    assert set(manager().decompose_workload(halves, ["t4", "a100_80g"])["components"]) == {"a100_80g"}
    assert manager().share_samples(halves, ["t4", "a100_80g"])["t4"] == 0
    assert EnhancedWorkloadProfile.of(halves).calculate_hardware_compatibility(T4) == 0
    with pytest.raises(mt.UsageError, match=r"no device of t4 computes matmul.* in bfloat16; give one that"):
        manager().decompose_workload(halves, ["t4"])
    with pytest.raises(mt.UsageError, match="t4: it does not compute bfloat16"):
        HeterogeneousScheduler(["t4"]).schedule([EnhancedTestTask("task", halves)])


def test_what_a_workload_requires_filters_devices() -> None:
    taxonomy = EnhancedHardwareTaxonomy()
    taxonomy.register_capability("ecc", {})
    taxonomy.assign_capability(HardwareClass.GPU, "ecc", strength=0.5)
    workload = branches(requires={"ecc": 0.5, "tensor_cores": 1.0})
    devices = ["t4", "a100_80g", "tpu_v5p"]
    assert [device.name for device in manager(taxonomy).able(workload, devices)] == ["t4", "a100_80g"]
    taxonomy.assign_capability("t4", "ecc", strength=0.4)
    assert set(manager(taxonomy).decompose_workload(workload, devices)["components"]) == {"a100_80g"}
    assert list(manager(taxonomy).share_samples(workload, devices)) == ["a100_80g"]
    with pytest.raises(mt.UsageError, match="no device has what branches requires: t4 lacks ecc; tpu_v5p lacks ecc"):
        manager(taxonomy).decompose_workload(workload, ["t4", "tpu_v5p"])
