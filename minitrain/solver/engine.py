"""The solver: how long an inference of a model takes on a system, by the iron law, and what limits it.

    latency = max(ops / (peak x efficiency), weights / bandwidth) + dispatch tax

A batch shares one pass over the weights. Left out: activations, the cache of keys and values, communication.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import UsageError
from minitrain.solver.constants import BYTES_FP16, BYTES_FP32, BYTES_INT8, ureg
from minitrain.solver.formulas import calc_bottleneck
from minitrain.solver.models import ModelSpec
from minitrain.solver.systems import Hardware, SystemArchetype

if TYPE_CHECKING:
    from minitrain.solver.explanation import SolverExplanation

PRECISIONS = ("fp32", "fp16", "int8")


class PrecisionFallbackWarning(UserWarning):
    """A device states no peak for a precision, and the one for half precision was used."""


@final
@dataclass(frozen=True, slots=True)
class Case:
    """What was solved: the parameters of `Engine.solve`."""

    model: ModelSpec
    system: SystemArchetype
    batch_size: int
    precision: str
    efficiency: float

    def solve(self) -> PerformanceProfile:
        """Solve it, without a warning: the first solution has warned."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionFallbackWarning)
            return Engine.solve(self.model, self.system, self.batch_size, self.precision, self.efficiency)


@final
@dataclass(frozen=True, slots=True)
class PerformanceProfile:
    """The result of a system simulation; all but `bottleneck` and `feasible` are pint quantities.

    Args:
        latency: of the whole batch.
        latency_compute: time of the arithmetic.
        latency_memory: time of reading the weights.
        latency_overhead: the dispatch tax.
        throughput: inferences a second.
        bottleneck: "Compute" or "Memory".
        arithmetic_intensity: FLOP a byte of weights.
        energy: rated power times latency; 0 J where no power is given.
        memory_footprint: the weights.
        peak_flops_actual: peak times efficiency.
        peak_bw_actual: bandwidth of the memory.
        feasible: whether the weights fit.
        case: what was solved.
    """

    latency: Any
    latency_compute: Any
    latency_memory: Any
    latency_overhead: Any
    throughput: Any
    bottleneck: str
    arithmetic_intensity: Any
    energy: Any
    memory_footprint: Any
    peak_flops_actual: Any
    peak_bw_actual: Any
    feasible: bool
    case: Case | None = field(default=None, repr=False, compare=False)

    def explain(self) -> SolverExplanation:
        """Return in words which wall was hit, and what would move it."""
        from minitrain.solver.explanation import explain  # noqa: PLC0415 - only when somebody asks

        return explain(self)


class Engine:
    """The unified solver for trade-offs of ML systems."""

    @staticmethod
    def solve(
        model: ModelSpec,
        system: SystemArchetype,
        batch_size: int = 1,
        precision: str = "fp16",
        efficiency: float = 0.5,
    ) -> PerformanceProfile:
        """Return how a model performs on a system.

        Args:
            model: what is computed.
            system: where.
            batch_size: inferences at a time.
            precision: "fp32", "fp16" or "int8".
            efficiency: share of the peak rate that is reached, in (0, 1].

        Raises:
            UsageError: a parameter is outside its rule.

        Warns:
            PrecisionFallbackWarning: the device states no peak for the precision.
        """
        _require_specs(model, system)
        _require(batch_size, precision, efficiency)
        hardware = system.hardware
        bytes_per_parameter, peak_flops = _precision(hardware, precision)
        size = model.size_in_bytes(bytes_per_parameter)
        reached = peak_flops * efficiency
        found = calc_bottleneck(model.flops * batch_size, size, reached, hardware.memory_bw)
        compute, memory = found["compute_ms"] * ureg.ms, found["memory_ms"] * ureg.ms
        latency = max(compute, memory) + hardware.dispatch_tax
        return PerformanceProfile(
            latency=latency,
            latency_compute=compute,
            latency_memory=memory,
            latency_overhead=hardware.dispatch_tax,
            throughput=(batch_size / latency).to(1 / ureg.second),
            bottleneck=found["bottleneck"],
            arithmetic_intensity=found["intensity"] * (ureg.flop / ureg.byte),
            energy=(hardware.tdp * latency).to(ureg.joule) if hardware.tdp else 0 * ureg.joule,
            memory_footprint=size,
            peak_flops_actual=reached,
            peak_bw_actual=hardware.memory_bw,
            feasible=bool(size <= system.ram),
            case=Case(model, system, batch_size, precision, efficiency),
        )


def _require_specs(model: Any, system: Any) -> None:
    """Raise a UsageError unless what is solved is a model and a system."""
    for value, kind in ((model, ModelSpec), (system, SystemArchetype)):
        if not isinstance(value, kind):
            raise UsageError(f"Engine.solve takes a {kind.__name__}, got {value!r:.80}; mt.solve takes names too")


def _require(batch_size: Any, precision: Any, efficiency: Any) -> None:
    """Raise a UsageError unless the parameters are within their rules."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
        raise UsageError(f"batch_size must be a whole number >= 1, got {batch_size!r}", batch_size=batch_size)
    if precision not in PRECISIONS:
        known = ", ".join(f'"{name}"' for name in PRECISIONS)
        raise UsageError(f"precision must be one of {known}, got {precision!r}", precision=precision)
    is_number = isinstance(efficiency, int | float) and not isinstance(efficiency, bool)
    if not is_number or not 0 < efficiency <= 1 or not math.isfinite(efficiency):
        raise UsageError(
            f"efficiency is a share of the peak in (0, 1], got {efficiency!r}; 0.5 is the default",
            efficiency=efficiency,
        )


def _precision(hardware: Hardware, precision: str) -> tuple[Any, Any]:
    """Return the bytes of a parameter and the peak rate for a precision; half precision's where none is given."""
    size, peak = {
        "fp32": (BYTES_FP32, hardware.peak_flops_fp32),
        "fp16": (BYTES_FP16, hardware.peak_flops),
        "int8": (BYTES_INT8, hardware.int8_flops),
    }[precision]
    if peak:
        return size, peak
    warnings.warn(
        f"{hardware.name} states no peak rate for {precision}; that for fp16 is used",
        PrecisionFallbackWarning,
        stacklevel=3,
    )
    return size, hardware.peak_flops
