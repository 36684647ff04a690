"""Pictures of what else a run could be: of step times under noise, and what they depend on, and of gaps between runs.

- The distribution of a step time as a Plotly figure, alone or below the recorded run on one page; and as an SVG, which
  a notebook shows and keeps without any script.
- A tornado chart: what each kind of operation, or each price, does to the step time, as bars around the recorded one.
- A gap between two runs as a table and as a page: its words, its parts, and both runs on one time axis. The operations
  with the largest parts are framed in both runs under one number: red where B is slower, green where it is faster. A
  part's name in the table leads to its operation. A `gap` here is a `minitrain.whatif.diff.Gap`, and a `part` one of
  its parts.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from minitrain.run.analysis.labels import duration, time_unit
from minitrain.run.analysis.timeline import Timeline
from minitrain.view.explanation_panel import section
from minitrain.view.layout import FIGURE_STYLE, Drawing, Properties, View, as_figure, axis, scatter
from minitrain.view.notebook_figure import NotebookFigure
from minitrain.view.page import frame, html_table, run_picture, timeline_section, write_page, write_timelines
from minitrain.view.run_folder import view_of
from minitrain.view.tables import filled_table
from minitrain.whatif.noise import PERCENTILES

_WIDTH, _HEIGHT, _BOTTOM, _TOP, _SIDE = 640, 180, 22, 20, 10
_BAR, _LINE, _INK = "#56B4E9", "#D55E00", "#777777"


def distribution_svg(found: Any) -> str:
    """Return the histogram of the samples, with the recorded step time, P50 and P99 as lines."""
    return "".join(_shapes(found))


def _shapes(found: Any) -> Iterator[str]:
    """Yield the picture in pieces."""
    edges, counts = found.histogram()
    recorded_s = float(found.recorded_s)
    low, high = min(float(edges[0]), recorded_s), max(float(edges[-1]), recorded_s)
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
_TITLE = {"font": {"size": 15}, "x": 0, "xref": "paper"}


def figure(found: Any) -> Any:
    """Return how often each step time came, as a figure of its own."""
    return NotebookFigure(as_figure(_alone(found)), lambda: distribution_svg(found))


def _alone(found: Any) -> Drawing:
    """Draw how often each step time came."""
    _, unit_name = time_unit(found.recorded_s)
    layout = {
        **FIGURE_STYLE,
        "xaxis": axis(f"step time ({unit_name})", 6),
        "yaxis": axis("samples (%)", rangemode="tozero"),
        "height": 340,
        "margin": {"l": 64, "r": 24, "t": 84, "b": 52},
        "title": {**_TITLE, "text": title_of(found), "pad": {"t": 10}},
        # above the panel, where it hides no bar
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "xanchor": "left", "yanchor": "bottom"},
    }
    return Drawing(_traces(found), layout)


def title_of(found: Any) -> str:
    """Return in words what the distribution is of."""
    return f"Step time of {found.run.strategy} under noise, {found.num_samples:,} samples"


def write_html(found: Any, path: Path, include_plotlyjs: bool | str = True) -> Path:
    """Write the recorded run and the distribution as one page, and return its path.

    The run's timeline is below the distribution.
    """
    run, view = found.run, view_of(found.run)
    # its rows are all ranks, also of a run whose own picture has a row a class
    picture = run_picture("", run.step_timeline, replace(view, ranks_of_rows=()), journals=run.memory_journals)
    facts = [*view.facts, *_facts(found)]
    below = timeline_section([picture])
    return write_page(path, _alone(found), view.title, include_plotlyjs, _tables(found), facts, below)


def _facts(found: Any) -> list[str]:
    """Return the figures of a distribution, for the line below a title."""
    words = [f"P{percent} {duration(found.percentile(percent))}" for percent in PERCENTILES]
    return [f"noise: {found.noise}", f"{found.num_samples:,} samples, seed {found.seed}", *words]


def _tables(found: Any) -> str:
    """Return the ranks and operations that make the tail, as HTML."""
    tail = found.tail
    about = f"of the slowest {len(tail.samples):,} samples"
    parts = {"Ranks": tail.ranks, "Types of operations": tail.types, "Operations": tail.operations}
    return section([(f"{name} on the critical paths {about}", [_table(rows)]) for name, rows in parts.items() if rows])


def _table(carriers: Sequence[Any]) -> str:
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


def _traces(found: Any) -> list[Properties]:
    """Return the histogram and a line for the recorded step time and each percentile."""
    unit, unit_name = time_unit(found.recorded_s)
    edges, counts = found.histogram()
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
        )
        for name, (seconds, color, dash) in marks.items()
    ]
    return [bars, *lines]


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
    import plotly.graph_objects as go  # type: ignore[import-untyped]  # noqa: PLC0415  (for this picture alone)

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
        "title": {**_TITLE, "text": f"What the step time of {strategy} depends on"},
        "margin": {"l": max(_LEFT, _LETTER * max(map(len, names), default=0)), "r": 24, "t": 76, "b": 52},
        "legend": {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
        "xaxis": axis(f"step time ({unit_name})"),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }
    return go.Figure(traces, layout)


_FRAMED = 12  # operations, those with the largest parts
_SLOWER, _FASTER = "#d1242f", "#1a7f37"
_COLUMNS = ("of the gap", "cause", "operation", "where", "each (before)")


def cells(part: Any, gap: float) -> list[str]:
    """Return a part as the cells of a table."""
    share = f" ({part.seconds / gap:.0%})" if gap else ""
    return [
        f"{duration(part.seconds)}{share}",
        part.cause,
        part.operation,
        part.where,
        f"{duration(part.after)} ({duration(part.before)})",
    ]


def parts_table(gap: Any, most: int = 12) -> Table:
    """Return the largest parts of a gap as a rich table, and all others as its last row."""
    shown, rest = gap.attribution[:most], gap.attribution[most:]
    rows: list[list[str | Text]] = [[Text(cell) for cell in cells(part, gap.seconds)] for part in shown]
    if rest:
        seconds = sum(part.seconds for part in rest)
        rows.append([duration(seconds), f"{len(rest)} more", "", "", ""])
    last = "on the path (before)" if any(part.per == "on the path" for part in shown) else _COLUMNS[-1]
    return filled_table(dict(zip([*_COLUMNS[:-1], last], (None, 13, 14, 8, 10), strict=True)), rows)


def write_diff_page(gap: Any, path: Path) -> Path:
    """Write a gap as an HTML page that needs no internet, and return its path."""
    a, b = gap.names
    lines = gap.lines
    marks = [_marks(gap, lines, line) for line in lines] if gap.share_by_event is not None else [[], []]
    pictures = [
        run_picture(name, line, _view(run), framed)
        for name, line, run, framed in zip((a, b), lines, (gap.before, gap.after), marks, strict=True)
    ]
    links = {}
    if gap.share_by_event is not None:
        links = _places(gap, lines)
    rows = [dict(zip(_COLUMNS, cells(part, gap.seconds), strict=True)) for part in gap.attribution]
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in gap.words)
    table = html_table([{"part": f"{row.pop('operation')}, {row.pop('cause')}", **row} for row in rows], links)
    body = f'{said}<div class="wide parts">{table}</div>'
    return write_timelines(path, pictures, f"{b} beside {a}", body)


def _view(run: Any) -> View:
    """Return the words and units of a run whose ranks are all drawn."""
    drawn = "" if run.typical is None else ", drawn with the median time of each operation"
    return replace(view_of(run), facts=[f"step {duration(run.step_time)}{drawn}"], ranks_of_rows=())


def _largest(gap: Any) -> list[int]:
    """Return the operations with the largest parts of the gap."""
    order = np.argsort(-np.abs(gap.share_by_event), kind="stable")[:_FRAMED]
    return [event for event in order.tolist() if gap.share_by_event[event]]


def _marks(gap: Any, lines: tuple[Timeline, Timeline], line: Timeline) -> list[dict[str, Any]]:
    """Return frames around the operations with the largest parts in one of the runs; a number joins those of both."""
    found = []
    for number, event in enumerate(_largest(gap), 1):
        color = _SLOWER if gap.share_by_event[event] > 0 else _FASTER
        place = int(line.rank[event]), float(line.time[event]), float(line.end[event])
        found.append(frame(str(number), *place, color, _said(gap, lines, event)))
    return found


def _said(gap: Any, lines: tuple[Timeline, Timeline], event: int) -> str:
    """Return what is said of a framed operation."""
    a, b = lines
    layer = f" of {a.layer_name(int(a.layer[event]))}" if a.layer[event] >= 0 else ""
    return (
        f"{a.typs[a.typ[event]]}{layer} on rank {a.rank_name(int(a.rank[event]))}: "
        f"{duration(float(gap.share_by_event[event]))} of the gap; "
        f"{gap.names[0]}: {duration(float(a.duration[event]))}, {gap.names[1]}: {duration(float(b.duration[event]))}"
    )


def _places(gap: Any, lines: tuple[Timeline, Timeline]) -> dict[str, str]:
    """Return links that zoom into the operation with the largest share of each part, by the part's name."""
    aligned = max(line.begin for line in lines)  # on the page both steps begin then
    found = {}
    for part in gap.attribution:
        line = lines[1]
        typ = part.operation.partition(" of ")[0]
        alike = line.of_types([typ]) & np.isin(line.rank, part.ranks)
        if alike.any():
            event = int(np.argmax(np.where(alike, np.abs(gap.share_by_event), -1.0)))
            both = [(each.time[event] + aligned - each.begin, each.end[event] + aligned - each.begin) for each in lines]
            low, high = min(begin for begin, _ in both), max(end for _, end in both)
            margin = (high - low) / 10
            zoom = f"javascript:void timeline.zoomTo({max(low - margin, 0):.9g}, {high + margin:.9g})"
            found[f"{part.operation}, {part.cause}"] = zoom
    return found
