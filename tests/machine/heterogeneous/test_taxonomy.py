"""The taxonomy: inheritance over the hierarchy, what configs state, and the mistakes that it refuses."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.machine.devices import matmul
from minitrain.machine.heterogeneous import (
    EnhancedHardwareTaxonomy,
    HardwareCapabilityProfile,
    HardwareClass,
    PrecisionType,
    profiles_of,
)

CPU, GPU, TPU, ASIC, NPU = (HardwareClass(name) for name in ("cpu", "gpu", "tpu", "asic", "npu"))


def taxonomy_with(*capabilities: str) -> EnhancedHardwareTaxonomy:
    taxonomy = EnhancedHardwareTaxonomy()
    for name in capabilities:
        taxonomy.register_capability(name, {"unit": "matrix"})
    return taxonomy


def test_of_several_ways_the_strongest_wins_and_what_a_class_has_itself_beats_them() -> None:
    taxonomy = taxonomy_with("dense")
    taxonomy.assign_capability(ASIC, "dense")
    for parent, child, factor in ((ASIC, TPU, 0.9), (TPU, NPU, 0.9), (ASIC, GPU, 0.5), (GPU, NPU, 1.0)):
        taxonomy.define_hardware_hierarchy(parent, child, factor)
    assert taxonomy.capabilities_of_class(NPU)["dense"]["strength"] == pytest.approx(0.81)
    taxonomy.assign_capability(NPU, "dense", strength=0.1)
    assert taxonomy.capabilities_of_class(NPU)["dense"]["strength"] == 0.1


@given(st.permutations(list(HardwareClass)), st.lists(st.floats(0.1, 1), min_size=5, max_size=5))
def test_a_chain_of_any_order_hands_on_the_product_of_its_factors(
    order: list[HardwareClass], factors: list[float]
) -> None:
    taxonomy = taxonomy_with("dense")
    taxonomy.assign_capability(order[0], "dense")
    for (parent, child), factor in zip(itertools.pairwise(order), factors, strict=True):
        taxonomy.define_hardware_hierarchy(parent, child, factor)
    product = 1.0
    for child, factor in zip(order[1:], factors, strict=True):
        product *= factor
        found = taxonomy.capabilities_of_class(child)["dense"]
        expected = {"unit": "matrix", "strength": pytest.approx(product), "source": order[0], "inherited": True}
        assert found == expected


def test_a_circle_of_classes_is_refused_with_its_way() -> None:
    taxonomy = taxonomy_with()
    taxonomy.define_hardware_hierarchy(CPU, GPU)
    taxonomy.define_hardware_hierarchy(GPU, TPU)
    with pytest.raises(mt.UsageError, match=r"circle, and cpu below tpu would close cpu -> gpu -> tpu -> cpu"):
        taxonomy.define_hardware_hierarchy(TPU, CPU)
    with pytest.raises(mt.UsageError, match="circle"):
        taxonomy.define_hardware_hierarchy(CPU, CPU)


@pytest.mark.parametrize("factor", [0, -0.5, 1.5, True, "half"])
def test_a_factor_is_a_share(factor: float) -> None:
    with pytest.raises(mt.UsageError, match=r"inheritance_factor is a share in \(0, 1\], got"):
        taxonomy_with().define_hardware_hierarchy(CPU, GPU, factor)


def test_what_is_registered_is_told_of_every_device_that_has_it() -> None:
    taxonomy = EnhancedHardwareTaxonomy()
    for name, cores in (("wide", 8), ("deep", 2)):
        taxonomy.register_capability(name, {"cores": cores})
    taxonomy.assign_capability(GPU, "wide")
    first, second = profiles_of(["t4", "t4"])
    taxonomy.assign_capability(second.name, "deep", strength=0.5)
    told = [
        {name: (each["cores"], each["strength"]) for name, each in found.items() if "cores" in each}
        for found in map(taxonomy.get_inherited_capabilities, (first, second))
    ]
    assert told == [{"wide": (8, 1.0)}, {"wide": (8, 1.0), "deep": (2, 0.5)}]


def test_a_capability_must_be_registered_before_somebody_has_it() -> None:
    with pytest.raises(mt.UsageError, match='no capability "tensor_core'.replace('"', "'")):
        taxonomy_with("tensor_cores").assign_capability(GPU, "tensor_core")
    with pytest.raises(mt.UsageError, match="needs a name and a mapping of properties"):
        taxonomy_with().register_capability("", {})


def test_what_a_config_states_is_a_devices_own() -> None:
    taxonomy = taxonomy_with("async_copies")
    taxonomy.assign_capability(GPU, "async_copies", 0.5)
    a100 = HardwareCapabilityProfile.from_device("a100_80g", name="a100-0")
    taxonomy.discover_capabilities(a100)
    found = taxonomy.get_inherited_capabilities(a100)
    assert found["precision:float16"]["peak_flop_per_s"] == 312e12
    assert found["precision:float16"]["source"] == "a100-0"
    assert (found["async_copies"]["strength"], found["async_copies"]["source"]) == (0.5, GPU)
    assert found["cache:2"]["capacity_bytes"] == 40 * 2**20
    assert taxonomy.profiles_of_class("gpu") == [a100]
    with pytest.raises(mt.UsageError, match="no class of hardware 'gpus'; did you mean \"gpu\""):
        taxonomy.profiles_of_class("gpus")


def test_two_devices_of_one_name_are_refused() -> None:
    taxonomy = taxonomy_with()
    taxonomy.register_profile(HardwareCapabilityProfile.from_device("t4", name="gpu0"))
    taxonomy.register_profile(HardwareCapabilityProfile.from_device("t4", name="gpu0"))  # the same one
    with pytest.raises(mt.UsageError, match="another device is registered as 'gpu0'"):
        taxonomy.register_profile(HardwareCapabilityProfile.from_device("a100_80g", name="gpu0"))


def test_relationships_are_found_from_both_sides() -> None:
    taxonomy = taxonomy_with()
    hosts = taxonomy.define_relationship(CPU, GPU, "hosts", bytes_per_s=64e9)
    taxonomy.define_relationship(GPU, CPU, "shares_memory_with")
    assert taxonomy.relationships_of(GPU, "hosts") == [hosts]
    assert len(taxonomy.relationships_of(CPU)) == 2
    assert hosts.properties == {"bytes_per_s": 64e9}


@pytest.mark.parametrize("config", ["a100_80g", "tpu_v5p", "xeon_8480plus", "mi300x_192g_8", "esp32"])
def test_a_profile_is_a_view_that_loses_nothing(config: str) -> None:
    from minitrain.machine import load_config

    profile = HardwareCapabilityProfile.from_device(config)
    assert profile.to_device() is load_config(config)
    assert profile.memory_bytes == load_config(config).mem1.capacity_bytes
    assert {precision.value for precision in profile.precisions} <= {*profile.peak_flop_per_s, "bfloat16"}
    assert profile.hardware_class.value == load_config(config).sheet.device_class
    is_tpu = config == "tpu_v5p"  # which computes in bfloat16 by its features, and not in double precision
    assert not is_tpu or {PrecisionType.BF16, PrecisionType.FP64} & profile.precisions == {PrecisionType.BF16}


def test_devices_of_one_kind_get_numbers_and_names_that_clash_are_refused() -> None:
    assert [each.name for each in profiles_of(["t4", "a100_80g", "t4"])] == ["t4-0", "a100_80g", "t4-1"]
    t4 = HardwareCapabilityProfile.from_device("t4")
    with pytest.raises(mt.UsageError, match="'t4' is there 2 times; use"):
        profiles_of([t4, t4])
    with pytest.raises(mt.UsageError, match="at least one device"):
        profiles_of([])


def test_a_cluster_stands_for_all_of_its_devices_slowed_by_their_caps() -> None:
    groups = [mt.Devices("a100_80g", 2, name="old", power_cap_watts=200), mt.Devices("t4", 1)]
    old, other, t4 = profiles_of(mt.Cluster(groups, between_groups=mt.Link(1e9)))
    assert (old.name, other.name, t4.name) == ("old-0", "old-1", "t4")
    product = matmul(4096, 4096, 4096, "float16")
    alone = HardwareCapabilityProfile.from_device("a100_80g").simulator.operation_time(product)
    slowed = old.simulator.operation_time(product)
    assert slowed.compute_s == pytest.approx(alone.compute_s / groups[0].clock_share)
    assert slowed.memory_s == alone.memory_s
    assert (old.tdp_W, t4.tdp_W) == (200, 70)
