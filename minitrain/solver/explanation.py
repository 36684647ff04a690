"""A profile in words: which wall was hit, and what would move it, each with the latency that it would give."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.solver.constants import ureg

Case = Any
"""An `engine.Case`: what was solved, and can be solved again with something changed."""

PerformanceProfile = Any
"""An `engine.PerformanceProfile`."""


@final
@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that could be changed.

    Args:
        what: the change.
        latency_ms: of an inference, with the change: the batch's latency over the batch size.
        speedup: today's latency of an inference over that.
    """

    what: str
    latency_ms: float
    speedup: float

    def __str__(self) -> str:
        """Return the change in one line."""
        verdict = f"{self.speedup:.3g} times as fast" if self.speedup > 1.005 else "no faster"
        return f"{self.what}: {_ms(self.latency_ms)} an inference, {verdict}"


@final
@dataclass(frozen=True, slots=True)
class SolverExplanation:
    """Which wall a model hits on a system.

    Args:
        wall: "compute", "memory" or "dispatch": what takes longest.
        lines: what is said of it.
        remedies: what would move it, the best one first.
    """

    wall: str
    lines: tuple[str, ...]
    remedies: tuple[Remedy, ...]

    def __str__(self) -> str:
        """Return the explanation as text."""
        return "\n".join([*self.lines, "What would move it:", *(f"- {remedy}" for remedy in self.remedies)])


def explain(profile: PerformanceProfile) -> SolverExplanation:
    """Explain a profile.

    Raises:
        UsageError: the profile does not say what was solved.
    """
    case = profile.case
    if case is None:
        raise UsageError("only profiles that Engine.solve made can be explained: this one does not say of what it is")
    wall = _wall(profile)
    remedies = sorted(_remedies(case, profile), key=lambda remedy: -remedy.speedup)
    return SolverExplanation(wall, tuple(_lines(case, profile, wall)), tuple(remedies))


def _wall(profile: PerformanceProfile) -> str:
    """Return what takes longest."""
    busy = max(profile.latency_compute, profile.latency_memory)
    return "dispatch" if profile.latency_overhead > busy else profile.bottleneck.lower()


def _lines(case: Case, profile: PerformanceProfile, wall: str) -> list[str]:
    """Say where the latency goes, how far the other wall is, and whether the weights fit."""
    compute, memory = _in_ms(profile.latency_compute), _in_ms(profile.latency_memory)
    tax = _in_ms(profile.latency_overhead)
    title = f"{case.model.name} on {case.system.name}, batch {case.batch_size}, {case.precision}"
    lines = [
        f"{title}: {_ms(_in_ms(profile.latency))}, limited by {wall}.",
        f"The arithmetic takes {_ms(compute)}, reading the weights {_ms(memory)}, the dispatch {_ms(tax)}.",
    ]
    ridge = (profile.peak_flops_actual / profile.peak_bw_actual).to(ureg.flop / ureg.byte).magnitude
    lines.append(
        f"{profile.arithmetic_intensity.magnitude:.4g} FLOP a byte, where the walls meet at {ridge:.4g}: "
        f"batch {max(1, round(case.batch_size * memory / compute))} would hit both."
    )
    if not profile.feasible:
        need, have = (size.to(ureg.gigabyte).magnitude for size in (profile.memory_footprint, case.system.ram))
        lines.append(f"It does not fit: the weights take {need:.4g} GB of {have:.4g} GB.")
    return lines


def _remedies(case: Case, profile: PerformanceProfile) -> list[Remedy]:
    """Solve the case again with one thing changed."""
    hardware = case.system.hardware
    faster = {
        "twice the bandwidth": {"memory_bw": hardware.memory_bw * 2},
        "twice the peak rate": {
            name: value * 2
            for name in ("peak_flops", "peak_flops_fp32", "int8_flops")
            if (value := getattr(hardware, name))
        },
        "no dispatch tax": {"dispatch_tax": 0 * ureg.us},
    }
    changes: dict[str, Case] = {
        what: replace(case, system=replace(case.system, hardware=replace(hardware, **change)))
        for what, change in faster.items()
    }
    changes["twice the batch"] = replace(case, batch_size=case.batch_size * 2)
    changes |= {
        f"{other} instead of {case.precision}": replace(case, precision=other)
        for other in ("fp16", "int8")
        if _is_smaller(other, case.precision)
    }
    today = _each(case, profile)
    return [Remedy(what, each := _solved(changed), today / each) for what, changed in changes.items()]


def _is_smaller(precision: str, than: str) -> bool:
    order = ("int8", "fp16", "fp32")
    return order.index(precision) < order.index(than)


def _solved(case: Case) -> float:
    """Return the latency of an inference of a case, ms."""
    return _each(case, case.solve())


def _each(case: Case, profile: PerformanceProfile) -> float:
    return _in_ms(profile.latency) / case.batch_size


def _in_ms(time: Any) -> float:
    milliseconds: float = time.to(ureg.ms).magnitude
    return milliseconds


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.4g} ms"
