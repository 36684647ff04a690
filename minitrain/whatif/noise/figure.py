"""The distribution of a step time as a Plotly figure, alone or below the recorded run on one page.

The distribution of a step time as an SVG, which a notebook shows and keeps without any script.

A tornado chart: what each kind of operation, or each price, does to the step time, as bars around the recorded one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from minitrain.run.analysis.labels import duration, time_unit
from minitrain.view.explanation_panel import section
from minitrain.view.layout import FIGURE_STYLE, GRID, Drawing, Properties, as_figure, scatter
from minitrain.view.notebook_figure import NotebookFigure
from minitrain.view.page import html_table, run_picture, timeline_section, write_page
from minitrain.view.run_folder import view_of
from minitrain.whatif.noise.distribution import PERCENTILES, Distribution

if TYPE_CHECKING:
    from minitrain.whatif.noise.distribution import Carrier


_WIDTH, _HEIGHT, _BOTTOM, _TOP, _SIDE = 640, 180, 22, 20, 10
_BAR, _LINE, _INK = "#56B4E9", "#D55E00", "#777777"


def distribution_svg(found: Distribution) -> str:
    """Return the histogram of the samples, with the recorded step time, P50 and P99 as lines."""
    return "".join(_shapes(found))


def _shapes(found: Distribution) -> Iterator[str]:
    """Yield the picture in pieces."""
    edges, counts = found.histogram()
    low, high = min(float(edges[0]), found.recorded_s), max(float(edges[-1]), found.recorded_s)
    wide, tall = _WIDTH - 2 * _SIDE, _HEIGHT - _BOTTOM - _TOP

    def x(seconds: float) -> float:
        return _SIDE + (seconds - low) / ((high - low) or 1.0) * wide

    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" style="max-width:{_WIDTH}px" role="img" '
    yield 'aria-label="distribution of the step time" font-family="sans-serif" font-size="11">'
    for left, right, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True):
        height = tall * count / int(counts.max())
        place = f'x="{x(left):.1f}" y="{_HEIGHT - _BOTTOM - height:.1f}"'
        yield f'<rect {place} width="{max(x(right) - x(left), 0.5):.1f}" height="{height:.1f}" fill="{_BAR}"/>'
    for name, seconds in {"recorded": found.recorded_s, "P50": found.p50, "P99": found.p99}.items():
        color = _INK if name == "recorded" else _LINE
        yield f'<path d="M{x(seconds):.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="{color}"/>'
        anchor = "end" if x(seconds) > _WIDTH / 2 else "start"
        level = {"recorded": 4, "P50": 10, "P99": 16}[name]
        yield f'<text x="{x(seconds):.1f}" y="{level + 2}" text-anchor="{anchor}" fill="{color}">{name}</text>'
    yield f'<text x="{x(low):.1f}" y="{_HEIGHT - 6}" fill="{_INK}">{duration(low)}</text>'
    yield f'<text x="{x(high):.1f}" y="{_HEIGHT - 6}" text-anchor="end" fill="{_INK}">{duration(high)}</text></svg>'


_PANEL_BAR, _RECORDED = "#56B4E9", "#5A5F66"
_LINES = dict(zip(PERCENTILES, ("#009E73", "#E69F00", "#D55E00"), strict=True))
_MOST_ROWS = 8


def figure(found: Distribution) -> Any:
    """Return how often each step time came, as a figure of its own."""
    return NotebookFigure(as_figure(_alone(found)), lambda: distribution_svg(found))


def _alone(found: Distribution) -> Drawing:
    """Draw how often each step time came."""
    layout = {
        **FIGURE_STYLE,
        **_axes(found, "", (0.0, 1.0)),
        "height": 340,
        "margin": {"l": 64, "r": 24, "t": 84, "b": 52},
        "title": {"text": title_of(found), "font": {"size": 15}, "x": 0, "xref": "paper", "pad": {"t": 10}},
        "legend": _legend(1.0),
    }
    return Drawing(_traces(found, "", "legend"), layout)


def title_of(found: Distribution) -> str:
    """Return in words what the distribution is of."""
    return f"Step time of {found.run.strategy} under noise, {found.num_samples:,} samples"


def write_html(found: Distribution, path: Path, include_plotlyjs: bool | str = True) -> Path:
    """Write the recorded run and the distribution as one page, and return its path.

    The run's timeline is below the distribution.
    """
    run, view = found.run, view_of(found.run)
    # its rows are all ranks, also of a run whose own picture has a row a class
    picture = run_picture("", run.step_timeline, replace(view, ranks_of_rows=()), journals=run.memory_journals)
    facts = [*view.facts, *_facts(found)]
    below = timeline_section([picture])
    return write_page(path, _alone(found), view.title, include_plotlyjs, _tables(found), facts, below)


def _facts(found: Distribution) -> list[str]:
    """Return the figures of a distribution, for the line below a title."""
    words = [f"P{percent} {duration(found.percentile(percent))}" for percent in PERCENTILES]
    return [f"noise: {found.noise}", f"{found.num_samples:,} samples, seed {found.seed}", *words]


def _tables(found: Distribution) -> str:
    """Return the ranks and operations that make the tail, as HTML."""
    tail = found.tail
    about = f"of the slowest {len(tail.samples):,} samples"
    parts = {"Ranks": tail.ranks, "Types of operations": tail.types, "Operations": tail.operations}
    return section([(f"{name} on the critical paths {about}", [_table(rows)]) for name, rows in parts.items() if rows])


def _table(carriers: Sequence[Carrier]) -> str:
    """Return the carriers that add most as an HTML table."""
    rows = [
        {
            "": one.name,
            "samples": f"{one.share:.1%}",
            "on the path": duration(one.seconds),
            "beyond the record": duration(one.added_s),
        }
        for one in carriers[:_MOST_ROWS]
    ]
    return html_table(rows, {})


def _traces(found: Distribution, axes: str, legend: str) -> list[Properties]:
    """Return the histogram and a line for the recorded step time and each percentile, on axes of one number."""
    unit, unit_name = time_unit(found.recorded_s)
    edges, counts = found.histogram()
    place: dict[str, Any] = {"xaxis": f"x{axes}", "yaxis": f"y{axes}", "legend": legend}
    shares = 100 * counts / found.num_samples
    width = edges[1] - edges[0]
    middles = np.concatenate([[edges[0] - width / 2], (edges[:-1] + edges[1:]) / 2, [edges[-1] + width / 2]])
    bars = scatter(  # steps, since Plotly shrinks the numbers in a Gantt chart's bars where other bars are below them
        x=middles / unit,
        y=np.concatenate([[0.0], shares, [0.0]]),
        name="samples",
        mode="lines",
        line={"shape": "hvh", "width": 0},
        fill="tozeroy",
        fillcolor=_PANEL_BAR,
        hovertemplate=f"%{{y:.2f}} % of the samples at %{{x:.6g}} {unit_name}<extra></extra>",
        showlegend=False,
        **place,
    )
    marks = {"recorded": (found.recorded_s, _RECORDED, "dot")}
    marks |= {f"P{percent}": (found.percentile(percent), _LINES[percent], "solid") for percent in PERCENTILES}
    top = float(shares.max())
    lines = [
        scatter(
            x=[seconds / unit] * 2,
            y=[0, top],
            name=f"{name} {duration(seconds)}",
            mode="lines",
            line={"color": color, "width": 2, "dash": dash},
            hovertemplate=f"{name}: %{{x:.6g}} {unit_name}<extra></extra>",
            **place,
        )
        for name, (seconds, color, dash) in marks.items()
    ]
    return [bars, *lines]


def _legend(y: float) -> dict[str, Any]:
    """Return the legend of the lines, above the panel, where it hides no bar."""
    return {"orientation": "h", "x": 0, "y": y, "xanchor": "left", "yanchor": "bottom"}


def _axes(found: Distribution, number: str, domain: tuple[float, float]) -> dict[str, Any]:
    """Return the axes of the distribution."""
    _, unit_name = time_unit(found.recorded_s)
    return {
        f"xaxis{number}": {
            "title": {"text": f"step time ({unit_name})", "standoff": 6},
            "anchor": f"y{number}",
            "gridcolor": GRID,
            "zeroline": False,
        },
        f"yaxis{number}": {
            "title": {"text": "samples (%)", "standoff": 4},
            "domain": domain,
            "anchor": f"x{number}",
            "rangemode": "tozero",
            "gridcolor": GRID,
            "zeroline": False,
        },
    }


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
