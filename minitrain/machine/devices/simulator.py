"""Predict how long a program takes on a device, from its FLOPs and bytes.

Two fidelities. `"seed"` is the specification to the last float: one roofline for the whole program at the device's peak
in single precision, times a cache factor that grows without bound with the working set. `"default"` prices each
operation by itself:

    compute = FLOPs / (peak of its datatype x what large operations reach of it x how full the device is)
    memory  = bytes x re-reading / bandwidth
    time    = sum of max(compute, memory), no less than launching the kernels takes, plus one dispatch

How full a device is depends on its kind, and on what a matrix multiplication loses there:

| kind | loses |
|---|---|
| GPU | the last wave of tiles that its first cache can stage, and occupancy where the launch of a kernel is known |
| TPU | filling and draining of systolic arrays, and dimensions that are no multiples of theirs |
| CPU | cores without work, and lanes of vectors that stay empty |
| ASIC | as a TPU where the config has `features.systolic_array`, else nothing |

Occupancy matters below what hides the latency of arithmetic, 16 warps of a multiprocessor (4 cycles, 4 schedulers: CUDA
C++ Programming Guide, multiprocessor level; Volkov, "Better performance at lower occupancy", 2010); more warps are no
faster. Bfloat16 is computed in single precision where a device has none.

A subclass's own `model_occupancy` and `model_cache_effects` multiply the time, as the specification has it, under both
fidelities. Its own `analyze_ir` is refused by default, which prices no whole programs.

A convolution counts as the matrix multiplication that it amounts to. Re-reading touches memory time alone: a matrix
multiplication whose operands exceed all caches reads them again, at most as often as the best blocking for that
cache does (Hong and Kung, 1981: 2 m n k / sqrt(S) elements through a cache of S), and no more than the specification's
factor says.

Left out: kernels that run beside each other, clocks that fall under power, the first touch of data, latency of memory,
tensor-memory traffic on a TPU, turbo clocks of a CPU, and what a compiler makes of small loops.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod, sqrt
from types import MappingProxyType
from typing import Any, Literal

from minitrain.errors import HardwareConfigError, UsageError, require_count
from minitrain.machine import Rate, SystemConfig
from minitrain.machine.device import NO_DATA_SHEET, KernelRates, Rows, UnitLimits, efficiency_at
from minitrain.machine.devices.device_spec import A100_SPEC, SPECS, DeviceSpec
from minitrain.machine.devices.operations import (
    RESERVED_SMEM_BYTES,
    Analysis,
    Operation,
    Program,
    occupancy,
    systolic_efficiency,
    vector_efficiency,
    wave_efficiency,
)
from minitrain.machine.kernel_device import TILES

Bound = Literal["compute", "memory"]
FIDELITIES = ("default", "seed")

_SPILL_PENALTY = 0.3  # the specification's: 30 % for each size of the cache beyond it
_TILE_EFFICIENCY: Rows = KernelRates(0, 0, 0, 0, {}, {}).tile_efficiency
_AMPERE = 8.0  # from this compute capability on a block reserves shared memory
_BITS = 8
_WARPS_THAT_HIDE_LATENCY = 16
_SLAB, _STAGES = 16, 2  # assumed: of k, elements of both operands that a tile stages, and how often
_STAND_INS = {"bfloat16": ("float16",), "float8": ("float16",), "int8": ("float16",), "uint8": ("int8", "float16")}
_SINGLE = "float32 matrices are multiplied in single precision, not in TF32; tf32=True says otherwise"
_DOUBLE = ("float64", "complex128")  # between 1/2 and 1/64 of single precision, so no other rate stands for it


def aligned(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> list[str]:
    """Return rows of cells as lines of text, words to the left and the columns of numbers to the right."""
    columns = [
        [
            cell.rjust(max(map(len, column))) if place in numbers else cell.ljust(max(map(len, column)))
            for cell in column
        ]
        for place, column in enumerate(zip(*rows, strict=True))
    ]
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def as_program(ir: Any) -> Program:
    """Return a program as the simulators take it.

    JAX and torch are imported where a program of theirs is read, and known by the names of their classes until then.

    Args:
        ir: a `Program`, an `Operation`, a list of operations, a closed jaxpr, a `Lowered` or `Compiled` of JAX, the
            text of an HLO module, or an exported torch program.

    Raises:
        UsageError: it is none of these.
    """
    kind = type(ir).__name__
    if isinstance(ir, Program):
        return ir
    if kind in ("ClosedJaxpr", "Jaxpr") and hasattr(ir, "jaxpr"):  # since JAX 0.12 all are closed
        from minitrain.machine.devices.jax_programs import program_of_jaxpr  # noqa: PLC0415 - JAX is heavy

        return program_of_jaxpr(ir)
    if kind in ("Lowered", "Compiled"):
        from minitrain.machine.devices.jax_programs import program_of_stage  # noqa: PLC0415 - JAX is heavy

        return program_of_stage(ir)
    if isinstance(ir, str) and ir.lstrip().startswith("HloModule"):
        from minitrain.machine.devices.jax_programs import program_of_hlo  # noqa: PLC0415 - JAX is heavy

        return program_of_hlo(ir)
    if kind == "ExportedProgram":
        from minitrain.machine.devices.torch_programs import program_of_export  # noqa: PLC0415 - torch is heavy

        return program_of_export(ir)
    operations = (ir,) if isinstance(ir, Operation) else tuple(ir) if isinstance(ir, Iterable) else (None,)
    if isinstance(ir, str) or not all(isinstance(operation, Operation) for operation in operations):
        raise UsageError(
            "a simulator takes a Program, an Operation, a list of operations, a closed jaxpr, HLO text or an exported "
            f"torch program, got {kind}; for a function use mt.hw.simulate(fn, *shapes)"
        )
    return Program(operations)


def program(fn: Any, *shapes: Any, dtype: str = "float32") -> Program:
    """Return what `mt.hw.simulate` prices; arguments and errors as there."""
    kind = type(fn)
    if any(base.__module__.startswith("torch.nn.") for base in kind.__mro__):
        raise UsageError(
            "a torch module is read from its graph: mt.hw.simulate(torch.export.export(module, (inputs,))), "
            f"got {kind.__name__}"
        )
    if callable(fn) and kind.__name__ not in ("ExportedProgram", "ClosedJaxpr", "Compiled"):
        from minitrain.machine.devices.jax_programs import program_of  # noqa: PLC0415 - JAX is heavy

        return program_of(fn, *shapes, dtype=dtype)
    found = as_program(fn)
    if shapes:
        raise UsageError(f"shapes belong to a function; {kind.__name__} says its own")
    return found


@dataclass(frozen=True, slots=True)
class OperationTime:
    """How long one operation takes on a device.

    Args:
        operation: what it is.
        compute_s: time of its arithmetic, s.
        memory_s: time of its traffic, s.
    """

    operation: Operation
    compute_s: float
    memory_s: float

    @property
    def bound(self) -> Bound:
        """What limits it."""
        return "compute" if self.compute_s > self.memory_s else "memory"

    @property
    def total_s(self) -> float:
        """Time of all its repetitions, s."""
        return max(self.compute_s, self.memory_s) * self.operation.count


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A prediction.

    Args:
        time_seconds: how long the program takes.
        time_ms: the same, ms.
        is_compute_bound: whether arithmetic takes longer than traffic.
        utilization: time of the arithmetic at the peak rate over the time that it takes.
        bottleneck: "compute", "memory", or "dispatch" where starting kernels takes longer than running them.
        flops: floating-point operations.
        bytes: read and written.
        operations: the table of operations that make it up; empty under fidelity="seed", which has none.
        dispatch_s: what issuing the program adds, s.
        unknown_loops: loops whose number of trips is not known before they run; their bodies count once, so that the
            prediction is a lower bound.
        notes: what was assumed of the program.
    """

    time_seconds: float
    time_ms: float
    is_compute_bound: bool
    utilization: float
    bottleneck: str
    flops: float = 0.0
    bytes: float = 0.0
    operations: tuple[OperationTime, ...] = field(default=(), repr=False)
    dispatch_s: float = 0.0
    unknown_loops: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def table(self, most: int = 20) -> str:
        """Return the operations that take longest, as text.

        Args:
            most: how many rows.

        Raises:
            UsageError: `most` is no whole number >= 0.
        """
        require_count("most", most, 0)
        longest = sorted(self.operations, key=lambda row: -row.total_s)[:most]
        head = ("time us", "share", "bound", "MFLOP", "MB", "runs", "operation")
        rest = len(self.operations) - len(longest)
        notes = [f"... and {rest} operations more"] if rest else []
        notes += [f"a lower bound: {loop} counts once" for loop in self.unknown_loops]
        notes += self.notes
        return "\n".join([*aligned([head, *map(self._line, longest)], numbers=(0, 1, 3, 4, 5)), *notes])

    def _line(self, row: OperationTime) -> tuple[str, ...]:
        """Return an operation's row."""
        operation, count = row.operation, row.operation.count
        share = f"{row.total_s / self.time_seconds:.1%}" if self.time_seconds else "-"
        work = f"{operation.flops * count / 1e6:.3f}", f"{operation.bytes * count / 1e6:.3f}"
        return f"{row.total_s * 1e6:.2f}", share, row.bound, *work, str(count), operation.name


class DeviceSimulator:
    """Predict programs on a device; subclasses say how full an operation keeps it.

    Args:
        spec: the device.
        fidelity: "default" or "seed".

    Attributes:
        ridge_point: FLOP a byte where compute and memory take equally long.
        dispatch_s: what a framework adds to each program it issues, s; 0 where the config does not say.

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
        self._sheet = NO_DATA_SHEET if self._device is None else self._device.sheet
        self._num_units = self._sheet.num_units or 1
        self._processor = spec.processor if self._device is None else self._device.processor
        self._own = [
            name
            for name in ("analyze_ir", "model_cache_effects", "model_occupancy")
            if getattr(type(self), name).__module__ != __name__
        ]
        self.dispatch_s = self._sheet.dispatch_s or 0.0

    def simulate(self, ir: Any, fidelity: str | None = None) -> SimulationResult:
        """Predict performance for a program.

        Args:
            ir: a `Program`, an `Operation`, a list of operations, a closed jaxpr or an exported torch program.
            fidelity: "default" or "seed"; the simulator's own if None.

        Raises:
            UsageError: it is none of these, or there is no such fidelity.
        """
        found = as_program(ir)
        wanted = self.fidelity if fidelity is None else _known(fidelity)
        return self._simulate_whole(found) if wanted == "seed" else self._simulate_each(found)

    def predict(self, ir: Any) -> float:
        """Return how long a program takes, s; arguments and errors as for `simulate`."""
        return self.simulate(ir).time_seconds

    def analyze_ir(self, ir: Any) -> Analysis:
        """Return FLOPs, bytes and working set of a program; errors as for `simulate`."""
        return as_program(ir).analysis()

    def model_cache_effects(self, analysis: Analysis) -> float:
        """Return the specification's cache factor: 1 while the working set fits, then growing without bound."""
        return self._spilled(analysis)

    def _spilled(self, analysis: Analysis) -> float:
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

    def _simulate_whole(self, whole: Program) -> SimulationResult:
        """Predict as the specification does.

        Raises:
            UsageError: the program is one of several devices.
        """
        if any(operation.collective for operation in whole.operations):
            raise UsageError('fidelity="seed" knows no networks, and the program has collectives; use the default')
        analysis = self.analyze_ir(whole)
        compute_time = analysis.flops / (self.spec.peak_fp32 * 1e9)
        memory_time = analysis.bytes / (self.spec.bandwidth * 1e9)
        total_time = max(compute_time, memory_time)
        total_time *= self.model_cache_effects(analysis) * self.model_occupancy(analysis)
        bound: Bound = "compute" if compute_time > memory_time else "memory"
        return self._result(whole, total_time, compute_time, bound, bound)

    def _simulate_each(self, whole: Program) -> SimulationResult:
        """Predict operation by operation.

        Raises:
            UsageError: a subclass counts programs by `analyze_ir`.
        """
        if "analyze_ir" in self._own:
            raise UsageError(
                f"{type(self).__name__}.analyze_ir counts a whole program, and the default fidelity prices its "
                'operations one by one; use fidelity="seed", or give operations'
            )
        times = tuple(map(self.operation_time, whole.operations))
        busy = sum(time.total_s for time in times) * self._own_factors(whole)
        kernels = None if self._device is None else self._device.kernels
        launching = whole.num_kernels * (kernels.launch_s if kernels else 0.0)
        dispatch = self.dispatch_s if times else 0.0
        total = max(busy, launching) + dispatch
        by_compute = sum(time.total_s for time in times if time.bound == "compute")
        bound: Bound = "compute" if by_compute > busy - by_compute else "memory"
        peak = sum(
            each.flops * each.count / self.rate_of(each).peak_flop_per_s for each in whole.operations if each.flops
        )
        bottleneck = "dispatch" if total - busy > busy else bound
        has_single = any(each.kind != "other" and each.datatype == "float32" for each in whole.operations)
        notes: tuple[str, ...] = (_SINGLE,) if has_single and self._tf32() is not None else ()
        notes += tuple(f"not counted, since the host does it: {name}" for name in dict.fromkeys(whole.on_host))
        return self._result(whole, total, peak, bound, bottleneck, operations=times, dispatch_s=dispatch, notes=notes)

    def _own_factors(self, whole: Program) -> float:
        """Return by what the hooks of a subclass multiply the time."""
        analysis = whole.analysis()
        return float(prod(getattr(self, name)(analysis) for name in self._own))

    def _result(
        self, whole: Program, total_s: float, compute_s: float, bound: Bound, bottleneck: str, **more: Any
    ) -> SimulationResult:
        return SimulationResult(
            time_seconds=total_s,
            time_ms=total_s * 1000,
            is_compute_bound=bound == "compute",
            utilization=self.compute_utilization(compute_s, total_s),
            bottleneck=bottleneck,
            flops=whole.flops,
            bytes=whole.bytes,
            unknown_loops=whole.unknown_loops,
            **more,
        )

    def operation_time(self, operation: Operation) -> OperationTime:
        """Return how long one run of an operation takes, split into arithmetic and traffic, in memory or network.

        Raises:
            HardwareConfigError: it is a collective, and the device has no network for so many.
        """
        if operation.collective is not None:
            op, num_devices = operation.collective
            if self._device is None:
                raise HardwareConfigError(f"{self.spec.name} has no network for {op}; use a hardware config")
            return OperationTime(
                operation, 0.0, self._device.network(num_devices).time(op, operation.bytes, num_devices)
            )
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

    def rate_of(self, operation: Operation) -> Rate:
        """Return the rate that the device's config gives for an operation.

        Matrix units compute matrix multiplications and convolutions of their datatypes, vector units the rest. A
        datatype that the config does not name is computed at the rate of the nearest one that is no faster.

        Raises:
            HardwareConfigError: the config has no rate that could do it.
        """
        matrix, vector = self._processor.matrix, self._processor.vector
        datatype, remedy = operation.datatype, ", nor vector.float32 to fall back on; add vector.float32"
        if datatype == "tf32":
            found = self._tf32() if operation.kind != "other" else vector.get("float32")
            if found is None:
                raise HardwareConfigError(f"config {self.spec.name} has no matrix.tf32; add it, or use float32")
            return found
        if datatype == "bfloat16" and not self.spec.has_bfloat16:
            datatype = "bfloat16" if datatype in matrix or datatype in vector else "float32"
        names: tuple[str, ...] = (datatype, *_STAND_INS.get(datatype, ()))
        units = [vector] if operation.kind == "other" else [matrix, vector]
        rates = [unit.get(name) for unit in units for name in names]
        rates += [unit.get(name) for unit in (vector, matrix) for name in ("float32", "float16")]
        if datatype in _DOUBLE:
            datatype, remedy = (
                "float64",
                (
                    ", which some devices compute 2 and others 64 times as slowly as float32; add vector.float64, or "
                    "simulate float32"
                ),
            )
            rates = [vector.get(datatype), matrix.get(datatype)]
        found = next((rate for rate in rates if rate is not None), None)
        if found is None:
            raise HardwareConfigError(f"config {self.spec.name} has no rate for {datatype}{remedy}", datatype=datatype)
        return found

    def _tf32(self) -> Rate | None:
        """Return the rate of tensor cores for float32: half of float16's from Ampere on, where none is stated."""
        matrix, capability = self._processor.matrix, self._sheet.features.get("compute_capability", 0)
        half = matrix.get("float16") if float(str(capability)) >= _AMPERE else None
        return matrix.get("tf32") or (half and replace(half, tflops=half.tflops / 2))

    def _memory_s(self, operation: Operation) -> float:
        """Return the time of an operation's traffic: in the first cache whose speed is known and that holds it."""
        if not operation.bytes:
            return 0.0
        size = operation.bytes * self.traffic_factor(operation)
        for cache in self._sheet.caches:
            num_caches = self._num_units if cache.scope == "unit" else 1
            if cache.bytes_per_s and operation.working_set <= cache.size_bytes * num_caches:
                return size / (cache.bytes_per_s * num_caches)
        return size / (self.spec.bandwidth * 1e9 if self._device is None else self._device.mem1.throughput(size))

    def traffic_factor(self, operation: Operation) -> float:
        """Return how often an operation's bytes move: 1 unless a matrix multiplication's operands exceed the cache."""
        shape, spec = operation.shape, self.spec
        cache_bytes = self._num_units * spec.l1_size + spec.l2_size + spec.l3_size  # levels hold different data
        if shape is None or not cache_bytes or operation.working_set <= cache_bytes or not operation.bytes:
            return 1.0
        elements = cache_bytes / operation.element_bytes
        blocked = shape.flops / sqrt(elements) * operation.element_bytes
        unbounded = self._spilled(Analysis(operation.flops, operation.bytes, operation.working_set))
        return max(1.0, min(blocked / operation.bytes, unbounded))


def _known(fidelity: str) -> str:
    """Return a fidelity that there is."""
    if fidelity not in FIDELITIES:
        known = " or ".join(f'"{name}"' for name in FIDELITIES)
        raise UsageError(f"fidelity of a device simulator must be {known}, got {fidelity!r}", fidelity=fidelity)
    return fidelity


class GpuSimulator(DeviceSimulator):
    """A GPU: tiles on multiprocessors, in waves.

    Args:
        spec: the device.
        fidelity: "default" or "seed".
        sm_count: multiprocessors; those of the spec's config if None.
        limits: of one multiprocessor; those of the spec's config if None.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        fidelity: str = "default",
        *,
        sm_count: int | None = None,
        limits: UnitLimits | None = None,
    ) -> None:
        super().__init__(spec, fidelity)
        self.sm_count = sm_count or self._sheet.num_units
        self.limits = limits or self._sheet.limits
        capability = self._sheet.features.get("compute_capability", _AMPERE)
        self.reserved_smem_bytes = RESERVED_SMEM_BYTES if float(str(capability)) >= _AMPERE else 0

    def knows_fullness(self, operation: Operation) -> bool:
        """Return whether tiles can be counted."""
        return operation.shape is not None and self.sm_count is not None

    def fullness(self, operation: Operation) -> float:
        """Return occupancy times waves: the best over all sizes of tile, of which small ones are less efficient.

        Raises:
            UsageError: no block of the operation's launch fits on a multiprocessor.
        """
        hidden, shape, units = self._hidden_latency(operation), operation.shape, self.sm_count
        if shape is None or units is None:
            return hidden
        staged_bytes = _SLAB * _STAGES * operation.element_bytes
        tiles = [tile for tile in TILES if sum(tile) * staged_bytes <= self.spec.l1_size] or TILES[-1:]
        return hidden * max(
            wave_efficiency(shape.m, shape.n, units, tile, shape.batch)
            * efficiency_at(_TILE_EFFICIENCY, tile[0] * tile[1], 1)
            for tile in tiles
        )

    def model_occupancy(self, analysis: Analysis | Operation) -> float:
        """Return the occupancy of an operation whose launch is known; 1 otherwise, as the specification has it."""
        launch = analysis.launch if isinstance(analysis, Operation) else None
        if launch is None or self.limits is None:
            return 1.0
        return occupancy(launch, self.limits, self.reserved_smem_bytes)

    def _hidden_latency(self, operation: Operation) -> float:
        """Return the share of the arithmetic rate that the resident warps reach."""
        if operation.launch is None or self.limits is None:
            return 1.0
        warps = GpuSimulator.model_occupancy(self, operation) * self.limits.warps
        return min(1.0, warps / _WARPS_THAT_HIDE_LATENCY)


class NvidiaA100Simulator(GpuSimulator):
    """The specification's A100, with its literal numbers.

    Args:
        fidelity: "default" or "seed".

    Example:
        >>> from minitrain.devices import matmul
        >>> NvidiaA100Simulator().simulate(matmul(2048, 2048, 2048), fidelity="seed").time_ms
        0.9338800684635898
    """

    def __init__(self, fidelity: str = "default") -> None:
        super().__init__(A100_SPEC, fidelity, sm_count=108, limits=UnitLimits(64, 32, 65536, 164 * 1024))


class TpuSimulator(DeviceSimulator):
    """A TPU, or another accelerator: systolic arrays that fill and drain."""

    def knows_fullness(self, operation: Operation) -> bool:
        """Return whether the arrays are known."""
        return operation.shape is not None and self._array() is not None

    def fullness(self, operation: Operation) -> float:
        """Return the share of the arrays' cycles that multiply."""
        shape, array = operation.shape, self._array()
        return 1.0 if shape is None or array is None else systolic_efficiency(shape, array, self._num_units)

    def _array(self) -> tuple[int, int] | None:
        """Return rows and columns of one array, if the config says so."""
        found = self._sheet.features.get("systolic_array")
        return (int(found[0]), int(found[1])) if isinstance(found, tuple) and len(found) == 2 else None


class AsicSimulator(TpuSimulator):
    """Any other accelerator: systolic arrays where the config has them, else a roofline."""


class CpuSimulator(DeviceSimulator):
    """A CPU: cores with vector units. Its rows by size say what small operations lose beside that."""

    def fullness(self, operation: Operation) -> float:
        """Return the share of cores and lanes that work."""
        bits = self._sheet.features.get("vector_bits")
        if operation.shape is None or not isinstance(bits, int | float):
            return 1.0
        lanes = max(1, int(bits) // (_BITS * operation.element_bytes))
        return vector_efficiency(operation.shape, self._num_units, lanes)


SIMULATORS: Mapping[str, type[DeviceSimulator]] = MappingProxyType(
    {"gpu": GpuSimulator, "tpu": TpuSimulator, "cpu": CpuSimulator, "asic": AsicSimulator, "mcu": CpuSimulator}
)
"""The simulator of each class of device."""


def make_simulator(
    device: str | SystemConfig | DeviceSpec | DeviceSimulator, fidelity: str = "default"
) -> DeviceSimulator:
    """Return the simulator for a device.

    Args:
        device: a hardware config's name, path or value, a named spec ("NVIDIA A100"), a `DeviceSpec`, or a simulator,
            which is returned as it is.
        fidelity: "default" or "seed".

    Raises:
        HardwareConfigError: the config cannot be found or read, or is invalid.
        UsageError: it is none of these, or there is no such fidelity.
    """
    if isinstance(device, DeviceSimulator):
        return device
    if isinstance(device, str) and device in SPECS:
        device = SPECS[device]
    if device == A100_SPEC:
        return NvidiaA100Simulator(fidelity)
    spec = device if isinstance(device, DeviceSpec) else DeviceSpec.from_device(device)
    device_class = None if spec.device is None else spec.device.sheet.device_class
    return SIMULATORS.get(device_class or "", DeviceSimulator)(spec, fidelity)


class HostWorkWarning(UserWarning):
    """A program calls the host, or sends arrays to it."""


class UnknownLoopWarning(UserWarning):
    """A program has a loop whose number of trips is not known before it runs."""


def simulate(
    fn: Any,
    *shapes: Any,
    device: Any = "a100_80g",
    dtype: str = "float32",
    fidelity: str = "default",
    tf32: bool = False,
) -> SimulationResult:
    """Predict how long a program takes on a device, with the table of operations that make it up.

    Args:
        fn: a JAX function; or what needs no shapes: operations, a closed jaxpr, an exported torch program.
        shapes: of the function's arguments: tuples of sizes, `jax.ShapeDtypeStruct`, arrays, or trees of these.
        device: a hardware config's name, path or value, "NVIDIA A100" (the specification's), a `DeviceSpec`, or a
            simulator.
        dtype: of the arguments that are given by their sizes alone.
        fidelity: "default", or "seed" for the specification to the last float.
        tf32: whether tensor cores multiply float32 matrices, as JAX and torch may let them from Ampere on.

    Raises:
        UsageError: the function cannot be traced with these shapes, or a parameter is outside its rule.
        HardwareConfigError: the device's config cannot be found or read, is invalid, or has no rate for TF32.

    Warns:
        UnknownLoopWarning: a loop's number of trips depends on data; it counts once.
        HostWorkWarning: callbacks and transfers to the host are not counted.

    Example:
        >>> simulate(lambda x, w: x @ w, (1024, 1024), (1024, 1024), device="NVIDIA A100", fidelity="seed").time_ms
        0.11012736656410257
    """
    simulator = make_simulator(device, fidelity)
    found = program(fn, *shapes, dtype=dtype)
    for loop in found.unknown_loops:
        warnings.warn(f"{loop} counts once, so that the prediction is a lower bound", UnknownLoopWarning, stacklevel=2)
    for name in dict.fromkeys(found.on_host):
        warnings.warn(f"{name} is done by the host, which is not counted", HostWorkWarning, stacklevel=2)
    return simulator.simulate(_in_tf32(found) if tf32 else found, fidelity)


def _in_tf32(found: Program) -> Program:
    """Return a program whose float32 matrices are multiplied in TF32."""
    return replace(
        found,
        operations=tuple(
            replace(each, datatype="tf32") if each.kind != "other" and each.datatype == "float32" else each
            for each in found.operations
        ),
    )
