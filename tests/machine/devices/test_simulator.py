"""Device simulators: the specification to the last float, what the default fidelity adds, and how full units are."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import HardwareConfigError, UsageError
from minitrain.machine import Processor, load_config, shipped_configs
from minitrain.machine.device import UnitLimits
from minitrain.machine.devices import (
    A100_SPEC,
    Analysis,
    AsicSimulator,
    CpuSimulator,
    DeviceSimulator,
    DeviceSpec,
    GpuSimulator,
    KernelLaunch,
    MatmulShape,
    NvidiaA100Simulator,
    Operation,
    Program,
    SimulationResult,
    TpuSimulator,
    make_simulator,
    matmul,
    occupancy,
    wave_efficiency,
)
from minitrain.machine.devices.operations import systolic_efficiency, vector_efficiency
from minitrain.machine.devices.simulator import simulate

A100 = NvidiaA100Simulator()
CC80 = UnitLimits(warps=64, blocks=32, registers=65536, smem_bytes=164 * 1024)


def resident(*launch: Any) -> float:
    return occupancy(KernelLaunch(*launch), CC80)


@pytest.mark.parametrize(
    ("size", "time_ms", "factor", "utilization"),
    [
        (128, 0.00021509251282051284, 1, 1),
        (1024, 0.11012736656410257, 1, 1),
        (2048, 0.9338800684635898, 1.06, 0.9434),
        (8192, 364.24846745810055, 6.46, 0.1548),
    ],
)
def test_the_specified_matmuls_hold_to_the_last_float(
    size: int, time_ms: float, factor: float, utilization: float
) -> None:
    program = matmul(size, size, size)
    result = A100.simulate(program, fidelity="seed")
    assert result.time_ms == time_ms
    assert A100.model_cache_effects(A100.analyze_ir(program)) == pytest.approx(factor, abs=1e-12)
    assert round(result.utilization, 4) == utilization
    assert (result.is_compute_bound, result.bottleneck) == (True, "compute")
    assert NvidiaA100Simulator("seed").predict(program) == result.time_seconds == time_ms / 1000


def test_the_specified_ridge_point_and_matrix_vector_product() -> None:
    assert A100.ridge_point == 10.077519379844961
    result = A100.simulate(matmul(8192, 8192, 1), fidelity="seed")
    assert result.time_ms == 0.36361677461498704
    assert (result.is_compute_bound, result.bottleneck) == (False, "memory")


def test_a_spec_of_ones_own_is_simulated_by_the_specified_formulas() -> None:
    spec = DeviceSpec("own", peak_fp32=1000, bandwidth=100, l1_size=1024, l2_size=10**6, l3_size=0)

    class Own(DeviceSimulator):
        model_cache_effects = NvidiaA100Simulator.model_cache_effects

    assert Own(spec, "seed").ridge_point == 10
    result = Own(spec, "seed").simulate(Operation("copy", 1e9, 3e6))  # 1 ms of arithmetic, three times the cache
    assert result.time_seconds == pytest.approx(1e-3 * (1 + 2 * 0.3))
    assert result.time_ms == 1000 * result.time_seconds
    assert result.utilization == pytest.approx(1 / 1.6)
    assert (result.is_compute_bound, result.bottleneck) == (True, "compute")
    small = DeviceSimulator(spec, "seed").simulate(matmul(100, 50, 20))  # 2e5 FLOP, 4 x (5000 + 1000 + 2000) bytes
    assert small.time_seconds == pytest.approx(max(2e5 / 1e12, 4 * 8000 / 1e11))
    assert (small.is_compute_bound, small.bottleneck) == (False, "memory")


def test_the_specified_spec_has_the_specified_figures() -> None:
    assert DeviceSpec("NVIDIA A100", 19500, 1935, 196608, 41943040, 0, True, True) == A100_SPEC
    assert SimulationResult(1.0, 1000.0, True, 0.5, "compute").time_ms == 1000


@pytest.mark.parametrize("fidelity", ["seed", "default"])
@pytest.mark.parametrize("base", [DeviceSimulator, GpuSimulator, CpuSimulator])
@pytest.mark.parametrize("hook", ["model_occupancy", "model_cache_effects"])
def test_hooks_of_a_subclass_multiply_the_time_under_every_fidelity(
    base: type[DeviceSimulator], hook: str, fidelity: str
) -> None:
    asked: list[Analysis] = []

    def twice(self: Any, analysis: Any) -> float:
        asked.append(analysis)
        return 2.0

    own = type("Own", (base,), {hook: twice, "__module__": __name__})
    program = [matmul(512, 512, 512), Operation("add", 512, 1024)]
    whole, doubled = (kind(A100_SPEC, fidelity).predict(program) for kind in (base, own))
    assert doubled == 2 * whole
    assert asked == [Program(tuple(program)).analysis()]


def test_counting_of_ones_own_is_refused_where_it_would_not_be_asked() -> None:
    class Counting(NvidiaA100Simulator):
        def analyze_ir(self, ir: Any) -> Analysis:
            return Analysis(19.5e12, 0, 0)

    assert Counting("seed").predict(matmul(8, 8, 8)) == 1
    with pytest.raises(UsageError, match=r'Counting.analyze_ir counts a whole program, .* use fidelity="seed"'):
        Counting().predict(matmul(8, 8, 8))


WIDE = dict.fromkeys(("float32", "bfloat16", "float16", "int8"), 8192)


def times_of(spec: DeviceSpec) -> dict[str, float]:
    """Return what matrix multiplications and passes take on a device, by what they are."""
    simulator = make_simulator(spec)
    found = {kind: simulator.predict(matmul(size, size, size, kind)) for kind, size in WIDE.items()}
    small = GpuSimulator(spec, sm_count=108)
    return found | {
        "in tiles": small.predict(matmul(4096, 4096, 4096)),
        "stream": simulator.predict(Operation("", 0, 1e9)),
    }


@pytest.mark.parametrize("view", [False, True], ids=["a spec of its own", "a view on a config"])
@pytest.mark.parametrize(
    ("change", "slower", "same"),
    [
        ({"peak_fp32": 9750}, "float32", "stream"),
        ({"bandwidth": 900}, "stream", "float32"),
        ({"l1_size": 8 * 1024}, "in tiles", "stream"),
        ({"has_tensor_cores": False}, "float16", "stream"),
        ({"has_bfloat16": False}, "bfloat16", "float16"),
        ({"rates": {"matrix.int8": 1000}}, "int8", "float32"),
    ],
    ids=str,
)
def test_each_field_of_a_spec_decides_something(change: dict[str, Any], slower: str, same: str, view: bool) -> None:
    spec = DeviceSpec.from_device("a100_80g") if view else replace(A100_SPEC, name="own")
    before, after = times_of(spec), times_of(replace(spec, **change))
    assert after[slower] > before[slower]
    assert after[same] == before[same]


def test_all_caches_together_hold_what_is_read_again() -> None:
    spec = DeviceSpec("small", 1e6, 100, 2**14, 2**16, 0)
    before = make_simulator(spec).traffic_factor(matmul(2048, 2048, 2048))
    for name in ("l1_size", "l2_size", "l3_size"):
        change: dict[str, Any] = {name: 2**20}
        larger = replace(spec, **change)
        assert make_simulator(larger).traffic_factor(matmul(2048, 2048, 2048)) < before


def test_datatypes_of_a_spec_of_ones_own_have_their_rates() -> None:
    own = make_simulator(replace(A100_SPEC, name="own"))
    kinds = ("float16", "bfloat16", "int8", "tf32", "float8")
    assert [own.rate_of(matmul(8, 8, 8, kind)).tflops for kind in kinds] == [312, 312, 624, 156, 312]
    with pytest.raises(HardwareConfigError, match="config own has no rate for float64, which some devices compute 2"):
        own.predict(matmul(8, 8, 8, "float64"))
    stated = replace(A100_SPEC, name="own", rates={"vector.float64": 9_700, "matrix.float64": 19_500})
    assert make_simulator(stated).rate_of(Operation("add", 1, 1, "float64")).tflops == 9.7


def test_what_cannot_decide_anything_is_refused() -> None:
    plain = DeviceSpec.from_device("xeon_8480plus")
    with pytest.raises(UsageError, match="xeon_8480plus does not say what tensor cores would compute; state it"):
        replace(plain, has_tensor_cores=True).to_device()
    stated = replace(plain, has_tensor_cores=True, rates={"matrix.float16": 1000})
    assert stated.to_device().matrix["float16"].tflops == 1
    with pytest.raises(UsageError, match="own has rates of matrix units and no tensor cores; set has_tensor_cores"):
        DeviceSpec("own", 1, 1, 0, 0, 0, rates={"matrix.float16": 5})
    wrong: list[tuple[str, Any]] = [("float16", 1), ("matrix.fp16", 1), ("vector.float16", 0), ("vector.float16", "x")]
    for name, rate in wrong:
        with pytest.raises(UsageError, match="rates of a DeviceSpec are numbers > 0 in GFLOP/s by unit and datatype"):
            replace(A100_SPEC, rates={name: rate})


def test_float32_says_whether_tf32_is_meant() -> None:
    program = matmul(8192, 8192, 8192)
    single, tensor = (simulate(program, device="a100_80g", tf32=tf32) for tf32 in (False, True))
    assert single.notes == (single.table().splitlines()[-1],)
    assert "not in TF32; tf32=True says otherwise" in single.notes[0]
    assert tensor.notes == ()
    rates = (result.operations[0].compute_s for result in (single, tensor))
    assert next(rates) / next(rates) == pytest.approx(156 / 19.5, rel=0.2)
    assert simulate(program, device="t4").notes == ()
    with pytest.raises(HardwareConfigError, match=r"config t4 has no matrix.tf32; add it, or use"):
        simulate(program, device="t4", tf32=True)


def test_the_cache_penalty_touches_memory_time_alone_by_default() -> None:
    large = matmul(8192, 8192, 8192)
    time = A100.operation_time(large)
    assert time.compute_s == pytest.approx(large.flops / 19.5e12, rel=0.06)
    assert time.memory_s == large.bytes / 1935e9 * A100.traffic_factor(large) < time.compute_s
    assert 1 < A100.traffic_factor(large) < A100.model_cache_effects(A100.analyze_ir(large)) == pytest.approx(6.46)


def test_what_streams_once_is_read_once_however_large_it_is() -> None:
    stream = Operation("copy", 0, 1e12)
    assert A100.traffic_factor(stream) == 1
    assert A100.predict(stream) == 1e12 / 1935e9
    assert A100.traffic_factor(matmul(8192, 8192, 1)) == pytest.approx(1, abs=0.01)


@given(m=st.integers(1, 10**5), n=st.integers(1, 10**5), k=st.integers(1, 10**5))
def test_the_default_is_never_quicker_than_the_roofline_and_never_worse_than_its_parts(m: int, n: int, k: int) -> None:
    program = matmul(m, k, n)
    roofline = max(program.flops / 19.5e12, program.bytes / 1935e9)
    time = A100.operation_time(program)
    assert A100.predict(program) >= roofline * (1 - 1e-12)
    assert time.memory_s <= program.bytes / 1935e9 * A100.model_cache_effects(A100.analyze_ir(program)) * (1 + 1e-12)


def test_waves_and_too_few_warps_divide_the_compute_rate() -> None:
    full = matmul(4096, 4096, 4096)
    launches = {0.25: KernelLaunch(256, 128, 49152), 0.0625: KernelLaunch(128, 168, 98304)}
    quarter, sixteenth = (replace(full, launch=launch) for launch in launches.values())
    assert [A100.model_occupancy(each) for each in (quarter, sixteenth)] == list(launches)
    assert A100.fullness(full) == A100.fullness(quarter) == 0.9481481481481482  # 16 warps hide the latency
    assert A100.fullness(sixteenth) == 0.9481481481481482 * 0.25
    assert A100.operation_time(sixteenth).compute_s == 4 * A100.operation_time(full).compute_s
    assert A100.operation_time(sixteenth).memory_s == A100.operation_time(full).memory_s


def test_datatypes_have_the_rates_of_the_config() -> None:
    simulator = make_simulator("a100_80g")
    rate = {
        kind: simulator.rate_of(matmul(8, 8, 8, kind)).tflops for kind in ("float32", "float16", "bfloat16", "int8")
    }
    assert rate == {"float32": 19.5, "float16": 312, "bfloat16": 312, "int8": 624}
    assert simulator.rate_of(Operation("add", 1, 1, "bfloat16")).tflops == 78
    assert simulator.rate_of(Operation("add", 1, 1, "int32")).tflops == 19.5


def test_a_config_without_a_rate_is_told_what_to_add() -> None:
    system = replace(
        load_config("a100_80g"), processor=Processor({}, {"float64": load_config("a100_80g").vector["float32"]})
    )
    with pytest.raises(
        HardwareConfigError, match=r"config a100_80g has no rate for float32, nor vector.float32 to fall"
    ):
        make_simulator(system).predict(matmul(8, 8, 8))


@pytest.mark.parametrize("name", shipped_configs())
def test_every_shipped_device_has_a_simulator_of_its_class_that_is_slower_for_more_work(name: str) -> None:
    simulator = make_simulator(name)
    kinds = {"gpu": GpuSimulator, "tpu": TpuSimulator, "cpu": CpuSimulator, "asic": AsicSimulator, "mcu": CpuSimulator}
    assert type(simulator) is kinds[load_config(name).sheet.device_class or ""]
    times = [simulator.predict(matmul(size, size, size, "float16")) for size in (16, 256, 4096)]
    assert times == sorted(times)
    assert all(simulator.simulate(matmul(64, 64, 64), fidelity=kind).time_seconds > 0 for kind in ("seed", "default"))


def test_a_tpu_fills_and_drains_its_arrays() -> None:
    simulator = make_simulator("tpu_v5p")
    assert simulator.fullness(matmul(65536, 4096, 4096)) == pytest.approx(1, abs=1e-3)
    assert simulator.fullness(matmul(65536, 129, 4096)) == pytest.approx(129 / 256, rel=0.01)
    assert simulator.fullness(matmul(8, 128, 128)) < 0.05
    assert simulator.fullness(Operation("add", 1, 1)) == 1


def test_an_accelerator_without_arrays_is_a_roofline() -> None:
    phone = make_simulator("phone")
    assert isinstance(phone, AsicSimulator)
    assert phone.operation_time(matmul(4096, 4096, 4096, "float16")).compute_s == 2 * 4096**3 / 50e12


def test_a_cpu_loses_idle_cores_and_empty_lanes() -> None:
    simulator = make_simulator("xeon_8480plus")
    assert simulator.fullness(matmul(5600, 4096, 4096)) == pytest.approx(1, abs=1e-3)
    assert simulator.fullness(matmul(1, 4096, 16)) == pytest.approx(1 / 56)
    assert simulator.fullness(matmul(17, 17, 17)) < 17 / 32 + 1e-9


def test_a_program_is_as_long_as_its_operations_and_one_dispatch() -> None:
    simulator = make_simulator("a100_80g")
    one = matmul(4096, 4096, 4096)
    result = simulator.simulate([replace(one, count=3), Operation("copy", 0, 1e9)])
    parts = (
        3 * max(simulator.operation_time(one).compute_s, 0) + simulator.operation_time(Operation("c", 0, 1e9)).memory_s
    )
    assert result.time_seconds == pytest.approx(parts + 1.5e-5)
    assert (result.flops, result.bytes) == (3 * one.flops, 3 * one.bytes + 1e9)
    assert [row.operation.count for row in result.operations] == [3, 1]


def test_many_tiny_kernels_are_bound_by_their_dispatch() -> None:
    result = make_simulator("a100_80g").simulate([Operation("tiny", 1, 4, count=1000)])
    assert result.bottleneck == "dispatch"
    assert result.time_seconds == pytest.approx(1000 * 2.62e-6 + 1.5e-5)


def test_the_table_lists_the_longest_operations_and_counts_the_rest() -> None:
    result = make_simulator("a100_80g").simulate(
        Program(tuple(Operation(f"op{size}", 0, size) for size in (1e3, 1e6, 1e9)), ("a loop",))
    )
    lines = result.table(2).splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["op1000000000.0", "op1000000.0"]
    assert lines[3:] == ["... and 1 operations more", "a lower bound: a loop counts once"]


@pytest.mark.parametrize("name", shipped_configs())
def test_a_view_on_a_config_loses_nothing(name: str) -> None:
    system = load_config(name)
    spec = DeviceSpec.from_device(system)
    assert spec.to_device() is system
    assert DeviceSpec.from_device(spec.to_device()) == spec == pickle.loads(pickle.dumps(spec)) == copy.copy(spec)


def test_what_is_changed_in_a_view_reaches_the_config_and_nothing_else_does() -> None:
    spec = DeviceSpec.from_device("a100_80g")
    changed = replace(spec, name="mine", bandwidth=1935, l2_size=10, l3_size=20, has_bfloat16=False, peak_fp32=10000)
    system = changed.to_device()
    assert DeviceSpec.from_device(system) == changed
    assert (system.mem1.GBps, system.mem1.GiB, system.vector["float32"].tflops) == (1935, 80, 10)
    assert system.networks == load_config("a100_80g").networks
    assert system.sheet.power == load_config("a100_80g").sheet.power


def test_a_spec_of_one_s_own_is_laid_over_a_config() -> None:
    assert DeviceSpec.from_device(A100_SPEC.to_device("a100_80g")) == A100_SPEC


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(A100_SPEC, peak_fp32=0), "peak_fp32 of a DeviceSpec must be a number > 0 in GFLOP/s, got 0"),
        (lambda: replace(A100_SPEC, bandwidth=float("inf")), "bandwidth of a DeviceSpec .* > 0 in GB/s, got inf"),
        (lambda: replace(A100_SPEC, l2_size=-1), "l2_size of a DeviceSpec must be a number of bytes >= 0, got -1"),
        (A100_SPEC.to_device, "NVIDIA A100 is no view on a hardware config, and a spec does not say"),
        (lambda: resident(1025, 32), "a block has 1 to 1024 threads, got 1025"),
        (lambda: resident(32, 256), "a thread has at most 255 registers, got 256"),
        (lambda: resident(32, 32, -1), "shared memory must be a number of bytes >= 0, got -1"),
        (lambda: resident("256", 32), "threads, registers and smem_bytes of a launch must be whole numbers"),
        (lambda: resident(1024, 255), r"fits on a unit \(registers\); use smaller blocks"),
        (lambda: resident(32, 32, 164 * 1024), r"fits on a unit \(shared memory\); use smaller blocks"),
        (lambda: DeviceSimulator(A100_SPEC, "exact"), 'fidelity of a device simulator must be "default" or "seed"'),
        (lambda: A100.simulate(matmul(1, 1, 1), fidelity="x"), 'must be "default" or "seed", got \'x\''),
        (lambda: A100.simulate(5), "a simulator takes a Program, an Operation, a list of operations"),
        (lambda: A100.simulate([1]), "a simulator takes a Program"),
        (lambda: matmul(0, 1, 1), "M must be an integer of at least 1, got 0"),
        (lambda: matmul(1, 1, 1, "float3"), "there is no datatype 'float3'; use one of float64, float32"),
        (lambda: Operation("x", 0, float("nan")), "bytes of operation 'x' must be a number >= 0, got nan"),
        (lambda: Operation("x", 0, 0, count=0), "count must be an integer of at least 1, got 0"),
        (lambda: Operation("x", "1", 0), "flops of operation 'x' must be a number >= 0, got '1'"),  # type: ignore[arg-type]  # that is the point
        (lambda: Operation("x", 0, 0, working_set_bytes=-5), "working_set of operation 'x' must be a number >= 0, got"),
        (lambda: Operation("x", 0, 0, kind="mm"), "kind of operation 'x' must be one of .* got 'mm'"),  # type: ignore[arg-type]  # that is the point
        (lambda: Operation("x", 0, 0, datatype="fp16"), "there is no datatype 'fp16'; use one of float64"),
        (lambda: MatmulShape(-1, 2, 3), "m of a MatmulShape must be an integer of at least 0, got -1"),
        (lambda: Operation("x", 0, 0, shape=5), r"shape must be of type MatmulShape \| None, got 5; see help"),  # type: ignore[arg-type]  # that is the point
        (lambda: Program(5), r"operations must be of type tuple\[Operation, ...\], got 5; see help"),  # type: ignore[arg-type]  # that is the point
        (lambda: Program((5,)), r"operations must be of type tuple\[Operation, ...\], got \(5,\)"),  # type: ignore[arg-type]  # that is the point
        (lambda: wave_efficiency(128, 128, 0), "num_units must be an integer of at least 1, got 0"),
        (lambda: DeviceSimulator("a100_80g"), "takes a DeviceSpec, got 'a100_80g'; make_simulator takes"),  # type: ignore[arg-type]  # that is the point
        (lambda: A100.simulate(matmul(1, 1, 1)).table(-1), "most must be an integer of at least 0, got -1"),
    ],
)
def test_misuse_is_one_clear_error(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_simulators_are_found_by_name_spec_and_config() -> None:
    assert isinstance(make_simulator("NVIDIA A100"), NvidiaA100Simulator)
    assert isinstance(make_simulator(A100_SPEC), NvidiaA100Simulator)
    assert type(make_simulator(replace(A100_SPEC, name="x"))) is DeviceSimulator
    assert isinstance(make_simulator(DeviceSpec.from_device("tpu_v4")), TpuSimulator)
    assert make_simulator(A100) is A100
    with pytest.raises(HardwareConfigError, match="expected the name of a shipped config"):
        make_simulator("nope")


def test_occupancy_is_that_of_the_calculator() -> None:
    launches = [(256, 32), (256, 64), (256, 128, 49152), (1024, 64), (128, 168, 98304), (32, 16), (256, 0)]
    assert [resident(*launch) for launch in launches] == [1.0, 0.5, 0.25, 0.5, 0.0625, 0.5, 1.0]


def test_occupancy_of_other_compute_capabilities() -> None:
    limits = load_config("l40s_48g_pcie8").sheet.limits
    assert limits is not None
    assert round(occupancy(KernelLaunch(256, 64, 0), limits), 4) == 0.6667
    assert load_config("a100_80g").sheet.limits == CC80


@given(st.integers(1, 1024), st.integers(0, 64), st.integers(0, 160 * 1024))
def test_occupancy_is_a_share_and_more_registers_never_raise_it(threads: int, registers: int, smem: int) -> None:
    shares = [resident(threads, count, smem) for count in (registers, min(64, registers + 8))]
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
