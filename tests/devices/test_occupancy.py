"""Occupancy and waves against NVIDIA's calculator, and systolic arrays and vectors against counts by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.devices import KernelLaunch, MatmulShape, occupancy, wave_efficiency
from minitrain.devices.operations import systolic_efficiency, vector_efficiency
from minitrain.errors import UsageError
from minitrain.hardware import load_config
from minitrain.hardware.data_sheet import UnitLimits

CC80 = UnitLimits(warps=64, blocks=32, registers=65536, smem_bytes=164 * 1024)


@pytest.mark.parametrize(
    ("threads", "registers", "smem_bytes", "expected"),
    [
        (256, 32, 0, 1.0),
        (256, 64, 0, 0.5),
        (256, 128, 49152, 0.25),
        (1024, 64, 0, 0.5),
        (128, 168, 98304, 0.0625),
        (32, 16, 0, 0.5),
        (256, 0, 0, 1.0),
    ],
)
def test_occupancy_is_that_of_the_calculator(threads: int, registers: int, smem_bytes: int, expected: float) -> None:
    assert occupancy(KernelLaunch(threads, registers, smem_bytes), CC80) == expected


def test_occupancy_of_other_compute_capabilities() -> None:
    limits = load_config("l40s_48g_pcie8").sheet.limits
    assert limits is not None
    assert round(occupancy(KernelLaunch(256, 64, 0), limits), 4) == 0.6667
    assert load_config("a100_80g").sheet.limits == CC80


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (KernelLaunch(1025, 32), "a block has 1 to 1024 threads, got 1025"),
        (KernelLaunch(0, 32), "a block has 1 to 1024 threads, got 0"),
        (KernelLaunch(32, 256), "a thread has at most 255 registers, got 256"),
        (KernelLaunch(32, 32, -1), "shared memory must be a number of bytes >= 0, got -1"),
        (KernelLaunch("256", 32), "threads, registers and smem_bytes of a launch must be whole numbers"),  # type: ignore[arg-type]  # that is the point
        (KernelLaunch(1024, 255), r"fits on a unit \(registers\); use smaller blocks"),
        (KernelLaunch(32, 32, 164 * 1024), r"fits on a unit \(shared memory\); use smaller blocks"),
    ],
)
def test_a_launch_that_no_gpu_takes_is_refused(launch: KernelLaunch, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        occupancy(launch, CC80)


@given(st.integers(1, 1024), st.integers(0, 64), st.integers(0, 160 * 1024))
def test_occupancy_is_a_share_and_more_registers_never_raise_it(threads: int, registers: int, smem: int) -> None:
    shares = [occupancy(KernelLaunch(threads, count, smem), CC80) for count in (registers, min(64, registers + 8))]
    assert 0 < shares[1] <= shares[0] <= 1


def test_waves_are_those_of_the_specified_tiles() -> None:
    assert wave_efficiency(3456, 512, 108) == 1.0
    assert wave_efficiency(3457, 512, 108) == 0.5001446759259259
    assert wave_efficiency(4096, 4096, 108) == 0.9481481481481482


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.integers(1, 200), st.integers(1, 64))
def test_waves_are_a_share_and_batches_fill_them(m: int, n: int, units: int, batch: int) -> None:
    assert 0 < wave_efficiency(m, n, units, batch=batch) <= 1
    assert wave_efficiency(m, n, units, batch=units) == pytest.approx(m * n / (-(-m // 128) * -(-n // 128) * 128 * 128))


def test_a_systolic_array_streams_fills_and_drains() -> None:
    one = MatmulShape(1000, 128, 128)
    assert systolic_efficiency(one, (128, 128), 1) == 1000 / (1000 + 256)
    assert systolic_efficiency(MatmulShape(1000, 128, 256), (128, 128), 1) == 2000 / (2000 + 256)
    assert systolic_efficiency(MatmulShape(128, 1000, 128), (128, 128), 1) == 1000 / (1000 + 256)  # either may stay
    assert systolic_efficiency(one, (128, 128), 2) == 500 / (500 + 256)  # rows are split between arrays


@given(*[st.integers(1, 5000)] * 3, st.integers(1, 16))
def test_systolic_and_vector_efficiencies_are_shares(m: int, n: int, k: int, units: int) -> None:
    shape = MatmulShape(m, n, k)
    assert 0 < systolic_efficiency(shape, (128, 128), units) <= 1
    assert 0 < vector_efficiency(shape, units, 16) <= 1
