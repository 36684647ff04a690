"""The distribution of a step time as an SVG, which a notebook shows and keeps without any script.

It is a file of its own, since it needs no Plotly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from minitrain.analysis.labels import duration

if TYPE_CHECKING:
    from minitrain.noise.distribution import Distribution

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
