"""The comprehensive hardware profiler: a device's measured rates, the claims of its config, and its fingerprint.

A benchmark suite runs through the abstraction layer, on the backend of the device. Verification then compares it with
the claims of the device's hardware config, one verdict a claim:

| claim | fails where |
|---|---|
| it computes in a precision | the backend refuses it |
| it computes rightly | a result is not NumPy's up to rounding |
| its peak rate of a precision | less than half of what the config says that this size reaches, or more than the peak |
| its memory's bandwidth | likewise, of the largest array |

A rate above the peak fails too, since a clock, a config or a result must be wrong. A rate is too low when even the best
sample is too slow. If the best sample is not, but samples scatter by more than 15 % or their median is too slow, the
machine was busy, and the claim is *inconclusive*.

The models (`model_resource_utilization`, `model_memory_hierarchy`) use prices, and measure nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, final

from minitrain.devices.operations import Operation, matmul
from minitrain.devices.simulator import DeviceSimulator
from minitrain.errors import HardwareConfigError
from minitrain.heterogeneous.abstraction_layer import HardwareAbstractionLayer, standard_layer
from minitrain.heterogeneous.benchmark_suite import Rung, Suite, run_suite
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile
from minitrain.heterogeneous.detection import EnhancedHardwareDetector
from minitrain.heterogeneous.memory_plans import free_after_last_use
from minitrain.heterogeneous.workload_execution import key_of
from minitrain.heterogeneous.workloads import WorkloadProfile

Verdict = Literal["pass", "fail", "inconclusive"]
_LEAST_SHARE, _ABOVE_PEAK, _MOST_NOISE = 0.5, 1.05, 0.15
_CHANGING = ("name", "price_usd_per_hour")


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a hardware config, and its verdict.

    Args:
        name: what is claimed: "peak float32".
        claimed: the figure; 1 where it is a yes.
        found: what was measured, in the same unit.
        unit: of both; empty for a yes.
        verdict: "pass", "fail" or "inconclusive".
        reason: why, in words.
    """

    name: str
    claimed: float
    found: float
    unit: str
    verdict: Verdict
    reason: str


@final
@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The verdicts on the claims of a device.

    Args:
        device: its name.
        claims: one a row.
    """

    device: str
    claims: tuple[Claim, ...]

    @property
    def verdict(self) -> Verdict:
        """Fail if any claim fails, else inconclusive if any is, else pass."""
        found = {claim.verdict for claim in self.claims}
        return "fail" if "fail" in found else "inconclusive" if "inconclusive" in found else "pass"

    @property
    def failed(self) -> tuple[Claim, ...]:
        """The claims that failed."""
        return tuple(claim for claim in self.claims if claim.verdict == "fail")

    def __str__(self) -> str:
        lines = [f"{claim.name}: {claim.verdict} ({claim.reason})" for claim in self.claims]
        return "\n".join([*lines, f"{self.device}: {self.verdict}"])


class ComprehensiveHardwareProfiler:
    """Benchmarks, verifies, names and models devices.

    Args:
        detector: finds the devices of the machine at hand.
        hal: computes; the standard layer if None.
        suite: what is benchmarked.

    Attributes:
        benchmark_results: by device, what the last suite found.
        hardware_fingerprints: by device.
        resource_models: by device and workload.
    """

    def __init__(
        self,
        detector: EnhancedHardwareDetector | None = None,
        hal: HardwareAbstractionLayer | None = None,
        suite: Suite | None = None,
    ) -> None:
        self.detector = EnhancedHardwareDetector() if detector is None else detector
        self.hal = standard_layer() if hal is None else hal
        self.suite = Suite() if suite is None else suite
        self.benchmark_results: dict[str, dict[str, Any]] = {}
        self.hardware_fingerprints: dict[str, str] = {}
        self.resource_models: dict[tuple[str, str], dict[str, Any]] = {}

    def run_benchmark_suite(self, hardware_profile: HardwareCapabilityProfile) -> dict[str, Any]:
        """Benchmark a device through the abstraction layer, in each precision that its config claims.

        Returns:
            `rungs` by datatype; `flop_per_s` and `bytes_per_s`, the best of each datatype; `dispatch_s`, what a single
            element takes; `refused`, why, by datatype; `noise`, the largest of all rungs; `is_priced`, whether seconds
            are prices of a simulated device.

        Raises:
            NoBackendError: the device has no backend.
        """
        key = key_of(self.hal, hardware_profile)
        rungs, refused = run_suite(
            self.hal, key, _datatypes(hardware_profile), self.suite, hardware_profile.memory_bytes
        )
        everything = [rung for several in rungs.values() for rung in several]
        found = {
            "device": hardware_profile.name,
            "rungs": rungs,
            "flop_per_s": {name: max(rung.flop_per_s for rung in several) for name, several in rungs.items()},
            "bytes_per_s": {name: max(rung.bytes_per_s for rung in several) for name, several in rungs.items()},
            "dispatch_s": min((rung.measured.median_s for rung in everything if rung.size == 1), default=None),
            "refused": refused,
            "noise": max((rung.measured.noise for rung in everything), default=0.0),
            "is_priced": self.hal.backend(key).is_priced,
        }
        self.benchmark_results[hardware_profile.name] = found
        return found

    def verify_capabilities(self, hardware_profile: HardwareCapabilityProfile) -> VerificationReport:
        """Compare what a device does with what its config claims; runs the suite if it has not been run."""
        found = self.benchmark_results.get(hardware_profile.name) or self.run_benchmark_suite(hardware_profile)
        claims: list[Claim] = []
        for datatype in _datatypes(hardware_profile):
            claims += _claims_of(hardware_profile, datatype, found)
        return VerificationReport(hardware_profile.name, tuple(claims))

    def profile_machine(self) -> dict[str, VerificationReport]:
        """Verify and fingerprint the devices that the detector finds, by name."""
        found = self.detector.detect_hardware()
        for profile in found:
            self.generate_hardware_fingerprint(profile)
        return {profile.name: self.verify_capabilities(profile) for profile in found}

    def generate_hardware_fingerprint(self, hardware_profile: HardwareCapabilityProfile) -> str:
        """Return what identifies a kind of device: SHA-256 of its config as canonical JSON.

        Its name and its rent, which changes from day to day, are left out. So two devices of one kind have one
        fingerprint, and a config with a changed figure has another.
        """
        text = json.dumps(_plain(hardware_profile.device), sort_keys=True, separators=(",", ":"))
        fingerprint = hashlib.sha256(text.encode()).hexdigest()
        self.hardware_fingerprints[hardware_profile.name] = fingerprint
        return fingerprint

    def model_resource_utilization(
        self, hardware_profile: HardwareCapabilityProfile, workload_profile: WorkloadProfile
    ) -> dict[str, Any]:
        """Return how a workload would use a device, by prices.

        Returns:
            `seconds`; `compute_utilization` and `bandwidth_utilization`, shares of its peaks; `memory_bytes` and
            `memory_share`, the most that it holds; `bottleneck`; `energy_joules`, None where the config does not say
            what the device draws; `throughput`, samples a second.

        Raises:
            HardwareConfigError: the device has no rate for the workload's datatype.
        """
        simulator, program = hardware_profile.simulator, workload_profile.program
        result = simulator.simulate(program)
        held = free_after_last_use(workload_profile, hardware_profile.memory_bytes).peak_bytes
        moved_s = program.bytes / hardware_profile.memory_bytes_per_s
        drawn = hardware_profile.tdp_W
        found = {
            "seconds": result.time_seconds,
            "compute_utilization": result.utilization,
            "bandwidth_utilization": min(1.0, moved_s / result.time_seconds) if result.time_seconds else 0.0,
            "memory_bytes": held,
            "memory_share": held / hardware_profile.memory_bytes,
            "bottleneck": result.bottleneck,
            "energy_joules": None if drawn is None else drawn * result.time_seconds,
            "throughput": workload_profile.batch_size / result.time_seconds if result.time_seconds else 0.0,
        }
        self.resource_models[hardware_profile.name, workload_profile.workload_id] = found
        return found

    def model_memory_hierarchy(self, hardware_profile: HardwareCapabilityProfile) -> list[dict[str, Any]]:
        """Return the levels of a device's memory, from the units outwards.

        Returns:
            A level each: `level` ("L1", "memory", "host"), `capacity_bytes` of all units together, `bytes_per_s` as
            the config says, None where it does not, and `seconds_to_read`, all of it at that rate.
        """
        return list(_levels(hardware_profile))

    def measure_memory_hierarchy(self, hardware_profile: HardwareCapabilityProfile) -> list[tuple[float, float]]:
        """Return the bandwidths that the suite measured on arrays of growing size, as (bytes touched, bytes/s)."""
        found = self.benchmark_results.get(hardware_profile.name) or self.run_benchmark_suite(hardware_profile)
        rungs: Sequence[Rung] = next(iter(found["rungs"].values()), ())
        return [(rung.num_bytes, rung.bytes_per_s) for rung in rungs if rung.op_type == "multiply" and rung.size > 1]


def _plain(value: Any) -> Any:
    """Return a config's value as JSON has it, without its name and what changes from day to day."""
    if is_dataclass(value):
        names = [each.name for each in fields(value) if each.name not in _CHANGING]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _datatypes(profile: HardwareCapabilityProfile) -> list[str]:
    """Return the datatypes that a device claims and that arrays can have, the widest first."""
    known = ("float64", "float32", "float16", "bfloat16")
    return [name for name in known if any(name == precision.value for precision in profile.precisions)]


def _claims_of(profile: HardwareCapabilityProfile, datatype: str, found: Mapping[str, Any]) -> Iterator[Claim]:
    """Yield the claims about one datatype."""
    if datatype in found["refused"]:
        yield Claim(f"computes in {datatype}", 1, 0, "", "fail", f"refused: {found['refused'][datatype]}")
        return
    rungs: Sequence[Rung] = found["rungs"][datatype]
    yield Claim(f"computes in {datatype}", 1, 1, "", "pass", f"{len(rungs)} benchmarks ran")
    yield _rightness(datatype, rungs)
    products = [rung for rung in rungs if rung.op_type == "matmul"]
    passes = [rung for rung in rungs if rung.op_type == "multiply"]
    if products:
        yield _rate_claim(profile.simulator, f"peak {datatype}", max(products, key=lambda rung: rung.size), "FLOP/s")
    if passes:
        largest = max(passes, key=lambda rung: rung.size)
        yield _rate_claim(profile.simulator, f"memory bandwidth in {datatype}", largest, "B/s")


def _rightness(datatype: str, rungs: Sequence[Rung]) -> Claim:
    """Judge whether results are NumPy's."""
    worst = max(rungs, key=lambda rung: rung.error / rung.allowed_error)
    name = f"computes rightly in {datatype}"
    off = f"{worst.op_type} of {worst.size} is off by {worst.error:.2g}"
    said = f"{off}, and rounding explains {worst.allowed_error:.2g}"
    return Claim(name, worst.allowed_error, worst.error, "", "pass" if worst.is_right else "fail", said)


def _rate_claim(simulator: DeviceSimulator, name: str, rung: Rung, unit: str) -> Claim:
    """Judge a rate by what the config says that an operation of this size reaches, and by the peak."""
    is_flops = unit == "FLOP/s"
    amount = rung.flops if is_flops else rung.num_bytes
    found, noise = amount / rung.measured.median_s, rung.measured.noise
    best = amount / min(rung.measured.samples_s)
    try:
        expected = amount / simulator.predict(_operation(rung))
        peak = _peak(simulator, rung, is_flops)
    except HardwareConfigError as error:
        return Claim(name, 0.0, found, unit, "fail", str(error))
    said = f"{found:.3g} {unit}, where the config says {expected:.3g} for this size and {peak:.3g} at most"
    if found > _ABOVE_PEAK * peak:
        return Claim(name, peak, found, unit, "fail", f"{said}: faster than it can be")
    if best < _LEAST_SHARE * expected:
        return Claim(name, peak, found, unit, "fail", said)
    is_sure = noise <= _MOST_NOISE and found >= _LEAST_SHARE * expected
    return Claim(name, peak, found, unit, "pass" if is_sure else "inconclusive", f"{said}; noise {noise:.0%}")


def _operation(rung: Rung) -> Operation:
    """Return a rung as device simulators take it."""
    if rung.op_type == "matmul":
        return matmul(rung.size, rung.size, rung.size, rung.datatype)
    return Operation("multiply", rung.flops, rung.num_bytes, rung.datatype)


def _peak(simulator: DeviceSimulator, rung: Rung, is_flops: bool) -> float:
    """Return the largest rate that a config could explain, FLOP/s or bytes/s, caches included."""
    if is_flops:
        return simulator.rate_of(_operation(rung)).peak_flop_per_s
    device = simulator.spec.device
    assert device is not None  # profiles have configs
    rates = [device.mem1.GBps * 1e9]
    rates += [cache.bytes_per_s for cache in device.sheet.caches if cache.bytes_per_s]
    return max(rates)


def _levels(profile: HardwareCapabilityProfile) -> Iterator[dict[str, Any]]:
    """Yield the levels of a device's memory."""
    device, sheet = profile.device, profile.device.sheet
    for cache in sheet.caches:
        units = (sheet.num_units or 1) if cache.scope == "unit" else 1
        rate = None if cache.bytes_per_s is None else cache.bytes_per_s * units
        yield _level(f"L{cache.level}", cache.size_bytes * units, rate)
    yield _level("memory", device.mem1.capacity_bytes, device.mem1.throughput(device.mem1.capacity_bytes))
    yield _level("host", device.mem2.capacity_bytes, device.mem2.throughput(device.mem2.capacity_bytes))


def _level(name: str, capacity_bytes: int, bytes_per_s: float | None) -> dict[str, Any]:
    seconds = None if bytes_per_s is None else capacity_bytes / bytes_per_s
    return {"level": name, "capacity_bytes": capacity_bytes, "bytes_per_s": bytes_per_s, "seconds_to_read": seconds}
