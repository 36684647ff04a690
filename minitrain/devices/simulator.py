"""Predict how long a program takes on a device, from its FLOPs and bytes.

Two fidelities. `"seed"` is the specification to the last float: one roofline for the whole program at the device's peak
in single precision, times a cache factor that grows without bound with the working set. `"default"` prices each
operation by itself:

    compute = FLOPs / (peak of its datatype x what large operations reach of it x how full the device is)
    memory  = bytes x re-reading / bandwidth
    time    = sum of max(compute, memory), no less than launching the kernels takes, plus one dispatch

How full a device is depends on what it is: occupancy and waves of tiles on a GPU, filling and draining of systolic
arrays on a TPU, cores and lanes on a CPU (`devices.kinds`). Re-reading touches memory time alone: a matrix
multiplication whose operands exceed the last cache reads them again, at most as often as the best blocking for that
cache does (Hong and Kung, 1981: 2 m n k / sqrt(S) elements through a cache of S), and no more than the specification's
factor says.

Left out: kernels that run beside each other, clocks that fall under power, the first touch of data, latency of memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Any

from minitrain.devices.operations import Analysis, Operation, Program
from minitrain.devices.programs import as_program
from minitrain.devices.result import OperationTime, SimulationResult
from minitrain.devices.spec import DeviceSpec
from minitrain.errors import HardwareConfigError, UsageError
from minitrain.hardware import Rate, SystemConfig
from minitrain.hardware.data_sheet import Cache

FIDELITIES = ("default", "seed")
_SPILL_PENALTY = 0.3  # the specification's: 30 % for each size of the cache beyond it
_VECTOR_FALLBACK = ("float32", "float16")
_DOUBLE = (
    "float64",
    "complex128",
)  # between half and a sixty-fourth of single precision, so no other rate stands for it


class DeviceSimulator:
    """Predict programs on a device; subclasses say how full an operation keeps it.

    Args:
        spec: the device.
        fidelity: "default" or "seed".

    Attributes:
        ridge_point: FLOP a byte where compute and memory take equally long.

    Raises:
        UsageError: there is no such fidelity, or `spec` is no `DeviceSpec`.

    Example:
        >>> from minitrain.devices import A100_SPEC, matmul
        >>> DeviceSimulator(A100_SPEC, fidelity="seed").simulate(matmul(1024, 1024, 1024)).time_ms
        0.11012736656410257
    """

    def __init__(self, spec: DeviceSpec, fidelity: str = "default") -> None:
        if not isinstance(spec, DeviceSpec):
            raise UsageError(
                f"a device simulator takes a DeviceSpec, got {spec!r:.80}; make_simulator takes a hardware config"
            )
        self.spec = spec
        self.fidelity = _known(fidelity)
        self.ridge_point = spec.peak_fp32 / spec.bandwidth
        self._device = None if spec.device is None else spec.to_device()

    def simulate(self, ir: Any, fidelity: str | None = None) -> SimulationResult:
        """Predict performance for a program.

        Args:
            ir: a `Program`, an `Operation`, a list of operations, a closed jaxpr or an exported torch program.
            fidelity: "default" or "seed"; the simulator's own if None.

        Raises:
            UsageError: it is none of these, or there is no such fidelity.
        """
        program = as_program(ir)
        wanted = self.fidelity if fidelity is None else _known(fidelity)
        return self._simulate_whole(program) if wanted == "seed" else self._simulate_each(program)

    def predict(self, ir: Any) -> float:
        """Return how long a program takes, s; arguments and errors as for `simulate`."""
        return self.simulate(ir).time_seconds

    def analyze_ir(self, ir: Any) -> Analysis:
        """Return FLOPs, bytes and working set of a program; errors as for `simulate`."""
        return as_program(ir).analysis()

    def model_cache_effects(self, analysis: Analysis) -> float:
        """Return the specification's cache factor: 1 while the working set fits, then growing without bound."""
        if not self.spec.l2_size or analysis.working_set_bytes < self.spec.l2_size:
            return 1.0
        spillover = analysis.working_set_bytes / self.spec.l2_size
        return 1.0 + (spillover - 1.0) * _SPILL_PENALTY

    def model_occupancy(self, analysis: Analysis | Operation) -> float:  # noqa: ARG002 - subclasses look at it
        """Return the share of warps that are resident; full occupancy is assumed, as in the specification."""
        return 1.0

    def compute_utilization(self, compute_time: float, total_time: float) -> float:
        """Return the share of the time in which the units would be busy at their peak."""
        return compute_time / total_time if total_time else 0.0

    def fullness(self, operation: Operation) -> float:  # noqa: ARG002 - subclasses look at it
        """Return how full an operation keeps the device, in (0, 1]; a device of unknown kind is always full."""
        return 1.0

    def knows_fullness(self, operation: Operation) -> bool:  # noqa: ARG002
        """Return whether `fullness` makes small operations slow, so that rows by size would count that twice."""
        return False

    def _simulate_whole(self, program: Program) -> SimulationResult:
        """Predict as the specification does."""
        analysis = self.analyze_ir(program)
        compute_time = analysis.flops / (self.spec.peak_fp32 * 1e9)
        memory_time = analysis.bytes / (self.spec.bandwidth * 1e9)
        is_compute_bound = compute_time > memory_time
        total_time = max(compute_time, memory_time)
        total_time *= self.model_cache_effects(analysis) * self.model_occupancy(analysis)
        return SimulationResult(
            time_seconds=total_time,
            time_ms=total_time * 1000,
            is_compute_bound=is_compute_bound,
            utilization=self.compute_utilization(compute_time, total_time),
            bottleneck="compute" if is_compute_bound else "memory",
            flops=analysis.flops,
            bytes=analysis.bytes,
            unknown_loops=program.unknown_loops,
        )

    def _simulate_each(self, program: Program) -> SimulationResult:
        """Predict operation by operation."""
        times = tuple(map(self.operation_time, program.operations))
        busy = sum(time.total_s for time in times)
        launching = program.num_kernels * self._launch_s
        dispatch = self.dispatch_s if times else 0.0
        total = max(busy, launching) + dispatch
        by_compute = sum(time.total_s for time in times if time.bound == "compute")
        is_compute_bound = by_compute > busy - by_compute
        bottleneck = "compute" if is_compute_bound else "memory"
        return SimulationResult(
            time_seconds=total,
            time_ms=total * 1000,
            is_compute_bound=is_compute_bound,
            utilization=self.compute_utilization(self._peak_seconds(program.operations), total),
            bottleneck="dispatch" if total - busy > busy else bottleneck,
            flops=program.flops,
            bytes=program.bytes,
            operations=times,
            dispatch_s=dispatch,
            unknown_loops=program.unknown_loops,
        )

    @property
    def dispatch_s(self) -> float:
        """What a framework adds to each program it issues, s; 0 where the config does not say."""
        found = None if self._device is None else self._device.sheet.dispatch_s
        return found or 0.0

    @property
    def _launch_s(self) -> float:
        """Time between two kernels of a program, s; 0 where the config does not say."""
        kernels = None if self._device is None else self._device.kernels
        return kernels.launch_s if kernels else 0.0

    def operation_time(self, operation: Operation) -> OperationTime:
        """Return how long one run of an operation takes, split into arithmetic and traffic."""
        return OperationTime(operation, self._compute_s(operation), self._memory_s(operation))

    def _compute_s(self, operation: Operation) -> float:
        """Return the time of an operation's arithmetic."""
        if not operation.flops:
            return 0.0
        rate = self.rate_of(operation)
        if self.knows_fullness(operation):
            reached = rate.peak_flop_per_s * rate.gflops_efficiency[0][1]
        else:
            reached = rate.throughput(operation.flops)
        return operation.flops / (reached * self.fullness(operation))

    def _peak_seconds(self, operations: Iterable[Operation]) -> float:
        """Return the time that all arithmetic would take at the peak rates."""
        return sum(each.flops * each.count / self.rate_of(each).peak_flop_per_s for each in operations if each.flops)

    def rate_of(self, operation: Operation) -> Rate:
        """Return the rate that the device's config gives for an operation.

        Matrix units compute matrix multiplications and convolutions of their datatypes, vector units the rest. A
        datatype that the config does not name is computed at the rate of the nearest one that is no faster.

        Raises:
            HardwareConfigError: the config has no rate that could do it.
        """
        if self._device is None:
            return Rate(self.spec.peak_fp32 / 1e3, ((0.0, 1.0),))
        matrix, vector = self._device.matrix, self._device.vector
        names = _datatypes(operation.datatype)
        if operation.datatype in _DOUBLE:
            return self._double_rate(self._device)
        tables = (matrix, vector) if operation.kind != "other" else (vector,)
        for table in tables:
            for name in names:
                if name in table:
                    return table[name]
        found = next((table[name] for table in (vector, matrix) for name in _VECTOR_FALLBACK if name in table), None)
        if found is None:
            raise HardwareConfigError(
                f"config {self._device.name} has no rate for {operation.datatype}, nor vector.float32 to fall back on; "
                f"add vector.float32",
                datatype=operation.datatype,
            )
        return found

    def _double_rate(self, device: SystemConfig) -> Rate:
        """Return the rate in double precision.

        Raises:
            HardwareConfigError: the config has none.
        """
        found = device.vector.get("float64") or device.matrix.get("float64")
        if found is None:
            raise HardwareConfigError(
                f"config {device.name} has no rate for float64, which some devices compute 2 and others 64 times as "
                f"slowly as float32; add vector.float64, or simulate float32",
                datatype="float64",
            )
        return found

    def _memory_s(self, operation: Operation) -> float:
        """Return the time of an operation's traffic."""
        if not operation.bytes:
            return 0.0
        size = operation.bytes * self.traffic_factor(operation)
        cache = self._cache_that_holds(operation.working_set)
        if cache is not None and cache.bytes_per_s is not None:
            return size / self._cache_bandwidth(cache, cache.bytes_per_s)
        if self._device is None:
            return size / (self.spec.bandwidth * 1e9)
        return size / self._device.mem1.throughput(size)

    def _cache_that_holds(self, size_bytes: float) -> Cache | None:
        """Return the first cache whose speed is known and that holds some bytes."""
        caches = () if self._device is None else self._device.sheet.caches
        return next((each for each in caches if each.bytes_per_s and size_bytes <= self._cache_capacity(each)), None)

    def _num_units(self) -> int:
        return 1 if self._device is None else self._device.sheet.num_units or 1

    def _cache_capacity(self, cache: Cache) -> int:
        """Return what all units' caches of a level hold together."""
        return cache.size_bytes * (self._num_units() if cache.scope == "unit" else 1)

    def _cache_bandwidth(self, cache: Cache, bytes_per_s: float) -> float:
        """Return what all units' caches of a level deliver together."""
        return bytes_per_s * (self._num_units() if cache.scope == "unit" else 1)

    def traffic_factor(self, operation: Operation) -> float:
        """Return how often an operation's bytes move: 1 unless a matrix multiplication's operands exceed the cache."""
        shape, cache_bytes = operation.shape, max(self.spec.l2_size, self.spec.l3_size)
        if shape is None or not cache_bytes or operation.working_set <= cache_bytes or not operation.bytes:
            return 1.0
        elements = cache_bytes / operation.element_bytes
        blocked = 2 * shape.batch * shape.m * shape.n * shape.k / sqrt(elements) * operation.element_bytes
        unbounded = self.model_cache_effects(Analysis(operation.flops, operation.bytes, operation.working_set))
        return max(1.0, min(blocked / operation.bytes, unbounded))


def _known(fidelity: str) -> str:
    """Return a fidelity that there is."""
    if fidelity not in FIDELITIES:
        known = " or ".join(f'"{name}"' for name in FIDELITIES)
        raise UsageError(f"fidelity of a device simulator must be {known}, got {fidelity!r}", fidelity=fidelity)
    return fidelity


def _datatypes(datatype: str) -> tuple[str, ...]:
    """Return a datatype and those whose rates stand for it, the best one first."""
    stand_ins = {"bfloat16": ("float16",), "float8": ("float16",), "int8": ("float16",), "uint8": ("int8", "float16")}
    return (datatype, *stand_ins.get(datatype, ()))
