"""A tornado chart: what each kind of operation, or each price, does to the step time, as bars around the recorded one.

It is a file of its own, since it needs Plotly, which is imported when somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types

from minitrain.analysis.labels import time_unit
from minitrain.trace.layout import FIGURE_STYLE, GRID

_ROW, _MARGIN, _LEFT, _LETTER = 28, 132, 120, 7  # px

Sides = tuple[tuple[str, str], tuple[str, str]]
"""What the two sides of a bar are called, and their colours."""

KINDS: Sides = (("quicker", "#009E73"), ("slower", "#D55E00"))
PRICES: Sides = (("lower", "#56B4E9"), ("higher", "#E69F00"))

Bar = tuple[str, float, float]
"""A kind or a price, and the step times with it quicker and slower, or lower and higher, s."""


def tornado(strategy: str, step_time: float, change: float, bars: Sequence[Bar], sides: Sides) -> Any:
    """Return the chart, the first bar on top.

    Args:
        strategy: whose step.
        step_time: as recorded, s.
        change: the share by which each is changed.
        bars: the kinds or prices.
        sides: what the two sides are called.
    """
    unit, unit_name = time_unit(step_time)
    names = [kind for kind, _, _ in bars]
    columns = [first for _, first, _ in bars], [second for _, _, second in bars]
    shown = [(f"{change:.0%} {name}", color, steps) for (name, color), steps in zip(sides, columns, strict=True)]
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
        for name, color, steps in shown
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
        "margin": {"l": max(_LEFT, _LETTER * max(map(len, names), default=0)), "r": 24, "t": 76, "b": 52},
        "legend": {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
        "xaxis": {"title": {"text": f"step time ({unit_name})"}, "gridcolor": GRID, "zeroline": False},
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }
    return go.Figure(traces, layout)
