"""The profiler: claims are verified, and liars found out; fingerprints and models; what this machine has."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minitrain.machine import load_config
from minitrain.machine.devices import make_simulator
from minitrain.machine.heterogeneous import (
    ComprehensiveHardwareProfiler,
    DetectedDevice,
    EnhancedHardwareDetector,
    EnhancedHardwareTaxonomy,
    HardwareAbstractionLayer,
    HardwareCapabilityProfile,
    HardwareClass,
    HostBackend,
    SimulatedBackend,
    Suite,
    VerificationReport,
)
from minitrain.machine.heterogeneous.taxonomy import config_named_as
from tests.machine.heterogeneous.workload_examples import priced_branches

SUITE = Suite(matmul_sizes=(32, 96), stream_elements=(2**10, 2**14), num_samples=3)
A100 = HardwareCapabilityProfile.from_device("a100_80g")
PCI = ("class", "vendor", "device")
RATES = ("peak", "memory bandwidth in")
NOWHERE = EnhancedHardwareDetector("xeon_8480plus", modules=lambda name: None)


def profiler_of(backend: Any, name: str = "a100_80g") -> ComprehensiveHardwareProfiler:
    hal = HardwareAbstractionLayer()
    hal.register_backend(name, backend)
    return ComprehensiveHardwareProfiler(NOWHERE, hal, SUITE)


def failed(report: VerificationReport) -> set[str]:
    return {claim.name for claim in report.failed}


class Liar:
    """A simulated A100 that is changed in one way."""

    def __init__(self, *, times: float = 1.0, wrong: Any = None, refuses: str = "") -> None:
        self._inner = SimulatedBackend("a100_80g")
        self._times, self._wrong, self._refuses = times, wrong, refuses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reason_unsupported(self, cost: Any, datatype: str) -> str | None:
        return "no such units" if datatype == self._refuses else self._inner.reason_unsupported(cost, datatype)

    def execute(self, kind: Any, operands: Any, options: Any, cost: Any) -> tuple[Any, float]:
        result, seconds = self._inner.execute(kind, operands, options, cost)
        if self._wrong is not None and kind.name == "matmul":
            result = self._wrong(np.asarray(result))
        return result, seconds * self._times


def test_a_device_that_does_what_its_config_says_passes_with_what_fits_into_it() -> None:
    report = profiler_of(SimulatedBackend("a100_80g")).verify_capabilities(A100)
    assert str(report).endswith("a100_80g: pass")
    kinds = {claim.name.rsplit(" ", 1)[0] for claim in report.claims}
    assert kinds == {"computes in", "computes rightly in", *RATES}
    small = profiler_of(SimulatedBackend("esp32"), "esp32")
    small.suite = Suite(matmul_sizes=(32, 512), stream_elements=(2**10, 2**22), num_samples=1)
    assert small.verify_capabilities(HardwareCapabilityProfile.from_device("esp32")).verdict == "pass"
    assert {rung.size for rung in small.benchmark_results["esp32"]["rungs"]["float32"]} == {32, 1, 2**10}


def test_a_precision_that_is_claimed_and_refused_fails_with_the_reason() -> None:
    (claim,) = profiler_of(Liar(refuses="bfloat16")).verify_capabilities(A100).failed
    assert (claim.name, claim.found) == ("computes in bfloat16", 0)
    assert "no such units" in claim.reason


@pytest.mark.few(1)
@pytest.mark.parametrize(("times", "reason"), [(3, "where the config says"), (1e-4, "faster than it can be")])
def test_a_device_that_is_slower_than_its_config_or_faster_than_it_can_be_fails(times: float, reason: str) -> None:
    report = profiler_of(Liar(times=times)).verify_capabilities(A100)
    claims = [f"{claim} {kind}" for kind in ("float32", "float16", "bfloat16") for claim in RATES]
    assert failed(report) == set(claims)
    assert all(reason in claim.reason for claim in report.failed)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros_like,
        lambda result: result * np.asarray(1.01, result.dtype),
        lambda result: result[:-1],
        lambda result: np.where(np.arange(result.size).reshape(result.shape) == 7, np.asarray(9, result.dtype), result),
        lambda result: result * np.asarray(np.nan, result.dtype),
    ],
)
def test_a_device_that_computes_something_else_is_found_out(wrong: Any) -> None:
    report = profiler_of(Liar(wrong=wrong)).verify_capabilities(A100)
    assert "computes rightly in float32" in failed(report)
    assert not any(name.startswith(("peak", "memory")) for name in failed(report))


@pytest.mark.ci
def test_a_config_that_claims_too_much_of_this_machine_fails() -> None:
    boasting = HardwareCapabilityProfile("host", load_config("h100_80g_nvl8"))
    profiler = profiler_of(HostBackend("numpy"), "host")
    profiler.suite = Suite(matmul_sizes=(384,), stream_elements=(2**10,), num_samples=3)
    report = profiler.verify_capabilities(boasting)
    assert "peak float32" in failed(report)
    assert "computes in bfloat16" in failed(report)
    assert "computes rightly in float32" not in failed(report)


def test_a_real_backend_is_timed_by_the_layers_clock_and_a_noisy_one_is_inconclusive() -> None:
    ticks = count()
    steady = iter(lambda: float(next(ticks)), None)
    host = HardwareCapabilityProfile("host", _as_fast_as(1.0))
    backend = HostBackend("numpy", clock=lambda: next(steady))
    found = profiler_of(backend, "host").run_benchmark_suite(host)
    assert not found["is_priced"]
    assert found["flop_per_s"]["float32"] == 2 * 96**3
    moments = iter([moment for place in range(1000) for moment in (10.0 * place, 10.0 * place + 1 + place % 3)])
    noisy = HostBackend("numpy", clock=lambda: next(moments))
    report = profiler_of(noisy, "host").verify_capabilities(host)
    assert report.verdict == "inconclusive"
    assert any("noise" in claim.reason for claim in report.claims)


def _as_fast_as(seconds: float) -> Any:
    """Return a config on which the largest rungs take about so long."""
    config = load_config("xeon_8480plus")
    rates = {
        "float32": replace(config.vector["float32"], tflops=2 * 96**3 / seconds / 1e12, gflops_efficiency=((0, 1),))
    }
    memory = replace(config.mem1, GBps=8 * 2**14 / seconds / 1e9, MB_efficiency=((0, 1),))
    sheet = replace(config.sheet, dispatch_s=None, caches=(), features={})
    return replace(config, processor=type(config.processor)(rates, rates), mem1=memory, sheet=sheet)


def test_a_fingerprint_tells_kinds_of_device_and_not_names_or_prices() -> None:
    profiler = profiler_of(SimulatedBackend("a100_80g"))
    of = profiler.generate_hardware_fingerprint
    assert of(A100) == of(HardwareCapabilityProfile("another", A100.device))
    cheaper = replace(A100.device, sheet=replace(A100.device.sheet, price_usd_per_hour=0.1))
    assert of(HardwareCapabilityProfile("cheaper", cheaper)) == of(A100)
    larger = replace(A100.device, mem1=replace(A100.device.mem1, GiB=81))
    assert of(HardwareCapabilityProfile("larger", larger)) != of(A100)
    assert profiler.hardware_fingerprints["a100_80g"] == of(A100)
    assert len(of(A100)) == 64


def machine(folder: Path, devices: dict[str, tuple[str, str, str]]) -> EnhancedHardwareDetector:
    """Return a detector of a machine with some PCI devices (class, vendor, product), and caches of 32 KiB and 8 MiB."""
    pairs = [(at, *pair) for at, each in devices.items() for pair in zip(PCI, each, strict=True)]
    files = {f"bus/pci/devices/{at}/{name}": said for at, name, said in pairs}
    caches = (("Data", 1, "32K"), ("Instruction", 1, "32K"), ("Unified", 3, "8192K"))
    for index, (kind, level, size) in enumerate(caches):
        cache = f"devices/system/cpu/cpu0/cache/index{index}"
        files |= {f"{cache}/type": kind, f"{cache}/level": str(level), f"{cache}/size": size}
    for name, said in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{said}\n")
    return EnhancedHardwareDetector(modules=lambda name: None, system=folder)


def test_devices_without_a_driver_are_listed_with_what_is_not_known(tmp_path: Path) -> None:
    devices = {
        "0000:01:00.0": ("0x030200", "0x10de", "0x2330"),
        "0000:02:00.0": ("0x038000", "0x1002", "0x740f"),  # neither a display nor an accelerator
        "0000:03:00.0": ("0x120000", "0x1002", "0x74a1"),
        "0000:04:00.0": ("0x120000", "0x1ae0", "0x0063"),
        "0000:05:00.0": ("0x120000", "0xabcd", "0x0001"),
        "0000:06:00.0": ("0x030000", "0x1234", "0x1111"),  # the screen of a virtual machine
    }
    processor, *others = machine(tmp_path, devices).detect()
    assert processor.caches == ((1, 32 * 1024), (3, 8 * 2**20))
    assert [(each.vendor, each.hardware_class.value, each.uuid) for each in others] == [
        ("NVIDIA", "gpu", "0000:01:00.0"),
        ("AMD", "gpu", "0000:03:00.0"),
        ("Google", "tpu", "0000:04:00.0"),
        (None, "asic", "0000:05:00.0"),
    ]
    assert others[0].name == "NVIDIA device 0x2330"
    assert {"memory_bytes", "clock_Hz", "tdp_W"} <= set(others[0].unknown)
    known = EnhancedHardwareDetector(modules={"pynvml": nvml()}.get, system=tmp_path).detect()
    assert [each.vendor for each in known[1:]] == ["NVIDIA", "AMD", "Google", None]  # each GPU once


def test_a_fingerprint_of_this_machine_is_the_same_on_each_detection(tmp_path: Path) -> None:
    profiler = profiler_of(SimulatedBackend("a100_80g"))
    detector = machine(tmp_path, {})
    processor = detector.detect()[0]
    measured = [replace(A100.device, mem1=replace(A100.device.mem1, GBps=100.0 + noise)) for noise in range(10)]
    hotter = [
        replace(detector.detect()[0], clock_Hz=1e9 * noise, temperature_C=40.0 + noise, num_units=noise)
        for noise in range(10)
    ]
    found = {
        profiler.generate_hardware_fingerprint(HardwareCapabilityProfile("host", config, detected))
        for config, detected in zip(measured, hotter, strict=True)
    }
    assert len(found) == 1
    others = (replace(processor, name="another"), replace(processor, num_cores=99), replace(processor, uuid="GPU-2"))
    for other in (*others, replace(processor, caches=())):
        found.add(profiler.generate_hardware_fingerprint(HardwareCapabilityProfile("host", A100.device, other)))
    assert len(found) == 5


_FINGERPRINTS = """
import os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from minitrain.machine.heterogeneous import ComprehensiveHardwareProfiler, EnhancedHardwareDetector
from minitrain.machine.heterogeneous import HardwareCapabilityProfile
detector = EnhancedHardwareDetector("a100_80g")
profiler = ComprehensiveHardwareProfiler(detector)
for each in detector.detect():
    profile = HardwareCapabilityProfile(each.name, detector.host_config(), each)
    print(profiler.generate_hardware_fingerprint(profile))
"""


@pytest.mark.ci
def test_ten_detections_of_the_real_machine_are_equal_also_in_a_process_that_has_one_core() -> None:
    found = set()
    for _ in range(10):
        detector = EnhancedHardwareDetector("a100_80g")
        profiler = ComprehensiveHardwareProfiler(detector)
        profiles = [HardwareCapabilityProfile(each.name, A100.device, each) for each in detector.detect()]
        found.add(tuple(map(profiler.generate_hardware_fingerprint, profiles)))
    assert len(found) == 1
    told = subprocess.run([sys.executable, "-c", _FINGERPRINTS], capture_output=True, text=True, check=True)
    assert tuple(told.stdout.split()) == found.pop()


def test_utilization_is_what_the_simulator_predicts() -> None:
    profiler, workload = profiler_of(SimulatedBackend("a100_80g")), priced_branches(count=1)
    found = profiler.model_resource_utilization(A100, workload)
    result = make_simulator("a100_80g").simulate(workload.program)
    assert found["seconds"] == result.time_seconds
    assert found["bottleneck"] == "compute"
    assert found["energy_joules"] == 400 * result.time_seconds
    assert found["throughput"] == 4096 / result.time_seconds
    assert 0 < found["bandwidth_utilization"] < found["compute_utilization"] <= 1
    assert profiler.resource_models["a100_80g", "branches"] is found
    thin = profiler.model_resource_utilization(A100, priced_branches(count=1, batch=1))
    assert thin["bottleneck"] in ("memory", "dispatch")


def test_the_memory_hierarchy_goes_from_the_units_outwards() -> None:
    profiler = profiler_of(SimulatedBackend("a100_80g"))
    levels = profiler.model_memory_hierarchy(A100)
    assert [level["level"] for level in levels] == ["L1", "L2", "memory", "host"]
    sizes = [level["capacity_bytes"] for level in levels]
    assert sizes == sorted(sizes)
    assert sizes[0] == 108 * 192 * 1024
    assert levels[2]["seconds_to_read"] == pytest.approx(80 * 2**30 / (2039e9 * 0.85))
    measured = profiler.measure_memory_hierarchy(A100)
    assert [touched for touched, _ in measured] == sorted(touched for touched, _ in measured)
    assert measured[0][1] < measured[-1][1]  # small passes are all dispatch


def nvml(**changed: Any) -> SimpleNamespace:
    """Return a library that lists one GPU, as NVIDIA's does."""

    def unknown(*_: Any) -> Any:
        raise RuntimeError("Not Supported")

    known: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: b"NVIDIA A100-SXM4-80GB",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 * 2**30),
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1410,
        "nvmlDeviceGetPowerManagementDefaultLimit": lambda handle: 400_000,
        "nvmlDeviceGetTemperature": unknown,
        "NVML_CLOCK_SM": 1,
        "NVML_TEMPERATURE_GPU": 0,
    }
    return SimpleNamespace(**{**known, **changed})


def test_a_gpu_is_found_with_what_its_driver_says_and_none_for_the_rest() -> None:
    detector = EnhancedHardwareDetector("xeon_8480plus", modules={"pynvml": nvml()}.get, system=Path("nowhere"))
    _, gpu = detector.detect()
    assert (gpu.name, gpu.memory_bytes, gpu.clock_Hz, gpu.tdp_W) == ("NVIDIA A100-SXM4-80GB", 80 * 2**30, 1.41e9, 400)
    assert gpu.temperature_C is None
    host, profile = detector.detect_hardware()
    assert (host.name, profile.name, profile.device.name) == ("host", "a100_80g-0", "a100_80g")


def test_without_libraries_and_drivers_there_is_the_processor_alone() -> None:
    def fails() -> None:
        raise RuntimeError("Driver Not Loaded")

    for modules in ({}, {"pynvml": nvml(nvmlInit=fails)}):
        nowhere = Path("nowhere")
        (processor,) = EnhancedHardwareDetector("xeon_8480plus", modules=modules.get, system=nowhere).detect()
        assert processor.hardware_class is HardwareClass.CPU
        assert (processor.num_units or 0) >= 1
        assert processor.clock_Hz is None


@pytest.mark.parametrize(
    ("name", "gib", "config"),
    [
        ("NVIDIA A100-SXM4-40GB", 40, "a100_40g"),
        ("NVIDIA H200", 141, "h200_141g_nvl8"),
        ("NVIDIA H100 80GB HBM3", 80, "h100_80g_nvl8"),
        ("Tesla T4", 16, "t4"),
        ("NVIDIA GeForce RTX 2080 Ti", 11, "rtx_2080ti"),
        ("NVIDIA GB200", 192, "gb200_nvl72"),
        ("AMD Instinct MI300X", 192, "mi300x_192g_8"),
        ("NVIDIA GeForce GTX 1080", 8, None),
    ],
)
def test_a_device_is_known_by_its_name_and_memory(name: str, gib: int, config: str | None) -> None:
    found = config_named_as(DetectedDevice(name, HardwareClass.GPU, memory_bytes=gib * 2**30))
    assert (None if found is None else found.name) == config


def test_the_processor_is_measured_when_its_profile_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minitrain.machine.devices.calibration._LOWER_RUNGS", 0.3)
    monkeypatch.setattr("minitrain.machine.devices.calibration._REPEATS", 3)
    detector = machine(tmp_path, {})
    taxonomy = EnhancedHardwareTaxonomy()
    (host,) = taxonomy.discover(detector)
    assert host.peak_flop_per_s["float32"] > 1e8
    assert host.device.sheet.num_units == detector.detect()[0].num_units
    assert taxonomy.profiles["host"] is host
    assert detector.detect_hardware()[0] == host  # measured once
    assert set(host.spread) == {"float32", "memory"}
    nearest, last = host.device.sheet.caches
    assert nearest.bytes_per_s
    assert last.bytes_per_s
    measured = (EnhancedHardwareTaxonomy().discover(machine(tmp_path, {}))[0] for _ in range(4))  # others compute too
    assert any(each.memory_bytes_per_s < 5 * (each.device.sheet.caches[-1].bytes_per_s or 0) for each in measured)


def test_rates_of_memory_are_measured_with_arrays_that_no_cache_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def noted(backend: Any, memory_bytes: int) -> Any:
        asked.append(memory_bytes)
        raise KeyboardInterrupt

    monkeypatch.setattr("minitrain.machine.heterogeneous.taxonomy.measure_rates", noted)
    small = machine(tmp_path, {})
    folder = tmp_path / "large" / "devices/system/cpu/cpu0/cache/index3"
    folder.mkdir(parents=True)
    for name, text in (("type", "Unified"), ("level", "3"), ("size", "307200K")):
        (folder / name).write_text(text)
    large = EnhancedHardwareDetector(modules=lambda name: None, system=tmp_path / "large")
    for detector in (small, large):
        with pytest.raises(KeyboardInterrupt):
            detector.host_config(replace(detector.detect()[0], memory_bytes=64 * 2**30))
    with pytest.raises(KeyboardInterrupt):
        large.host_config(replace(large.detect()[0], memory_bytes=2**30))
    assert asked == [2**27, 2 * 300 * 2**20, 2**28]  # no more than a quarter of the memory


def test_the_devices_of_a_machine_are_profiled_together() -> None:
    detector = EnhancedHardwareDetector("xeon_8480plus", modules={"pynvml": nvml()}.get, system=Path("nowhere"))
    hal = HardwareAbstractionLayer()
    hal.register_backend("host", SimulatedBackend("xeon_8480plus"))
    hal.register_backend(HardwareClass.GPU, Liar(times=3))
    profiler = ComprehensiveHardwareProfiler(detector, hal, SUITE)
    verdicts = {name: report.verdict for name, report in profiler.profile_machine().items()}
    assert verdicts == {"host": "pass", "a100_80g-0": "fail"}
    assert set(profiler.hardware_fingerprints) == set(verdicts)
