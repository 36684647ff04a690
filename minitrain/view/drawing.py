"""Figures as plain dicts of data and layout, which pages write as JSON, and Plotly's figures made of them.

A page needs nothing of the Python package of Plotly but its JavaScript and its default template, both of which are
files. Importing the package and letting it validate every property takes several times as long as all else that a page
takes, so only `as_figure` does that: for whoever asks for a figure, and for tests, which so validate what pages hold.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Properties = dict[str, Any]
"""What Plotly's JavaScript knows of a trace or a layout, by its names; arrays of numbers may be NumPy's."""

_INTEGERS = {"i": (np.int8, np.int16, np.int32), "u": (np.uint8, np.uint16, np.uint32)}
_PACKED = frozenset({"i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8"})
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "/": "\\u002f"}  # within a script element


class Drawing(NamedTuple):
    """A figure that is not validated.

    Args:
        data: its traces, each with its type.
        layout: all else.
    """

    data: list[Properties]
    layout: Properties


def bar(**properties: Any) -> Properties:
    """Return a trace of bars."""
    return {"type": "bar", **properties}


def scatter(**properties: Any) -> Properties:
    """Return a trace of points or lines."""
    return {"type": "scatter", **properties}


def changed(layout: Properties, changes: Mapping[str, Any]) -> Properties:
    """Set properties of a layout by paths, as a menu's button does, and return it.

    >>> changed({"annotations": [{"y": 0}]}, {"yaxis2.domain": (0, 1), "annotations[0].y": 1})
    {'annotations': [{'y': 1}], 'yaxis2': {'domain': (0, 1)}}
    """
    for path, value in changes.items():
        *parents, last = re.findall(r"\w+", path)
        place: Any = layout
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        place[last] = value
    return layout


def as_figure(drawing: Drawing) -> Any:
    """Return a `plotly.graph_objects.Figure`, validated."""
    from plotly.graph_objects import (  # type: ignore[import-untyped]  # noqa: PLC0415  (plotly ships no types)
        Figure,
    )

    return Figure(drawing.data, drawing.layout)


def figure_json(figure: Any) -> str:
    """Return a drawing, or a figure of Plotly's, as JSON: with a template, which Plotly's own have already."""
    if not isinstance(figure, Drawing):
        return page_json(figure.to_plotly_json())
    return page_json({"data": figure.data, "layout": {"template": _template(), **figure.layout}})


def page_json(value: Any) -> str:
    """Return JSON that may stand inside a script element: arrays packed, and no number that JSON does not have."""
    try:
        text = json.dumps(value, default=_plain, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), default=_plain, separators=(",", ":"))
    for character, escaped in _UNSAFE.items():  # several times as quick as `str.translate`
        text = text.replace(character, escaped)
    return text


def _plain(value: Any) -> Any:
    """Return a number or an array of NumPy's as JSON has it: arrays as their type and their bytes in base 64."""
    if isinstance(value, np.generic):
        return _finite(value.item())
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} is no part of a figure")
    little = _shrunk(value)
    kind = f"{little.dtype.kind}{little.dtype.itemsize}"
    if not little.size or kind not in _PACKED:
        return _finite(value.tolist())
    shape = {"shape": ", ".join(map(str, little.shape))} if little.ndim > 1 else {}
    return {"dtype": kind, "bdata": b64encode(little.tobytes()).decode("ascii"), **shape}


def _shrunk(values: NDArray[Any]) -> NDArray[Any]:
    """Return 64-bit whole numbers, which JavaScript has none of, in the smallest type that holds them all."""
    if values.dtype.itemsize == 8 and values.dtype.kind in _INTEGERS and values.size:
        low, high = int(values.min()), int(values.max())
        for kind in _INTEGERS[values.dtype.kind]:
            limits = np.iinfo(kind)
            if limits.min <= low and high <= limits.max:
                return values.astype(kind)
    return values.astype(values.dtype.newbyteorder("<"), copy=False)


def _finite(value: Any) -> Any:
    """Return nothing in the place of numbers that JSON does not have, however deep."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(part) for part in value]
    return value


def plotly_file(name: str) -> Path:
    """Return where a file of Plotly's package is: its JavaScript, or a template."""
    spec = find_spec("plotly")
    assert spec is not None  # minitrain depends on it
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], "package_data", name)


@lru_cache(maxsize=1)
def _template() -> Any:
    """Return the template that Plotly's figures have by default."""
    return json.loads(plotly_file("templates/plotly.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def plotly_script() -> str:
    """Return Plotly's JavaScript without the address to which its share button would send a figure."""
    code = plotly_file("plotly.min.js").read_text(encoding="utf-8")
    before, setting, after = code.partition('plotlyServerURL:{valType:"string",dflt:"')
    return before + setting + after[after.index('"') :] if setting else code
