"""The solver: how long an inference of a model takes on a system, by the iron law, and what limits it.

    latency = max(ops / (peak x efficiency), weights / bandwidth) + dispatch tax

A batch shares one pass over the weights. Several devices share weights and arithmetic evenly (tensor parallelism,
Shoeybi et al. 2019, arXiv 1909.08053): each layer of a transformer then all_reduces the activations of the batch twice,
which takes what the config's network says. Left out: other activations, the cache of keys and values, and the
communication of models and systems that do not say their layers and networks.

`Engine.solve` is the formula, and `solve` takes names and lists. `PerformanceProfile.explain` says a result in words:
which wall was hit, and what would move it. `SolveTable` has many results in plain numbers, and `roofline_figure` draws
them.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import cycle, product
from numbers import Integral
from typing import Any

from minitrain.errors import UsageError, typed
from minitrain.files import StrPath
from minitrain.machine import SystemConfig, load_config, shipped_configs
from minitrain.machine.solver.constants import ureg
from minitrain.machine.solver.formulas import calc_bottleneck
from minitrain.machine.solver.models import MODELS, ModelSpec
from minitrain.machine.solver.systems import SYSTEMS, Hardware, SystemArchetype, precision_named
from minitrain.workloads.transformer import Transformer, find_model, models

PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
"""Precisions of weights that any system is asked for, the widest first; others where a system states their rate."""

_COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e")


class PrecisionFallbackWarning(UserWarning):
    """A device states no peak for a precision, and the one for half precision was used."""


@dataclass(frozen=True, slots=True)
class Case:
    """What was solved: the parameters of `Engine.solve`."""

    model: ModelSpec
    system: SystemArchetype
    batch_size: int
    precision: str
    efficiency: float
    num_devices: int = 1

    def solve(self) -> PerformanceProfile:
        """Solve it, without a warning: the first solution has warned."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionFallbackWarning)
            return Engine.solve(**{each.name: getattr(self, each.name) for each in fields(self)})

    def all_reduce_s(self) -> float | None:
        """Return how long the devices communicate, s; None if the model or the system does not say enough."""
        if self.num_devices == 1:
            return 0.0
        device, layers, hidden = self.system.hardware.device, self.model.num_layers, self.model.hidden_size
        if device is None or layers is None or hidden is None:
            return None
        size_bytes = self.batch_size * hidden * max(_bits(self.precision) / 8, 2)  # activations have two bytes at least
        return 2 * layers * device.network(self.num_devices).time("all_reduce", size_bytes, self.num_devices)


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
        energy: rated power of all devices times latency; 0 J where no power is given.
        memory_footprint: the weights that a device holds.
        peak_flops_actual: peak times efficiency, of a device.
        peak_bw_actual: bandwidth of the memory, of a device.
        feasible: whether the weights fit.
        latency_communication: of several devices; None where it is not known and left out.
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
    latency_communication: Any = None
    case: Case | None = field(default=None, repr=False, compare=False)

    def explain(self) -> SolverExplanation:
        """Return in words which wall was hit, and what would move it.

        Raises:
            UsageError: the profile does not say what was solved.
        """
        case = self.solved("only profiles that Engine.solve made can be explained: this one does not say of what it is")
        busy = max(self.latency_compute, self.latency_memory)
        walls = {self.bottleneck.lower(): busy, "communication": self.latency_communication or 0 * ureg.s}
        walls["dispatch"] = self.latency_overhead
        wall = max(walls, key=lambda name: walls[name])
        today = _inference_ms(self, case)
        solved = [(what, _inference_ms(changed.solve(), changed)) for what, changed in _changes(case).items()]
        remedies = [Remedy(what, each, today / each) for what, each in solved]
        best_first = sorted(remedies, key=lambda remedy: -remedy.speedup)
        to_fit = () if self.feasible else tuple(_what_would_fit(case))
        return SolverExplanation(wall, tuple(_lines(case, self, wall)), tuple(best_first), to_fit)

    def solved(self, complaint: str) -> Case:
        """Return what was solved.

        Raises:
            UsageError: it is not known; the message is the complaint.
        """
        if self.case is None:
            raise UsageError(complaint)
        return self.case


class Engine:
    """The unified solver for trade-offs of ML systems."""

    @staticmethod
    def solve(
        model: ModelSpec,
        system: SystemArchetype,
        batch_size: int = 1,
        precision: str = "fp16",
        efficiency: float = 0.5,
        num_devices: int = 1,
    ) -> PerformanceProfile:
        """Return how a model performs on a system.

        Args:
            model: what is computed.
            system: where.
            batch_size: inferences at a time.
            precision: of `PRECISIONS`, or any that the device states a rate for; long names ("bfloat16") will do.
            efficiency: share of the peak rate that is reached, in (0, 1].
            num_devices: how many such devices share the model.

        Raises:
            UsageError: a parameter is outside its rule, or the device states no peak for a wide precision.

        Warns:
            PrecisionFallbackWarning: the device states no peak for the precision, and that for fp16 was used.
        """
        _require(model, system, batch_size, efficiency, num_devices)
        hardware, precision = system.hardware, precision_named(precision)
        bytes_per_parameter, peak_flops = _precision(hardware, precision)
        size, ops = model.size_in_bytes(bytes_per_parameter), model.flops * batch_size
        if num_devices > 1:
            size, ops = size / num_devices, ops / num_devices
        reached = peak_flops * efficiency
        found = calc_bottleneck(ops, size, reached, hardware.memory_bw)
        compute, memory = found["compute_ms"] * ureg.ms, found["memory_ms"] * ureg.ms
        case = Case(model, system, batch_size, precision, efficiency, num_devices)
        between_s = case.all_reduce_s()
        latency = max(compute, memory) + hardware.dispatch_tax
        if between_s:
            latency += between_s * ureg.second
        return PerformanceProfile(
            latency=latency,
            latency_compute=compute,
            latency_memory=memory,
            latency_overhead=hardware.dispatch_tax,
            throughput=(batch_size / latency).to(1 / ureg.second),
            bottleneck=found["bottleneck"],
            arithmetic_intensity=found["intensity"] * (ureg.flop / ureg.byte),
            energy=(num_devices * hardware.tdp * latency).to(ureg.joule) if hardware.tdp else 0 * ureg.joule,
            memory_footprint=size,
            peak_flops_actual=reached,
            peak_bw_actual=hardware.memory_bw,
            feasible=bool(size <= system.ram),
            latency_communication=None if between_s is None else between_s * ureg.second,
            case=case,
        )


def _require(model: Any, system: Any, batch_size: Any, efficiency: Any, num_devices: Any) -> None:
    """Raise a UsageError unless the parameters are within their rules."""
    for value, kind in ((model, ModelSpec), (system, SystemArchetype)):
        if not isinstance(value, kind):
            raise UsageError(f"Engine.solve takes a {kind.__name__}, got {value!r:.80}; mt.solve takes names too")
    for name, count in (("batch_size", batch_size), ("num_devices", num_devices)):
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
            raise UsageError(f"{name} must be a whole number >= 1, got {count!r}", **{name: count})
    is_number = isinstance(efficiency, int | float) and not isinstance(efficiency, bool)
    if not (is_number and 0 < efficiency <= 1):
        raise UsageError(f"efficiency is a share of the peak in (0, 1], got {efficiency!r}; 0.5 is the default")


def _bits(precision: str) -> int:
    """Return the bits of a number, which the name of a precision ends in."""
    return int("".join(filter(str.isdigit, precision)))


def _precision(hardware: Hardware, precision: str) -> tuple[Any, Any]:
    """Return the bytes of a parameter and the peak rate for a precision; half precision's where none is given.

    The specification lets fp32 fall back too; what is wider still, or rounds otherwise, does not.
    """
    bits, peaks = _bits(precision), hardware.peaks
    if precision not in peaks:
        if precision not in PRECISIONS or precision in ("fp64", "tf32"):
            raise UsageError(
                f"{hardware.name} states no peak rate for {precision}; use one of {', '.join(peaks)}, or state it in "
                "the hardware config (matrix or vector), or in Hardware(rates=...)",
                precision=precision,
            )
        said = f"{hardware.name} states no peak rate for {precision}; that for fp16 is used"
        warnings.warn(said, PrecisionFallbackWarning, stacklevel=3)
    return (bits // 8 if bits % 8 == 0 else bits / 8) * ureg.byte, peaks.get(precision, hardware.peak_flops)


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
        return f"{self.what}: {self.latency_ms:.4g} ms an inference, {verdict}"


@dataclass(frozen=True, slots=True)
class SolverExplanation:
    """Which wall a model hits on a system.

    Args:
        wall: "compute", "memory", "communication" or "dispatch": what takes longest.
        lines: what is said of it.
        remedies: what would move it, the best one first.
        to_fit: what would make it fit, if it does not.
    """

    wall: str
    lines: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    to_fit: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the explanation as text."""
        fits = ["What would make it fit:", *(f"- {each}" for each in self.to_fit)] if self.to_fit else []
        return "\n".join([*self.lines, *fits, "What would move it:", *(f"- {remedy}" for remedy in self.remedies)])


def _lines(case: Case, profile: PerformanceProfile, wall: str) -> Iterator[str]:
    """Say where the latency goes, how far the other wall is, and whether the weights fit."""
    parts = (profile.latency, profile.latency_compute, profile.latency_memory, profile.latency_overhead)
    latency, compute, memory, tax = (part.to(ureg.ms).magnitude for part in parts)
    devices = f"{case.num_devices} x " if case.num_devices > 1 else ""
    title = f"{case.model.name} on {devices}{case.system.name}, batch {case.batch_size}, {case.precision}"
    yield f"{title}: {latency:.4g} ms, limited by {wall}."
    yield (f"The arithmetic takes {compute:.4g} ms, reading the weights {memory:.4g} ms, the dispatch {tax:.4g} ms.")
    if profile.latency_communication is None:
        yield "Communication between the devices is left out: it is known of transformers on hardware configs."
    elif case.num_devices > 1:
        between = profile.latency_communication.to(ureg.ms).magnitude
        yield f"The devices all_reduce activations for {between:.4g} ms beside."
    ridge = (profile.peak_flops_actual / profile.peak_bw_actual).to(ureg.flop / ureg.byte).magnitude
    yield (
        f"{profile.arithmetic_intensity.magnitude:.4g} FLOP a byte, where the walls meet at {ridge:.4g}: "
        f"batch {max(1, round(case.batch_size * memory / compute))} would hit both."
    )
    if not profile.feasible:
        need, have = (size.to(ureg.gigabyte).magnitude for size in (profile.memory_footprint, case.system.ram))
        yield f"It does not fit: the weights take {need:.4g} GB of {have:.4g} GB."


def _what_would_fit(case: Case) -> Iterator[str]:
    """Say what would make a model fit that does not: narrower weights, more devices, fewer layers."""
    ram = case.system.ram.to(ureg.byte).magnitude
    whole = case.model.size_in_bytes(_bits(case.precision) / 8 * ureg.byte).to(ureg.byte).magnitude
    for narrower in _narrower(case):
        size = whole * _bits(narrower) / _bits(case.precision)
        if size <= case.num_devices * ram:
            yield f"{narrower} instead of {case.precision}: {size / case.num_devices / 1e9:.4g} GB"
    enough = math.ceil(whole / ram)
    yield f"{enough} devices instead of {case.num_devices}: {whole / enough / 1e9:.4g} GB each"
    share = case.num_devices * ram / whole
    layers = case.model.layers_within(share)
    if layers:
        yield f"{layers} layers instead of {case.model.num_layers}"
    elif layers is None:
        parameters = case.model.parameters.to(ureg.count).magnitude
        yield f"{share * parameters / 1e9:.4g}e9 parameters instead of {parameters / 1e9:.4g}e9"


def _narrower(case: Case) -> list[str]:
    """Return the narrower precisions that a device computes with or half precision stands for, the widest first."""
    able = {*case.system.hardware.peaks, "fp16", "int8"}
    return sorted((each for each in able if _bits(each) < _bits(case.precision)), key=lambda each: (-_bits(each), each))


def _changes(case: Case) -> dict[str, Case]:
    """Return the case with one thing changed at a time."""
    hardware = case.system.hardware
    stated = {name: getattr(hardware, name) for name in ("peak_flops", "peak_flops_fp32", "int8_flops")}
    doubled = {name: rate * 2 for name, rate in hardware.rates.items()}
    faster: dict[str, dict[str, Any]] = {
        "twice the bandwidth": {"memory_bw": hardware.memory_bw * 2},
        "twice the peak rate": {"rates": doubled} | {name: rate * 2 for name, rate in stated.items() if rate},
        "no dispatch tax": {"dispatch_tax": 0 * ureg.us},
    }
    found = {
        what: replace(case, system=replace(case.system, hardware=replace(hardware, **figures)))
        for what, figures in faster.items()
    }
    found["twice the batch"] = replace(case, batch_size=case.batch_size * 2)
    found["twice the devices"] = replace(case, num_devices=case.num_devices * 2)
    for narrower in _narrower(case):
        found[f"{narrower} instead of {case.precision}"] = replace(case, precision=narrower)
    return found


def _inference_ms(profile: PerformanceProfile, case: Case) -> float:
    """Return the latency of one inference of a batch, ms."""
    return float(profile.latency.to(ureg.ms).magnitude / case.batch_size)


@typed
def solve(
    model: StrPath | ModelSpec | Transformer | Sequence[Any],
    system: StrPath | SystemArchetype | Hardware | SystemConfig | Sequence[Any],
    *,
    batch_size: int | Iterable[int] = 1,
    precision: str | Iterable[str] = "fp16",
    efficiency: float = 0.5,
    num_devices: int | Iterable[int] = 1,
) -> Any:
    """Return how a model performs on a system; a table where anything is a list.

    Args:
        model: a preset of the solver ("ResNet50"), a model of `mt.models()`, a Hugging Face config, or an object. An
            inference of a language model is one token.
        system: a preset of the solver ("A100"), a hardware config (one device of it), or an object.
        batch_size: inferences at a time.
        precision: of the weights, "fp16", "bf16", "int8" or another that the device states a rate for.
        efficiency: share of the peak rate that is reached, in (0, 1].
        num_devices: how many such devices share the model.

    Returns:
        A `PerformanceProfile`; or a `SolveTable` of all combinations.

    Raises:
        UsageError: a parameter is outside its rule, or a name is unknown.
        HardwareConfigError: a hardware config cannot be read, or is invalid.

    Example:
        >>> solve("ResNet50", "A100", batch_size=256).latency.to("ms").magnitude
        6.743205128205129
    """
    given: tuple[Any, ...] = (model, system, batch_size, precision, num_devices)
    is_one = [isinstance(value, str) or not isinstance(value, Iterable) for value in given]
    asked = [[value] if one else list(value) for value, one in zip(given, is_one, strict=True)]
    found = tuple(
        Engine.solve(find_spec(one), find_system(on), size, kind, efficiency, num)
        for one, on, size, kind, num in product(*asked)
    )
    if not found:
        raise UsageError(
            "solve needs at least one model, system, batch_size, precision and num_devices; one of the lists is empty"
        )
    return found[0] if all(is_one) else SolveTable(found)


def find_spec(model: Any) -> ModelSpec:
    """Return a model as the solver takes it.

    Raises:
        UsageError: there is no such model.
    """
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, str):
        if model in MODELS:
            return MODELS[model]
        if model not in models() and not model.endswith(".json") and os.sep not in model:
            raise UsageError(
                f"there is no model {model!r}; the solver knows {', '.join(MODELS)}, and all of mt.models(), such as "
                f"llama3-8b; a path to a Hugging Face config.json will do as well"
            )
    return ModelSpec.from_transformer(find_model(model))


def find_system(system: Any) -> SystemArchetype:
    """Return a system as the solver takes it.

    Raises:
        UsageError: there is no such system.
        HardwareConfigError: a hardware config cannot be read, or is invalid.
    """
    if isinstance(system, SystemArchetype):
        return system
    if isinstance(system, Hardware):
        return SystemArchetype(system.name, system)
    if isinstance(system, str):
        if system in SYSTEMS:
            return SYSTEMS[system]
        is_path = os.sep in system or system.endswith((".json", ".yaml", ".yml"))
        if not is_path and system not in shipped_configs():
            raise UsageError(
                f"there is no system {system!r}; the solver knows {', '.join(SYSTEMS)}, and every hardware config: "
                f"{', '.join(shipped_configs())}, or a path"
            )
    return SystemArchetype.from_device(load_config(system))


@dataclass(frozen=True, slots=True)
class SolvedCase:
    """One row of a `SolveTable`: a profile in plain numbers.

    Args:
        model: its name.
        system: its name.
        batch_size: inferences at a time.
        precision: of the weights.
        num_devices: how many share the model.
        latency_ms: of the batch.
        throughput_per_s: inferences a second.
        bottleneck: "Compute" or "Memory".
        flop_per_byte: arithmetic intensity.
        energy_J: of the batch; None where the system gives no power.
        memory_GB: the weights that a device holds, 1e9 bytes.
        feasible: whether the weights fit.
    """

    model: str
    system: str
    batch_size: int
    precision: str
    num_devices: int
    latency_ms: float
    throughput_per_s: float
    bottleneck: str
    flop_per_byte: float
    energy_J: float | None
    memory_GB: float
    feasible: bool

    @classmethod
    def of(cls, profile: PerformanceProfile) -> SolvedCase:
        """Return a profile in plain numbers.

        Raises:
            UsageError: the profile does not say what was solved.
        """
        case = profile.solved("only profiles that Engine.solve made have a row in a table")
        return cls(
            model=case.model.name,
            system=case.system.name,
            batch_size=case.batch_size,
            precision=case.precision,
            num_devices=case.num_devices,
            latency_ms=profile.latency.to(ureg.ms).magnitude,
            throughput_per_s=profile.throughput.magnitude,
            bottleneck=profile.bottleneck,
            flop_per_byte=profile.arithmetic_intensity.magnitude,
            energy_J=profile.energy.magnitude if case.system.hardware.tdp else None,
            memory_GB=profile.memory_footprint.to(ureg.gigabyte).magnitude,
            feasible=profile.feasible,
        )


@dataclass(frozen=True, slots=True)
class SolveTable:
    """Many cases, solved.

    Args:
        profiles: one a case, in the order of the product of the arguments.
    """

    profiles: tuple[PerformanceProfile, ...]

    def __len__(self) -> int:
        return len(self.profiles)

    def __iter__(self) -> Iterator[PerformanceProfile]:
        return iter(self.profiles)

    def __getitem__(self, place: int) -> PerformanceProfile:
        return self.profiles[place]

    @property
    def rows(self) -> list[SolvedCase]:
        """The cases in plain numbers, with units in their names."""
        return [SolvedCase.of(profile) for profile in self.profiles]

    @property
    def cells(self) -> list[list[str]]:
        """The names of the columns, and each row as text."""
        names = [column.name for column in fields(SolvedCase)]
        return [names, *([_cell(getattr(row, name)) for name in names] for row in self.rows)]

    def __str__(self) -> str:
        """Return the table as text."""
        lines = self.cells
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cell(value: Any) -> str:
    """Return a cell of a table."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def roofline_figure(profiles: PerformanceProfile | Iterable[PerformanceProfile]) -> Any:
    """Return a Plotly figure that places solved models on the roofs of their devices.

    Both axes are logarithmic. A device's roof is bandwidth times intensity up to its ridge, and its peak from there on
    (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009).

    Args:
        profiles: what `solve` found: a profile or a table.

    Raises:
        UsageError: there are none, or they do not say what was solved.
    """
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]  # noqa: PLC0415 - only when somebody looks

    found = [profiles] if isinstance(profiles, PerformanceProfile) else list(profiles)
    complaint = "a roofline plot needs profiles that Engine.solve made; give what mt.solve returns"
    if not found:
        raise UsageError(complaint)
    roofs: dict[str, list[PerformanceProfile]] = {}
    for profile in found:
        case = profile.solved(complaint)
        roofs.setdefault(f"{case.system.name}, {case.precision}", []).append(profile)
    intensities = [profile.arithmetic_intensity.magnitude for profile in found]
    figure = Figure()
    for color, (name, several) in zip(cycle(_COLORS), roofs.items(), strict=False):
        x, y = _roof(several[-1], min(intensities) / 10, max(intensities) * 10)
        figure.add_scatter(x=x, y=y, mode="lines", name=name, line={"color": color, "width": 2})
        x, y, labels = map(list, zip(*map(_point, several), strict=True))
        figure.add_scatter(
            x=x,
            y=y,
            mode="markers+text",
            text=labels,
            textposition="bottom center",
            textfont={"size": 11},
            marker={"color": color, "size": 9, "line": {"color": "white", "width": 1}},
            showlegend=False,
        )
    figure.update_xaxes(type="log", title="arithmetic intensity, FLOP/byte")
    figure.update_yaxes(type="log", title="rate, FLOP/s")
    figure.update_layout(template="plotly_white", title="Roofline", legend={"orientation": "h", "y": -0.2})
    return figure


def _roof(profile: PerformanceProfile, least: float, most: float) -> tuple[list[float], list[float]]:
    """Return the corners of a device's roof, over intensities from `least` to `most` and around its ridge."""
    peak = profile.peak_flops_actual.to(ureg.flop / ureg.second).magnitude
    bandwidth = profile.peak_bw_actual.to(ureg.byte / ureg.second).magnitude
    ridge = peak / bandwidth
    x = sorted({min(least, ridge / 10), ridge, max(most, ridge * 10)})
    return x, [min(peak, bandwidth * at) for at in x]


def _point(profile: Any) -> tuple[float, float, str]:
    """Return a model's intensity, the rate that it reaches with the dispatch tax, and its name."""
    case = profile.case
    flops = (case.model.flops * case.batch_size / case.num_devices).to(ureg.flop).magnitude
    rate = flops / profile.latency.to(ureg.second).magnitude
    name = case.model.name if case.batch_size == 1 else f"{case.model.name} x{case.batch_size}"
    return profile.arithmetic_intensity.magnitude, rate, name
