"""`mt.solve`: the solver by names and lists, and its results for many cases as a table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.hardware import SystemConfig, load_config, shipped_configs
from minitrain.solver.constants import ureg
from minitrain.solver.engine import Engine, PerformanceProfile
from minitrain.solver.models import MODELS, ModelSpec
from minitrain.solver.systems import SYSTEMS, Hardware, SystemArchetype
from minitrain.workloads.models import find_model, models
from minitrain.workloads.transformer import Transformer


@final
@dataclass(frozen=True, slots=True)
class SolvedCase:
    """One row of a `SolveTable`: a profile in plain numbers.

    Args:
        model: its name.
        system: its name.
        batch_size: inferences at a time.
        precision: of the weights.
        latency_ms: of the batch.
        throughput_per_s: inferences a second.
        bottleneck: "Compute" or "Memory".
        flop_per_byte: arithmetic intensity.
        energy_J: of the batch; None where the system gives no power.
        memory_GB: the weights, 1e9 bytes.
        feasible: whether the weights fit.
    """

    model: str
    system: str
    batch_size: int
    precision: str
    latency_ms: float
    throughput_per_s: float
    bottleneck: str
    flop_per_byte: float
    energy_J: float | None  # noqa: N815 - a unit
    memory_GB: float  # noqa: N815 - a unit
    feasible: bool


@final
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
        return [_row(profile) for profile in self.profiles]

    def __str__(self) -> str:
        """Return the table as text."""
        names = [field.name for field in fields(SolvedCase)]
        lines = [names, *([_shown(getattr(row, name)) for name in names] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def solve(
    model: str | os.PathLike[str] | ModelSpec | Transformer | Sequence[Any],
    system: str | os.PathLike[str] | SystemArchetype | Hardware | SystemConfig | Sequence[Any],
    *,
    batch_size: int | Iterable[int] = 1,
    precision: str | Iterable[str] = "fp16",
    efficiency: float = 0.5,
) -> Any:
    """Return how a model performs on a system; a table where anything is a list.

    Args:
        model: a preset of the solver ("ResNet50"), a model of `mt.models()`, a Hugging Face config, or an object. An
            inference of a language model is one token.
        system: a preset of the solver ("A100"), a hardware config (one device of it), or an object.
        batch_size: inferences at a time.
        precision: "fp32", "fp16" or "int8".
        efficiency: share of the peak rate that is reached, in (0, 1].

    Returns:
        A `PerformanceProfile`; or a `SolveTable` of all combinations.

    Raises:
        UsageError: a parameter is outside its rule, or a name is unknown.
        HardwareConfigError: a hardware config cannot be read, or is invalid.

    Example:
        >>> solve("ResNet50", "A100", batch_size=256).latency.to("ms").magnitude
        6.743205128205129
    """
    asked = [_listed(value) for value in (model, system, batch_size, precision)]
    found = tuple(
        Engine.solve(find_spec(one), find_system(on), size, kind, efficiency) for one, on, size, kind in product(*asked)
    )
    if not found:
        raise UsageError("solve needs at least one model, system, batch_size and precision; one of the lists is empty")
    is_one = all(_is_one(value) for value in (model, system, batch_size, precision))
    return found[0] if is_one else SolveTable(found)


def _is_one(value: Any) -> bool:
    """Whether a value is no list of values."""
    return isinstance(value, str) or not isinstance(value, Iterable)


def _listed(value: Any) -> list[Any]:
    return [value] if _is_one(value) else list(value)


def find_spec(model: Any) -> ModelSpec:
    """Return a model as the solver takes it.

    Raises:
        UsageError: there is no such model.
    """
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, str) and model in MODELS:
        return MODELS[model]
    if isinstance(model, str) and model not in models() and not model.endswith(".json") and os.sep not in model:
        raise UsageError(
            f"there is no model {model!r}; the solver knows {', '.join(MODELS)}, and all of mt.models(), such as "
            f"llama3-8b; a path to a Hugging Face config.json will do as well",
            model=model,
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
    if isinstance(system, str) and system in SYSTEMS:
        return SYSTEMS[system]
    if isinstance(system, str) and _is_unknown(system):
        raise UsageError(
            f"there is no system {system!r}; the solver knows {', '.join(SYSTEMS)}, and every hardware config: "
            f"{', '.join(shipped_configs())}, or a path",
            system=system,
        )
    return SystemArchetype.from_device(load_config(system))


def _is_unknown(name: str) -> bool:
    """Whether a name can only be meant as that of a system, and is none."""
    is_path = os.sep in name or name.endswith((".json", ".yaml", ".yml"))
    return not is_path and name not in shipped_configs()


def _row(profile: PerformanceProfile) -> SolvedCase:
    """Return a profile in plain numbers."""
    case = profile.case
    if case is None:
        raise UsageError("only profiles that Engine.solve made have a row in a table")
    return SolvedCase(
        model=case.model.name,
        system=case.system.name,
        batch_size=case.batch_size,
        precision=case.precision,
        latency_ms=profile.latency.to(ureg.ms).magnitude,
        throughput_per_s=profile.throughput.magnitude,
        bottleneck=profile.bottleneck,
        flop_per_byte=profile.arithmetic_intensity.magnitude,
        energy_J=profile.energy.magnitude if case.system.hardware.tdp else None,
        memory_GB=profile.memory_footprint.to(ureg.gigabyte).magnitude,
        feasible=profile.feasible,
    )


def _shown(value: Any) -> str:
    """Return a cell of a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
