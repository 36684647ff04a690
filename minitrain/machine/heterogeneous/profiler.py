"""The comprehensive hardware profiler: a device's measured rates, the claims of its config, and its fingerprint.

A benchmark suite runs through the abstraction layer, on the backend of the device. Each datatype has three series:
square matrix multiplications, scalings of arrays of many sizes (which some level of the memory hierarchy limits), and a
scaling of one element, whose time is dispatch alone. Seconds are those of the layer: measured for backends that compute
on this machine, prices for simulated ones. A sample is one call. A benchmark's time is the median of its samples, and
its noise their interquartile range over the median. Results are compared with NumPy's in double precision. The numbers
have random signs, so that a backend that is quick because it computes something else has large errors.

Verification compares what was found with the claims of the device's hardware config, one verdict a claim:

| claim | fails where |
|---|---|
| it computes in a precision | the backend refuses it |
| it computes rightly | a result is not NumPy's up to rounding |
| its peak rate of a precision | less than half of what the config says that this size reaches, or more than the peak |
| its memory's bandwidth | likewise, of the largest array |

A rate above the peak fails too, since a clock, a config or a result must be wrong. A rate is too low when even the best
sample is too slow. If the best sample is not, but samples scatter by more than 15 % or their median is too slow, the
machine was busy, and the claim is *inconclusive*. So it is where the claim itself was measured with such a spread.

The models (`model_resource_utilization`, `model_memory_hierarchy`) use prices, and measure nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from minitrain.errors import HardwareConfigError, MinitrainError
from minitrain.machine.devices.calibration import Measured
from minitrain.machine.devices.operations import ELEMENT_BYTES, Operation
from minitrain.machine.devices.simulator import DeviceSimulator
from minitrain.machine.heterogeneous.abstraction_layer import HardwareAbstractionLayer, standard_layer
from minitrain.machine.heterogeneous.operations import datatype_named
from minitrain.machine.heterogeneous.taxonomy import EnhancedHardwareDetector, HardwareCapabilityProfile, Key
from minitrain.machine.heterogeneous.workloads import WorkloadProfile, free_after_last_use

Verdict = Literal["pass", "fail", "inconclusive"]
_LEAST_SHARE, _ABOVE_PEAK, _MOST_NOISE = 0.5, 1.05, 0.15
_CHANGING = ("name", "price_usd_per_hour")
_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Of the datatypes that arrays can have, the widest first."""
_ALLOWED_ROUNDOFFS = 8.0


@dataclass(frozen=True, slots=True)
class Rung:
    """One benchmark.

    Args:
        size: rows of the matrices, or elements of the array.
        cost: of a call: what was computed, its FLOPs and bytes, and in which datatype.
        measured: the samples, s.
        error: largest difference from NumPy's result, as a share of the largest element that could be.
        allowed_error: what rounding in this datatype explains.
    """

    size: int
    cost: Operation
    measured: Measured
    error: float
    allowed_error: float

    @property
    def op_type(self) -> str:
        """What was computed: "matmul" or "multiply"."""
        return "matmul" if self.cost.kind == "matmul" else self.cost.name

    @property
    def flop_per_s(self) -> float:
        """The rate of arithmetic, FLOP/s."""
        return self.cost.flops / self.measured.median_s

    @property
    def bytes_per_s(self) -> float:
        """The rate of traffic, bytes/s."""
        return self.cost.bytes / self.measured.median_s

    @property
    def is_right(self) -> bool:
        """Whether the result is NumPy's, up to rounding."""
        return self.error <= self.allowed_error


@dataclass(frozen=True, slots=True)
class Suite:
    """What is benchmarked.

    Args:
        matmul_sizes: rows of square matrices.
        stream_elements: elements of arrays that are scaled.
        num_samples: calls of each, after one that warms up.
        seed: of the numbers.
    """

    matmul_sizes: tuple[int, ...] = (64, 256, 512)
    stream_elements: tuple[int, ...] = (2**12, 2**16, 2**20, 2**22)
    num_samples: int = 5
    seed: int = 0

    def rungs(self, hal: HardwareAbstractionLayer, key: Key, datatype: str, capacity_bytes: int) -> list[Rung]:
        """Benchmark a backend in one datatype.

        Args:
            hal: whose backend.
            key: under which it is registered.
            datatype: what to compute in.
            capacity_bytes: of the device's memory; what does not fit is left out, but for the smallest of each series.

        Raises:
            MinitrainError: the backend refuses the datatype.
        """
        random = np.random.default_rng(self.seed)
        room = capacity_bytes / ELEMENT_BYTES[datatype] / 3  # elements of each of three arrays

        def signs(*shape: int) -> NDArray[Any]:
            """Return random numbers from 1/2 to 1 with random signs."""
            numbers = random.uniform(0.5, 1, shape) * random.choice([-1, 1], shape)
            return np.asarray(numbers.astype(datatype_named(datatype)))

        found = []
        for size in [each for each in self.matmul_sizes if each**2 <= room] or self.matmul_sizes[:1]:
            found.append(self._rung(hal, key, "matmul", signs(size, size), signs(size, size)))
        for size in (1, *([each for each in self.stream_elements if each <= room] or self.stream_elements[:1])):
            found.append(self._rung(hal, key, "multiply", signs(size), 1.5))
        return found

    def _rung(self, hal: HardwareAbstractionLayer, key: Key, op_type: str, x: NDArray[Any], y: Any) -> Rung:
        """Return one rung: operands lie on the backend before it is timed."""
        placed = {"x": hal.put(x, key), "y": y if isinstance(y, float) else hal.put(y, key)}
        first = hal.execute_on(key, op_type, placed)
        samples = tuple(hal.execute_on(key, op_type, placed).seconds for _ in range(self.num_samples))
        summed = math.sqrt(x.shape[-1]) if op_type == "matmul" else 1.0  # the scale of a sum of random signs
        x, y, got = (np.asarray(each, dtype=np.float64) for each in (x, y, first.result.numpy()))
        expected = x @ y if op_type == "matmul" else x * y
        error = float(np.max(np.abs(got - expected))) / summed if got.shape == expected.shape else math.inf
        allowed = _ALLOWED_ROUNDOFFS * _ROUNDOFF[first.cost.datatype] * summed
        return Rung(len(x), first.cost, Measured(samples), error if math.isfinite(error) else math.inf, allowed)


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
        key, capacity = self.hal.key_of(hardware_profile), hardware_profile.memory_bytes
        rungs: dict[str, list[Rung]] = {}
        refused: dict[str, str] = {}
        for datatype in _datatypes(hardware_profile):
            try:
                rungs[datatype] = self.suite.rungs(self.hal, key, datatype, capacity)
            except MinitrainError as error:
                refused[datatype] = str(error)
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
        found = self._benchmarked(hardware_profile)
        datatypes = _datatypes(hardware_profile)
        claims = tuple(each for datatype in datatypes for each in _claims_of(hardware_profile, datatype, found))
        return VerificationReport(hardware_profile.name, claims)

    def _benchmarked(self, hardware_profile: HardwareCapabilityProfile) -> dict[str, Any]:
        return self.benchmark_results.get(hardware_profile.name) or self.run_benchmark_suite(hardware_profile)

    def profile_machine(self) -> dict[str, VerificationReport]:
        """Verify and fingerprint the devices that the detector finds, by name."""
        found = self.detector.detect_hardware()
        for profile in found:
            self.generate_hardware_fingerprint(profile)
        return {profile.name: self.verify_capabilities(profile) for profile in found}

    def generate_hardware_fingerprint(self, hardware_profile: HardwareCapabilityProfile) -> str:
        """Return what identifies a device: SHA-256 of canonical JSON.

        Of a device of this machine, that of the facts that its system states, which measuring does not change. Of
        others, that of the config, without its name and its rent, which changes from day to day: two devices of one
        kind have one fingerprint, and a config with a changed figure has another.
        """
        detected = hardware_profile.detected
        known = _plain(hardware_profile.device) if detected is None else detected.facts
        text = json.dumps(known, sort_keys=True, separators=(",", ":"))
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
        device, sheet = hardware_profile.device, hardware_profile.device.sheet
        levels: list[tuple[str, int, float | None]] = []
        for cache in sheet.caches:
            units = (sheet.num_units or 1) if cache.scope == "unit" else 1
            rate = None if cache.bytes_per_s is None else cache.bytes_per_s * units
            levels.append((f"L{cache.level}", cache.size_bytes * units, rate))
        for name, memory in (("memory", device.mem1), ("host", device.mem2)):
            levels.append((name, memory.capacity_bytes, memory.throughput(memory.capacity_bytes)))
        return [
            {
                "level": name,
                "capacity_bytes": capacity,
                "bytes_per_s": rate,
                "seconds_to_read": None if rate is None else capacity / rate,
            }
            for name, capacity, rate in levels
        ]

    def measure_memory_hierarchy(self, hardware_profile: HardwareCapabilityProfile) -> list[tuple[float, float]]:
        """Return the bandwidths that the suite measured on arrays of growing size, as (bytes touched, bytes/s)."""
        rungs: Sequence[Rung] = next(iter(self._benchmarked(hardware_profile)["rungs"].values()), ())
        return [(rung.cost.bytes, rung.bytes_per_s) for rung in rungs if rung.op_type == "multiply" and rung.size > 1]


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
    claimed = {precision.value for precision in profile.precisions}
    return [name for name in _ROUNDOFF if name in claimed]


def _claims_of(profile: HardwareCapabilityProfile, datatype: str, found: Mapping[str, Any]) -> Iterator[Claim]:
    """Yield the claims about one datatype."""
    if datatype in found["refused"]:
        yield Claim(f"computes in {datatype}", 1, 0, "", "fail", f"refused: {found['refused'][datatype]}")
        return
    rungs: Sequence[Rung] = found["rungs"][datatype]
    yield Claim(f"computes in {datatype}", 1, 1, "", "pass", f"{len(rungs)} benchmarks ran")
    worst = max(rungs, key=lambda rung: rung.error / rung.allowed_error)
    said = (
        f"{worst.op_type} of {worst.size} is off by {worst.error:.2g}, and rounding explains {worst.allowed_error:.2g}"
    )
    verdict: Verdict = "pass" if worst.is_right else "fail"
    yield Claim(f"computes rightly in {datatype}", worst.allowed_error, worst.error, "", verdict, said)
    for op_type, name, unit in (("matmul", "peak", "FLOP/s"), ("multiply", "memory bandwidth in", "B/s")):
        series = [rung for rung in rungs if rung.op_type == op_type]
        if series:
            largest = max(series, key=lambda rung: rung.size)
            claim = _rate_claim(profile.simulator, f"{name} {datatype}", largest, unit)
            spread = profile.spread.get(datatype if op_type == "matmul" else "memory", 0.0)
            said = f"{claim.reason}; what is claimed was measured with a spread of {spread:.0%}"
            yield replace(claim, verdict="inconclusive", reason=said) if spread > _MOST_NOISE else claim


def _rate_claim(simulator: DeviceSimulator, name: str, rung: Rung, unit: str) -> Claim:
    """Judge a rate by what the config says that an operation of this size reaches, and by the peak."""
    amount = rung.cost.flops if unit == "FLOP/s" else rung.cost.bytes
    found, noise = amount / rung.measured.median_s, rung.measured.noise
    best = amount / min(rung.measured.samples_s)
    try:
        expected, peak = amount / simulator.predict(rung.cost), _peak(simulator, rung.cost, unit)
    except HardwareConfigError as error:
        return Claim(name, 0.0, found, unit, "fail", str(error))
    said = f"{found:.3g} {unit}, where the config says {expected:.3g} for this size and {peak:.3g} at most"
    if found > _ABOVE_PEAK * peak:
        return Claim(name, peak, found, unit, "fail", f"{said}: faster than it can be")
    if best < _LEAST_SHARE * expected:
        return Claim(name, peak, found, unit, "fail", said)
    is_sure = noise <= _MOST_NOISE and found >= _LEAST_SHARE * expected
    return Claim(name, peak, found, unit, "pass" if is_sure else "inconclusive", f"{said}; noise {noise:.0%}")


def _peak(simulator: DeviceSimulator, cost: Operation, unit: str) -> float:
    """Return the largest rate that a config could explain, FLOP/s or bytes/s, caches included."""
    if unit == "FLOP/s":
        return simulator.rate_of(cost).peak_flop_per_s
    device = simulator.spec.device
    assert device is not None  # profiles have configs
    return max([device.mem1.GBps * 1e9, *(cache.bytes_per_s or 0.0 for cache in device.sheet.caches)])
