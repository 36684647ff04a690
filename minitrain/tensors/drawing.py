"""A tensor as a notebook shows it: which layer of the model it belongs to, and which shards and samples it holds."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from minitrain.tensors.index_sets import ranges, runs

_COLORS = {
    "Weight": "#77AADD",
    "OptState": "#99DDFF",
    "WeightGrad": "#EE8866",
    "Activation": "#44BB99",
    "ActivationGrad": "#EEDD88",
}
_LABEL, _WIDTH, _ROW, _BAR = 52, 240, 18, 12  # px
_MOST_CELLS = 48  # of more, borders would hide what is inside


def tensor_html(tensor: Any) -> str:
    """Return a tensor as a line of text over an inline SVG: one bar each of its layers, samples and shards."""
    name = type(tensor).__name__
    rows = list(_rows(tensor))
    color = _COLORS.get(name, "#BBBBBB")
    drawn = "".join(_bar(place, label, held, total, color) for place, (label, held, total) in enumerate(rows))
    height = _ROW * len(rows)
    text = " · ".join([f"<b>{html.escape(name)}</b>", *_facts(tensor)])
    return (
        f'<div style="font:12px system-ui,sans-serif">{text}<br><svg width="{_LABEL + _WIDTH}" height="{height}" '
        f'role="img" style="fill:currentColor">{drawn}</svg></div>'
    )


def _facts(tensor: Any) -> Iterator[str]:
    """Yield what a tensor is, in words."""
    yield f"layer {tensor.layer} of {tensor.layers}"
    if hasattr(tensor, "step"):
        yield f"step {tensor.step}"
    if hasattr(tensor, "samples"):
        yield f"samples {ranges(tensor.samples) or 'none'} of {tensor.total_samples}"
    if hasattr(tensor, "shards"):
        yield f"shards {ranges(tensor.shards) or 'none'} of {tensor.num_shards}"


def _rows(tensor: Any) -> Iterator[tuple[str, frozenset[int], int]]:
    """Yield the bars: name, what is held, of how many.

    An input activation may lie one layer beyond the model, and a gradient one before it; the nearest layer is shown.
    """
    layer = min(max(tensor.layer, 0), tensor.layers - 1)
    yield "layers", frozenset([layer]), tensor.layers
    if hasattr(tensor, "samples"):
        yield "samples", tensor.samples, tensor.total_samples
    if hasattr(tensor, "shards"):
        yield "shards", tensor.shards, tensor.num_shards


def _bar(place: int, label: str, held: frozenset[int], total: int, color: str) -> str:
    """Return one bar, filled where something is held; up to `_MOST_CELLS` it has a border around each cell."""
    top, cell = _ROW * place, _WIDTH / max(total, 1)
    text = f'<text x="{_LABEL - 6}" y="{top + _BAR - 2}" text-anchor="end" font-size="11">{label}</text>'
    held_cells = [(first, last - first + 1) for first, last in runs(held)]
    filled = "".join(
        f'<rect x="{_LABEL + cell * first:.2f}" y="{top}" width="{cell * count:.2f}" height="{_BAR}" fill="{color}"/>'
        for first, count in held_cells
    )
    edges = range(total + 1) if total <= _MOST_CELLS else (0, total)
    lines = "".join(f"M{_LABEL + cell * edge:.2f} {top}v{_BAR}" for edge in edges)
    frame = f"{lines}M{_LABEL} {top + 0.5}h{_WIDTH}M{_LABEL} {top + _BAR - 0.5}h{_WIDTH}"
    return f'{text}{filled}<path d="{frame}" stroke="#8b949e" stroke-opacity=".6" fill="none"/>'
