"""A newer device is never slower than an older one, whatever is asked of it, and none is faster than its data sheet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from minitrain.machine import load_config, shipped_configs
from minitrain.machine.config import SystemConfig
from minitrain.machine.kernel_device import KernelDevice
from minitrain.machine.measured_topology import MeasuredTopology
from minitrain.machine.topology import make_topology
from minitrain.workloads.kernels import EIGHT_BIT_CORES, FlashAttention, Matmul, MemoryPass

NVIDIA = ("v100_32g_nvl8", "a100_40g", "a100_80g", "h100_80g_nvl8", "h200_141g_nvl8", "b200_192g_nvl8", "gb200_nvl72")
IN_ORDER = list(pairwise(map(load_config, NVIDIA)))
CONFIGS = [config for name in shipped_configs() if (config := load_config(name)).name != "specified_h100_80g_nvl8"]
WITH_KERNELS = [config for config in CONFIGS if config.kernels is not None]
SIZES = [2**power for power in range(10, 31)]
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier")
in_order = pytest.mark.parametrize(("older", "newer"), IN_ORDER, ids=lambda config: config.name)


def networks(system: SystemConfig, world_size: int) -> dict[str, Any]:
    kinds = {kind: make_topology(system.networks, world_size, kind) for kind in ("flat", "auto")}
    return {**kinds, "measured": MeasuredTopology(system.networks, world_size, may_be_unfilled=True)}


def groups(world_size: int) -> Iterator[tuple[int, ...]]:
    yield tuple(range(world_size))
    if world_size > 8:
        yield from (tuple(range(8)), tuple(range(0, world_size, 4)), tuple(range(0, world_size, 8)))


def matmuls(datatype: str) -> list[Matmul]:
    shapes = [(m, n, k) for m in (1, 128, 1000, 4096, 65536) for n in (64, 1536, 8192) for k in (128, 4096, 28672)]
    kinds: Sequence[Any] = ("forward", "input_gradient", "weight_gradient")
    return [Matmul(*shape, kind=kind, datatype=datatype) for shape in shapes for kind in kinds]


def attention_of(
    device: KernelDevice, length: int, num_heads: int, head: int, *, is_backward: bool, bits: int = 16
) -> float:
    """Return the time with the fastest kernel that the device has; infinity if it has none."""
    pairs = length * (length + 1) // 2
    kernels = (
        FlashAttention(1, length, length, num_heads, num_heads, head, head, pairs, is_backward, generation)
        for generation in device.rates.attention
        if (generation in EIGHT_BIT_CORES) == (bits == 8)
    )
    return min(map(device.kernel_seconds, kernels), default=math.inf)


@in_order
def test_newer_devices_compute_and_hold_as_much_in_every_datatype_and_size(
    older: SystemConfig, newer: SystemConfig
) -> None:
    for unit in ("matrix", "vector"):
        for datatype, rate in getattr(older, unit).items():
            assert newer.processor.peak(datatype, unit=unit) >= rate.peak_flop_per_s
            for power in range(14):
                assert newer.processor.throughput(datatype, 10**power, unit=unit) >= rate.throughput(10**power)
    for size in SIZES:
        assert newer.mem1.throughput(size) >= older.mem1.throughput(size)
        assert newer.mem2.throughput(size) >= older.mem2.throughput(size)
    assert newer.mem1.GiB >= older.mem1.GiB


@in_order
def test_newer_hosts_hold_as_much_for_a_device_except_that_of_gb200(older: SystemConfig, newer: SystemConfig) -> None:
    """A Grace has 480 GB for two devices, a DGX B200 2 TB for eight."""
    if newer.name == "gb200_nvl72":
        assert (older.mem2.GiB, newer.mem2.GiB) == (256, 240)
    else:
        assert newer.mem2.GiB >= older.mem2.GiB


@pytest.mark.few(6)
@in_order
@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 72, 144, 512, 576])
def test_newer_networks_are_as_fast_for_every_operation_group_and_size(
    older: SystemConfig, newer: SystemConfig, world_size: int
) -> None:
    new = networks(newer, world_size)
    for kind, old in networks(older, world_size).items():
        for size in SIZES:
            for dest in {1, world_size - 1}:
                assert new[kind].p2p(size, 0, dest).seconds <= old.p2p(size, 0, dest).seconds, (kind, size)
            for op, ranks in ((op, ranks) for op in OPS for ranks in groups(world_size)):
                found, bound = (net.collective(op, size, ranks).seconds for net in (new[kind], old))
                assert found <= bound * (1 + 1e-12), (kind, op, ranks, size)


@in_order
def test_newer_devices_run_every_kernel_as_fast(older: SystemConfig, newer: SystemConfig) -> None:
    old, new = KernelDevice(older), KernelDevice(newer)
    for kernel in (kernel for datatype in old.rates.matmul for kernel in matmuls(datatype)):
        assert new.kernel_seconds(kernel) <= old.kernel_seconds(kernel), kernel
    for size in SIZES:
        copy = MemoryPass("copy", size, 2)
        assert new.kernel_seconds(copy) <= old.kernel_seconds(copy)
    for length, heads, head in ((1024, 16, 64), (2048, 8, 128), (4096, 32, 128), (8192, 8, 192), (32768, 4, 128)):
        for is_backward, bits in ((False, 16), (True, 16), (False, 8), (True, 8)):
            found, bound = (
                attention_of(device, length, heads, head, is_backward=is_backward, bits=bits) for device in (new, old)
            )
            if bits == 16 or length >= 4096:  # shorter ones were not measured in eight bits
                assert found <= bound, (length, heads, head, is_backward, bits)
    assert new.rates.launch_s <= old.rates.launch_s
    assert new.rates.graph_launch_s <= old.rates.graph_launch_s


@pytest.mark.parametrize("system", CONFIGS, ids=lambda config: config.name)
def test_no_device_is_faster_than_its_data_sheet(system: SystemConfig) -> None:
    for unit in ("matrix", "vector"):
        for rate in getattr(system, unit).values():
            assert all(rate.throughput(10**power) <= rate.peak_flop_per_s for power in range(14))
    for memory in (system.mem1, system.mem2):
        assert all(memory.throughput(size) <= memory.GBps * 1e9 for size in SIZES)


@pytest.mark.parametrize("system", CONFIGS, ids=lambda config: config.name)
def test_no_transfer_is_faster_than_its_wires(system: SystemConfig) -> None:
    inner, outer = min(system.networks, key=size_of), max(system.networks, key=size_of)
    for num_nodes in (1, 2, 16):
        world_size = inner.size * num_nodes
        if world_size < 2 or world_size > 2**14:
            continue
        for op in ("all_reduce", "all_gather", "reduce_scatter"):
            within = 1.0 if op == "all_reduce" else (inner.size - 1) / inner.size  # a switch may add up on the way
            across = (2.0 if op == "all_reduce" else 1.0) * (num_nodes - 1) / num_nodes / inner.size
            for kind, net in networks(system, world_size).items():
                for size in SIZES:
                    seconds = net.collective(op, size, range(world_size)).seconds
                    if num_nodes == 1:
                        assert seconds >= within * size / (inner.bandwidth * 1e9), (kind, op, size)
                    assert seconds >= across * size / (outer.bandwidth * 1e9), (kind, op, size, num_nodes)


def size_of(tier: Any) -> int:
    return int(tier.size)


@pytest.mark.few(8)
@pytest.mark.parametrize("system", WITH_KERNELS, ids=lambda config: config.name)
def test_no_kernel_is_faster_than_peak_and_memory_allow(system: SystemConfig) -> None:
    device, bytes_per_s = KernelDevice(system), system.mem1.GBps * 1e9
    for datatype, rate in device.rates.matmul.items():
        peak = datatype.removeprefix("mx")  # factors of blocks cost no peak
        assert rate.tflops <= system.matrix[peak].tflops
        for kernel in matmuls(datatype):
            least = max(kernel.work_flop / device.peak_flop_per_s(peak), kernel.traffic_bytes / bytes_per_s)
            assert device.kernel_seconds(kernel) >= least
    for size in SIZES:
        assert device.kernel_seconds(MemoryPass("copy", size, 2)) >= 2 * size / bytes_per_s
    for generation in device.rates.attention:
        flash = FlashAttention(1, 4096, 4096, 32, 32, 128, 128, 4096 * 4097 // 2, generation=generation)
        assert device.kernel_seconds(flash) >= flash.work_flop / device.peak_flop_per_s("float16")


@pytest.mark.parametrize("system", WITH_KERNELS, ids=lambda config: config.name)
def test_the_best_rows_of_a_roofline_are_what_kernels_reach(system: SystemConfig) -> None:
    rates = system.kernels
    assert rates is not None
    assert system.mem1.throughput(1e9) == pytest.approx(rates.GBps * 1e9, rel=0.01)
    for datatype, rate in rates.matmul.items():
        if datatype.startswith("mx"):
            assert rate.tflops <= rates.matmul[datatype.removeprefix("mx")].tflops
            continue
        assert 0.94 < rate.tflops * 1e12 / system.processor.throughput(datatype, 1e13) < 1.01  # 0.96, rounded
    curve = system.networks[0].curves.get("all_gather")
    if curve is not None:
        reached = curve.bandwidth(system.networks[0].size, system.networks[0].bandwidth)
        assert system.networks[0].efficiency * system.networks[0].bandwidth == pytest.approx(reached, rel=0.01)
