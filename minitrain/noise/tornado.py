"""A tornado chart: what each kind of operation does to the step time, as bars around the recorded one.

It is a file of its own, since it needs Plotly, which is imported when somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from minitrain.analysis.labels import time_unit
from minitrain.trace.layout import FIGURE_STYLE, GRID

_QUICKER, _SLOWER = "#009E73", "#D55E00"
_ROW, _MARGIN = 28, 132  # px

Bar = tuple[str, float, float]
"""A kind, and the step times with it quicker and slower, s."""


def tornado(strategy: str, step_time: float, change: float, bars: Sequence[Bar]) -> Any:
    """Return the chart, the first bar on top.

    Args:
        strategy: whose step.
        step_time: as recorded, s.
        change: the share by which each kind is made quicker and slower.
        bars: the kinds.
    """
    unit, unit_name = time_unit(step_time)
    names = [kind for kind, _, _ in bars]
    sides = (
        (f"{change:.0%} quicker", _QUICKER, [quicker for _, quicker, _ in bars]),
        (f"{change:.0%} slower", _SLOWER, [slower for _, _, slower in bars]),
    )
    traces = [
        go.Bar(
            name=name,
            orientation="h",
            y=names,
            base=step_time / unit,
            x=[(step - step_time) / unit for step in steps],
            marker={"color": color},
            hovertext=[
                f"{kind} {name}: {step / unit:.6g} {unit_name}" for kind, step in zip(names, steps, strict=True)
            ],
            hoverinfo="text",
        )
        for name, color, steps in sides
    ]
    layout = {
        **FIGURE_STYLE,
        "height": _MARGIN + _ROW * len(bars),
        "title": {
            "text": f"What the step time of {strategy} depends on",
            "font": {"size": 15},
            "x": 0,
            "xref": "paper",
        },
        "margin": {"l": 120, "r": 24, "t": 76, "b": 52},
        "legend": {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
        "xaxis": {"title": {"text": f"step time ({unit_name})"}, "gridcolor": GRID, "zeroline": False},
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }
    return go.Figure(traces, layout)
