"""A run's Gantt chart as SVG, for papers and READMEs: no browser, no library, a few kilobytes.

Each rank has a row. Consecutive layers are joined, as in the figures of papers, and microbatch numbers are written
where they fit. The colours are those of the page. The picture follows the reader's light or dark mode.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten

import numpy as np

from minitrain.files import write_text
from minitrain.run.analysis.labels import duration, time_unit
from minitrain.run.analysis.timeline import NONE, Trace, as_timeline
from minitrain.view.bars import Bars, Kind, bar_labels, make_bars, merged
from minitrain.view.gantt import lane_geometry
from minitrain.view.layout import View

_LEFT, _RIGHT, _ROW, _TITLE, _AXIS, _LEGEND_ROW = 58, 12, 26, 26, 30, 20
_CHARACTER, _LETTER, _SWATCH = 6.6, 9, 18  # px; a letter is one of the title
_STYLE = (
    "text{font:11px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#3d444d}"
    ".t{font-size:14px;font-weight:700}.m{text-anchor:middle}.e{text-anchor:end}"
    ".w{fill:#8b949e;fill-opacity:.18}.g{stroke:#8b949e;stroke-opacity:.5}"
    "@media(prefers-color-scheme:dark){text{fill:#c9d1d9}%s}"
)


def write_svg(path: str | Path, trace: Trace, view: View | None = None, width: int = 960) -> Path:
    """Write a Gantt chart as SVG and return the path."""
    return write_text(path, [svg(trace, view, width)])


def svg(trace: Trace, view: View | None = None, width: int = 960) -> str:
    """Return a Gantt chart as SVG.

    Args:
        trace: one log a rank, or columns.
        view: title and step time; plain ones if None.
        width: width, px.
    """
    view = view or View()
    bars = merged(make_bars(as_timeline(trace), view.step_end))
    return "".join(f"{part}\n" for part in _parts(bars, view, width))


def _parts(bars: Bars, view: View, width: int) -> Iterator[str]:
    """Yield the elements, from the top."""
    num_ranks = bars.timeline.num_ranks
    top = _TITLE if view.title else 6
    bottom = top + _ROW * num_ranks
    longest = max((len(bars.timeline.rank_name(rank)) for rank in range(num_ranks)), default=0)
    left = max(_LEFT, (len("rank ") + longest) * _CHARACTER)  # behind the names of rows, px
    legend = _legend(bars.kinds, left, width)
    height = bottom + _AXIS + _LEGEND_ROW * (legend[-1][1] + 1 if legend else 0) + 4
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" style="max-width:100%;height:auto"><title>{html.escape(view.title or "Gantt chart")}</title>'
        f"<style>{_style(bars.kinds)}</style>"
    )
    if view.title:
        shown = shorten(view.title, int((width - left) / _LETTER), placeholder=" …")
        yield f'<text class="t" x="{left:g}" y="16">{html.escape(shown)}</text>'
    for rank in range(num_ranks):
        name = html.escape(f"rank {bars.timeline.rank_name(rank)}")
        yield f'<text class="e" x="{left - 6:g}" y="{top + _ROW * (rank + 0.5) + 4:g}">{name}</text>'
    yield from _rows(bars, top, left, width)
    if bars.timeline.begin:  # the step begins
        begin = _px(left + bars.timeline.begin * (width - left - _RIGHT) / bars.step_end)
        yield f'<path class="g" stroke-dasharray="2 2" d="M{begin} {top}V{bottom}"/>'
    yield from _axis(bars.step_end, bottom, left, width)
    for x, row, kind in legend:
        y = bottom + _AXIS + _LEGEND_ROW * row
        yield f'<rect {_fill(kind)} x="{x:g}" y="{y}" width="12" height="12"/>'
        yield f'<text x="{x + _SWATCH:g}" y="{y + 10}">{html.escape(kind.name)}</text>'
    yield "</svg>"


def _rows(bars: Bars, top: int, edge: float, width: int) -> Iterator[str]:
    """Yield the bars, each with its number where that fits."""
    scale = (width - edge - _RIGHT) / bars.step_end if bars.step_end > 0 else 0.0
    center, thickness = lane_geometry(bars.num_lanes)
    left = edge + bars.start * scale
    length = bars.duration * scale
    middle = top + _ROW * (bars.rank + 0.5 + center[bars.lane])
    heights = _ROW * thickness[bars.lane]
    for place, number in enumerate(bar_labels(bars).tolist()):
        kind, size = bars.kinds[bars.kind[place]], heights[place]
        yield (
            f'<rect {_fill(kind)} x="{_px(left[place])}" y="{_px(middle[place] - size / 2)}" '
            f'width="{_px(length[place])}" height="{_px(size)}"/>'
        )
        if number != NONE and length[place] >= _CHARACTER * len(str(number)) + 2 and size > 11:
            x, y = _px(left[place] + length[place] / 2), _px(middle[place] + 4)
            yield f'<text class="{_text_class(kind)}" x="{x}" y="{y}" style="fill:{kind.ink}">{number}</text>'


def _axis(step_end: float, y: int, left: float, width: int) -> Iterator[str]:
    """Yield the time axis, with about six ticks at round times."""
    yield f'<path class="g" d="M{left:g} {y}H{width - _RIGHT}"/>'
    if step_end <= 0:
        return
    unit, _ = time_unit(step_end)
    every = _round_step(step_end / unit / 6) * unit
    scale = (width - left - _RIGHT) / step_end
    for tick in np.arange(0, step_end * (1 + 1e-9), every).tolist():
        x = _px(left + tick * scale)
        yield f'<path class="g" d="M{x} {y}v4"/><text class="m" x="{x}" y="{y + 16}">{duration(tick)}</text>'


def _round_step(step: float) -> float:
    """Return the smallest of 1, 2 or 5 times a power of ten that is not below a step.

    >>> _round_step(0.3), _round_step(17)
    (0.5, 20.0)
    """
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _legend(kinds: tuple[Kind, ...], left: float, width: int) -> list[tuple[float, int, Kind]]:
    """Return the place of each kind in the legend: x in px, and the row."""
    places: list[tuple[float, int, Kind]] = []
    x, row = left, 0
    for kind in kinds:
        needed = _SWATCH + _CHARACTER * len(kind.name) + 14
        if x + needed > width and x > left:
            x, row = left, row + 1
        places.append((x, row, kind))
        x += needed
    return places


def _fill(kind: Kind) -> str:
    """Return the fill of a kind of bar; that of waiting suits light and dark mode."""
    return f'fill="{kind.color}"' if kind.color.startswith("#") else 'class="w"'


def _style(kinds: tuple[Kind, ...]) -> str:
    """Return the style, with the lighter colours that some kinds have in dark mode."""
    lighter = "".join(
        f'rect[fill="{kind.color}"]{{fill:{kind.dark}}}.{_text_class(kind).split()[1]}{{fill:{kind.dark_ink}!important}}'
        for kind in kinds
        if kind.dark
    )
    return _STYLE % lighter


def _text_class(kind: Kind) -> str:
    """Return the classes of a number on a bar, by which dark mode finds those on a bar with another colour."""
    return f"m on-{kind.name}" if kind.dark else "m"


def _px(value: float) -> str:
    """Write a coordinate to a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


_CURVE = (560, 150, 48, 22)  # width, height, space for numbers at the left and below, px
_MOST_POINTS = 500


def curve_svg(values: Sequence[float], first: int, title: str, unit: str) -> str:
    """Return numbers over their steps as a line, in the colours of the page around it.

    Of many steps, a point is the mean of some. What is no finite number is left out.

    Args:
        values: one a step.
        first: number of the first step.
        title: what they are, for who cannot see the picture.
        unit: of the numbers.
    """
    width, height, left, below = _CURVE
    size = -(-len(values) // _MOST_POINTS)
    parts = [
        (at, [each for each in values[at : at + size] if math.isfinite(each)]) for at in range(0, len(values), size)
    ]
    points = [(first + at + (len(part) - 1) / 2, sum(part) / len(part)) for at, part in parts if part]
    if not points:
        return ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    last = max(first + len(values) - 1, first + 1)

    def place(step: float, value: float) -> str:
        x = left + (step - first) / (last - first) * (width - left - 8)
        return f"{x:.1f},{8 + (high - value) / ((high - low) or 1) * (height - below - 16):.1f}"

    line = " ".join(place(*point) for point in points)
    marks = ((left - 6, 12, high, "end"), (left - 6, height - below - 4, low, "end"))
    texts = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{value:.3g}</text>' for x, y, value, anchor in marks)
    return (
        f'<svg class="curve" viewBox="0 0 {width} {height}" role="img" style="max-width:{width}px;width:100%">'
        f"<title>{html.escape(title)}</title>"
        f'<g fill="currentColor" font-size="11">{texts}'
        f'<text x="{left}" y="{height - 4}">step {first}</text>'
        f'<text x="{width - 8}" y="{height - 4}" text-anchor="end">step {last}, {html.escape(unit)}</text></g>'
        f'<path d="M{left} {height - below}H{width - 8}" stroke="currentColor" stroke-opacity=".3"/>'
        f'<polyline points="{line}" fill="none" stroke="#4477AA" stroke-width="1.8"/></svg>\n'
    )
