"""A roofline plot: what each device could reach at an arithmetic intensity, and where models lie below it.

Both axes are logarithmic. A device's roof is bandwidth times intensity up to its ridge, and its peak from there on
(Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minitrain.errors import UsageError
from minitrain.solver.constants import ureg
from minitrain.solver.engine import PerformanceProfile

_COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e")


def roofline_figure(profiles: PerformanceProfile | Iterable[PerformanceProfile]) -> Any:
    """Return a Plotly figure that places solved models on the roofs of their devices.

    Args:
        profiles: what `mt.solve` found: a profile or a table.

    Raises:
        UsageError: there are none, or they do not say what was solved.
    """
    from plotly.graph_objects import (  # type: ignore[import-untyped]  # noqa: PLC0415 - only when somebody looks
        Figure,
        Scatter,
    )

    found = [profiles] if isinstance(profiles, PerformanceProfile) else list(profiles)
    if not found or any(profile.case is None for profile in found):
        raise UsageError("a roofline plot needs profiles that Engine.solve made; give what mt.solve returns")
    points = [_point(profile) for profile in found]
    span = (min(point[0] for point in points) / 10, max(point[0] for point in points) * 10)
    figure = Figure()
    roofs = {_name_of_roof(profile): profile for profile in found}
    for color, (name, profile) in zip(_cycle(len(roofs)), roofs.items(), strict=True):
        x, y = _roof(profile, span)
        figure.add_trace(Scatter(x=x, y=y, mode="lines", name=name, line={"color": color, "width": 2}))
        own = [point for point, other in zip(points, found, strict=True) if _name_of_roof(other) == name]
        figure.add_trace(_markers(Scatter, own, color))
    figure.update_xaxes(type="log", title="arithmetic intensity, FLOP/byte")
    figure.update_yaxes(type="log", title="rate, FLOP/s")
    figure.update_layout(template="plotly_white", title="Roofline", legend={"orientation": "h", "y": -0.2})
    return figure


def _markers(scatter: Any, points: list[tuple[float, float, str]], color: str) -> Any:
    """Return the models on one roof."""
    x, y, names = zip(*points, strict=True)
    labels = {"text": list(names), "textposition": "bottom center", "textfont": {"size": 11}}
    marker = {"color": color, "size": 9, "line": {"color": "white", "width": 1}}
    return scatter(x=list(x), y=list(y), mode="markers+text", showlegend=False, marker=marker, **labels)


def _cycle(count: int) -> list[str]:
    return [_COLORS[place % len(_COLORS)] for place in range(count)]


def _name_of_roof(profile: Any) -> str:
    return f"{profile.case.system.name}, {profile.case.precision}"


def _point(profile: Any) -> tuple[float, float, str]:
    """Return a model's intensity, the rate that it reaches with the dispatch tax, and its name."""
    case = profile.case
    flops = (case.model.flops * case.batch_size).to(ureg.flop).magnitude
    rate = flops / profile.latency.to(ureg.second).magnitude
    name = case.model.name if case.batch_size == 1 else f"{case.model.name} x{case.batch_size}"
    return profile.arithmetic_intensity.magnitude, rate, name


def _roof(profile: Any, span: tuple[float, float]) -> tuple[list[float], list[float]]:
    """Return the corners of a device's roof."""
    peak = profile.peak_flops_actual.to(ureg.flop / ureg.second).magnitude
    bandwidth = profile.peak_bw_actual.to(ureg.byte / ureg.second).magnitude
    ridge = peak / bandwidth
    x = sorted({min(span[0], ridge / 10), ridge, max(span[1], ridge * 10)})
    return x, [min(peak, bandwidth * at) for at in x]
