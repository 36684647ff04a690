"""Processor and memory: peaks, efficiency rows, the exact values of the specification."""

import copy
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import HardwareConfigError, UsageError
from minitrain.machine import Memory, Processor, Rate, load_config

ROWS = ((100.0, 0.9), (10.0, 0.75), (1.0, 0.6), (0.0, 0.3))


def processor() -> Processor:
    return Processor({"float16": Rate(1000.0, ROWS)}, {"float16": Rate(100.0, ((0.0, 0.5),))})


def test_h100_computes_2e11_flop_in_the_specified_time() -> None:
    unit = load_config("specified_h100_80g_nvl8").processor
    assert 2e11 / unit.throughput("float16", 2e11) == 0.0002105263157894737


def test_h100_moves_5e7_bytes_of_hbm_in_the_specified_time() -> None:
    memory = load_config("specified_h100_80g_nvl8").mem_hbm
    assert 5e7 / memory.throughput(5e7) == 2.170138888888889e-05


@pytest.mark.parametrize(
    ("flops", "efficiency"),
    [(1e12, 0.9), (1e11, 0.9), (99.9e9, 0.75), (1e10, 0.75), (1e9, 0.6), (0.5e9, 0.3), (0, 0.3)],
)
def test_an_operation_gets_the_first_row_whose_bound_it_reaches(flops: float, efficiency: float) -> None:
    assert processor().throughput("float16", flops) == 1000.0 * 1e12 * efficiency


@pytest.mark.parametrize(("size_bytes", "efficiency"), [(100e6, 0.9), (10e6, 0.75), (1e6, 0.6), (1, 0.3)])
def test_memory_rows_count_megabytes(size_bytes: float, efficiency: float) -> None:
    assert Memory(80, 3072, ROWS).throughput(size_bytes) == 3072 * 1e9 * efficiency


def test_bounds_may_be_fractions_of_a_megabyte() -> None:
    memory = Memory(1, 1, ((0.5, 0.9), (0.0, 0.1)))
    assert (memory.throughput(5e5), memory.throughput(499_999)) == (0.9e9, 0.1e9)


def test_peak_ignores_efficiency_and_the_vector_unit_has_its_own() -> None:
    assert processor().peak("float16") == 1e15
    assert processor().peak("float16", unit="vector") == 1e14
    assert processor().throughput("float16", 5, unit="vector") == 5e13


def test_capacity_counts_binary_gigabytes() -> None:
    assert load_config("specified_h100_80g_nvl8").mem_hbm.capacity_bytes == 80 * 2**30


def test_a_datatype_without_entry_is_named_with_those_there_are() -> None:
    with pytest.raises(HardwareConfigError, match=r"matrix\.int4 is missing \(it has float16\); add matrix\.int4"):
        processor().throughput("int4", 1)
    with pytest.raises(HardwareConfigError, match=r"vector\.float16 is missing \(it has nothing\)"):
        Processor({}, {}).peak("float16", unit="vector")


@pytest.mark.parametrize("size", [-1, -1e-300, math.nan])
def test_a_negative_size_is_refused(size: float) -> None:
    with pytest.raises(UsageError, match="must be a number >= 0"):
        Memory(1, 1, ROWS).throughput(size)
    with pytest.raises(UsageError, match="must be a number >= 0"):
        processor().throughput("float16", size)


@given(st.floats(0, 1e20), st.floats(0, 1e20))
def test_larger_operations_never_run_at_a_lower_rate(first: float, second: float) -> None:
    small, large = sorted((first, second))
    assert processor().throughput("float16", small) <= processor().throughput("float16", large)


def test_values_are_read_only_and_survive_pickle_copy_and_hash() -> None:
    config = load_config("specified_h100_80g_nvl8")
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    assert hash(copy.deepcopy(config)) == hash(config)
    with pytest.raises(TypeError, match="does not support item assignment"):
        config.matrix["float16"] = Rate(1, ROWS)  # type: ignore[index]
