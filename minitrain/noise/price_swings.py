"""How a step time changes with each figure of the hardware config: bandwidths, latencies, rates, efficiencies.

The run is executed once more, with the clocks of many machines (see `minitrain.vector`). Two of them have one figure
lower and higher by a given share, which gives the two step times. Two others have it lower and higher by a
ten-thousandth, which gives the derivative. Whole numbers (how many ranks a tier spans) and rows of efficiencies are
left as they are; a row acts as the peak that it is a share of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from minitrain.hardware.chosen_predictor import make_predictor
from minitrain.hardware.config_variation import numbers_of, varied_configs
from minitrain.hardware.fixed_durations import FixedPredictor
from minitrain.hardware.platforms import Platform
from minitrain.hardware.pricing import ROOFLINE, Pricing
from minitrain.run.event_loops import run_to_end
from minitrain.run.prepared_run import PreparedRun
from minitrain.run.result import Run
from minitrain.vector.execution import Config, Machines, step_times

_SMALL = 1e-4

_NO_PRICES = ("size", "nics", "units", "GiB", "processor_usage")
_OF_KERNELS = ("kernels", "curves")
_SHARES = ("efficiency",)


@dataclass(frozen=True, slots=True)
class PriceSwing:
    """How the step time changes with one figure.

    Args:
        path: its key path, as in messages about configs.
        value: what it is, in the config's unit.
        derivative: growth of the step time by the figure, s a unit.
        lower_s: the step time with the figure lower by the change, s.
        higher_s: the step time with the figure higher by the change, s; a share is 1 at most.
    """

    path: str
    value: float
    derivative: float
    lower_s: float
    higher_s: float

    @property
    def span_s(self) -> float:
        """How far apart the two step times are, s."""
        return abs(self.higher_s - self.lower_s)


Variation = Callable[[str, float], Any]
"""Makes what prices a run with another value under a path."""


def price_swings(run: Run, change: float) -> tuple[PriceSwing, ...]:
    """Return how the step time changes with each figure of the hardware, the widest span first, without spans of 0.

    Nothing is found where no config or `FixedPredictor` prices the run, where it is timed again for contention, and
    where devices died in it.

    Args:
        run: what `simulate` returned.
        change: the share by which each figure is made lower and higher.
    """
    prepared: PreparedRun | None = run.prepared
    if prepared is None or prepared.parameters.contention:
        return ()
    numbers, vary = _figures_of(prepared)
    values = {path: value for path, value in numbers.items() if value}
    spans = _steps(prepared, vary, values, change)
    felt = {
        path: value for path, value in values.items() if len(set(spans[path])) > 1 or spans[path][0] != run.step_time
    }
    slopes = _steps(prepared, vary, felt, _SMALL)
    found = [PriceSwing(path, value, _slope(slopes[path], path, value), *spans[path]) for path, value in felt.items()]
    return tuple(sorted(found, key=lambda one: (-one.span_s, one.path)))


def _steps(
    prepared: PreparedRun, vary: Variation, values: Mapping[str, float], change: float
) -> dict[str, tuple[float, float]]:
    """Return the step times with each figure lower and higher, s, by path."""
    if not values:
        return {}
    sources = [vary(path, each) for path, value in values.items() for each in _around(path, value, change)]
    slowdowns = [prepared.parameters.slowdown] * len(sources)
    machines = Machines(sources, slowdowns if prepared.parameters.slowdown else None)
    steps = run_to_end(lambda: step_times(prepared, machines)).tolist()
    return {path: (steps[2 * place], steps[2 * place + 1]) for place, path in enumerate(values)}


def _around(path: str, value: float, change: float) -> tuple[float, float]:
    """Return a value lower and higher by a share."""
    higher = value * (1 + change)
    return value * (1 - change), min(higher, 1.0) if _last(path) in _SHARES else higher


def _slope(steps: tuple[float, float], path: str, value: float) -> float:
    """Return the derivative of the step time, s a unit."""
    lower, higher = _around(path, value, _SMALL)
    return (steps[1] - steps[0]) / (higher - lower)


def _last(path: str) -> str:
    """Return the last key of a path."""
    return path.rpartition(".")[2]


def _figures_of(prepared: PreparedRun) -> tuple[dict[str, float], Variation]:
    """Return the figures that a run is priced by, and the function that changes one of them."""
    predictor: Any = prepared.predictor
    if type(predictor) is FixedPredictor:
        return dict(predictor._given), lambda typ, seconds: FixedPredictor(**{**predictor._given, typ: seconds})
    system, pricing = getattr(predictor, "system", None), getattr(predictor, "pricing", ROOFLINE)
    if system is None or not hasattr(predictor, "topology"):
        return {}, lambda *_: None
    left_out = _NO_PRICES if pricing.fidelity == "kernels" else (*_NO_PRICES, *_OF_KERNELS)
    numbers = {
        path: value
        for path, value in numbers_of(system).items()
        if _last(path) not in left_out and not any(f"{key}." in path for key in left_out)
    }
    return {**numbers, **_of_platform(pricing)}, lambda path, value: _varied(prepared, system, pricing, path, value)


def _of_platform(pricing: Pricing) -> dict[str, float]:
    """Return the numbers of a platform that add to prices of kernels."""
    if pricing.fidelity != "kernels":
        return {}
    platform = pricing.known_platform
    values = {field.name: getattr(platform, field.name) for field in fields(Platform)}
    return {f"platform.{name}": value for name, value in values.items() if type(value) is float}


def _varied(prepared: PreparedRun, system: Any, pricing: Pricing, path: str, value: float) -> Any:
    """Return the source of prices with another value of one figure."""
    parameters = prepared.parameters
    if path.startswith("platform."):
        platform: Any = replace(pricing.known_platform, **{_last(path): value})  # type: ignore[arg-type]  # a number
        pricing = replace(pricing, platform=platform)
    else:
        (system,) = varied_configs([system], path, [value])
    if pricing.fidelity == "roofline":
        return Config(system, parameters.network, parameters.placement, pricing.prices)
    workload = prepared.predictor.workload
    return make_predictor(system, parameters.world_size, parameters.network, parameters.placement, workload, pricing)
