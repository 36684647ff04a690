"""How a figure is laid out: the Gantt chart above memory, axes, legends, and the words around them (`View`).

**Shared links** (`link_panel`) are shown below a picture: a strip of time for each of the busiest, and what was delayed
most. A strip is as dark as its link is full, from the beginning of the step to its end. It is drawn of bins, in each of
which the mean counts.

**Figures** are plain dicts of data and layout (`Drawing`), which pages write as JSON. A page needs nothing of the
Python package of Plotly but its JavaScript and its default template, both of which are files. Importing the package and
letting it validate every property takes several times as long as all else that a page takes, so only `as_figure` does
that: for whoever asks for a figure, and for tests, which so validate what pages hold.
"""

from __future__ import annotations

import html
import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minitrain.machine.price import Account
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.analysis.timeline import Floats, Timeline
from minitrain.tensors.index_sets import ranges
from minitrain.view.bars import Bars
from minitrain.workloads.matmul import MATMUL_LAYER

MAX_LANES, MAX_DELAYS = 16, 8
OUT_OF_MEMORY = "(out of memory)"
"""What a fact of a run that does not fit ends with."""
_BINS = 400
_LEAST = 0.004  # of a bin: less is not drawn


@dataclass(frozen=True, slots=True)
class LaneUse:
    """What one direction of a link carried.

    Args:
        name: what it is called.
        bytes_per_s: what it carries at most.
        steps: moments, s, and what it carried from each on, bytes/s.
    """

    name: str
    bytes_per_s: float
    steps: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Delay:
    """A transfer that took longer than its price.

    Args:
        what: "all_gather of layer 3, rank 2".
        seconds: by how much, s.
        reason: "shared node0.nic1 with all_reduce of layer 17".
    """

    what: str
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Links:
    """What is shown of the links of a run.

    Args:
        lanes: what each direction of each link carried.
        delays: what took longer than its price; None where there are no prices.
        until: the end of the step, s.
    """

    lanes: Sequence[LaneUse]
    delays: Sequence[Delay] | None
    until: float


def link_panel(links: Links) -> str:
    """Return the panel as HTML; nothing where no link carried anything."""
    if not links.lanes or links.until <= 0:
        return ""
    shares = {lane.name: means(lane, links.until, _BINS) for lane in links.lanes}
    busiest = sorted(links.lanes, key=lambda lane: -float(shares[lane.name].mean()))[:MAX_LANES]
    rows = "".join(_row(lane, shares[lane.name]) for lane in busiest)
    left_out = len(links.lanes) - len(busiest)
    more = f"<p>{left_out} more that carried less are not shown.</p>" if left_out else ""
    return (
        f'<section class="links"><h2>Links, 0 to {duration(links.until)}</h2>\n<table class="strips"><tbody>{rows}'
        f"</tbody></table>{more}\n{_delays(links.delays)}</section>\n"
    )


def means(lane: LaneUse, until: float, num_bins: int) -> Floats:
    """Return the mean share of its capacity that a lane carried in each bin of time, (num_bins,)."""
    moments = np.array([time for time, _ in lane.steps] + [until])
    loads = np.array([load for _, load in lane.steps])
    carried = np.concatenate([[0.0], np.cumsum(loads * np.diff(moments))])
    edges = np.linspace(0.0, until, num_bins + 1)
    at_edges = np.interp(edges, moments, carried, left=0.0)
    shares: Floats = np.diff(at_edges) / (lane.bytes_per_s * until / num_bins)
    return np.clip(shares, 0.0, 1.0)


def _row(lane: LaneUse, shares: Floats) -> str:
    """Return one strip, with the name of its link and its mean use."""
    name = html.escape(lane.name)
    return (
        f'<tr><td>{name}</td><td>{shares.mean():.1%}</td><td class="strip"><svg viewBox="0 0 {len(shares)} 1" '
        f'preserveAspectRatio="none" role="img" aria-label="{name}">{"".join(_blocks(shares))}</svg></td></tr>'
    )


def _blocks(shares: Floats) -> Iterable[str]:
    """Yield a rectangle for each run of bins that are equally full, to a percent."""
    percent = np.rint(100 * shares).astype(int)
    edges = np.flatnonzero(np.diff(percent)) + 1
    for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), len(percent)], strict=True):
        share = float(percent[begin]) / 100
        if share > _LEAST:
            yield f'<rect x="{begin}" width="{end - begin}" height="1" opacity="{0.15 + 0.85 * share:.2f}"/>'


def _delays(delays: Sequence[Delay] | None) -> str:
    """Return a table of what was delayed most."""
    if delays is None:
        return ""
    if not delays:
        return "<p>No transfer took longer than its price.</p>"
    longest = sorted(delays, key=lambda delay: -delay.seconds)[:MAX_DELAYS]
    rows = "".join(
        f"<tr><td>{html.escape(delay.what)}</td><td>+{duration(delay.seconds)}</td>"
        f'<td class="rest">{html.escape(delay.reason)}</td></tr>'
        for delay in longest
    )
    title = f"Delayed by sharing: {len(delays):,} transfers"
    return f"<h2>{title}</h2><table><tbody>{rows}</tbody></table>"


MEMORY_HEIGHT = 190
_TOP, _BOTTOM, _PANEL_GAP = 88, 52, 34
_MANY_KINDS, _LEGEND_ROW = 12, 19  # of bars; px
_TICK = 15  # px that a number on the axis of ranks needs
GRID = "rgba(128,128,128,0.22)"
INK = "#5A5F66"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
FIGURE_STYLE = {
    "font": {"family": _FONT, "size": 12, "color": INK},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "barmode": "overlay",
    "hovermode": "closest",
    "modebar": {"remove": ["sendChartToCloud"]},
    "uniformtext": {"mode": "hide", "minsize": 8},
}


@dataclass(frozen=True, slots=True)
class View:
    """The words and units of one picture.

    Args:
        title: what is shown, such as the strategy and the hardware.
        facts: short texts for the line below it, such as "step 12.3 ms" and "MFU 41 %".
        step_end: when the step ends, s; the latest end of the log if None.
        capacity_bytes: memory of the device, bytes, drawn as a line; None where there is none.
        bytes_per_element: bytes of one element of memory; by default those of the specified workload.
        links: what shared links carried, shown below the picture; None where none were shared.
        panel: HTML of a panel of its own, above the picture of a page.
        meshes: size by axis of each mesh that the ranks were laid out on, last axis fastest.
        ranks_of_rows: the ranks that each row of the picture stands for; empty where a row is the rank of its number.
        accounts: what explains each price of the timeline, by the price's id; see `minitrain.machine.price`.
        unexplained: why prices that `accounts` has not cannot be explained.
        steps: where each step but the first begins on the axis, s, of a run that shows several.
    """

    title: str = ""
    facts: Sequence[str] = ()
    step_end: float | None = None
    capacity_bytes: float | None = None
    bytes_per_element: float = MATMUL_LAYER.bytes_per_element
    links: Links | None = None
    panel: str = ""
    meshes: Sequence[Mapping[str, int]] = ()
    ranks_of_rows: Sequence[Sequence[int]] = ()
    accounts: Mapping[int, Callable[[], Account]] = field(default_factory=dict, repr=False, compare=False)
    unexplained: str = ""
    steps: Sequence[float] = ()

    @property
    def subtitle(self) -> str:
        """The facts in one line."""
        return " · ".join(self.facts)

    def along(self, ranks: Collection[int]) -> str:
        """Name ranks by their places in the first mesh.

        >>> View(meshes=[{"pp": 4, "tp": 2}]).along([2, 3, 4, 5]), View(meshes=[{"pp": 4, "tp": 2}]).along([2, 5])
        ('pp 1-2', '')
        """
        places, stride = dict[str, set[int]](), 1
        sizes = self.meshes[0] if self.meshes else {}
        for axis, size in reversed(list(sizes.items())):
            places[axis] = {rank // stride % size for rank in ranks}
            stride *= size
        are_all = prod(map(len, places.values())) == len(ranks)  # that have one of the places along each axis
        named = [
            axis
            for axis, size in sizes.items()
            if len(places[axis]) == 1 < size or (len(places[axis]) < size and are_all)
        ]
        return " ".join(f"{axis} {ranges(places[axis])}" for axis in named)


def layout(bars: Bars, view: View, unit: float, unit_name: str, peak_gib: float) -> dict[str, Any]:
    """Return the layout of one run's figure."""
    rows = gantt_height(bars.timeline.num_ranks, bars.num_lanes)
    if len(bars.kinds) > _MANY_KINDS:  # whose legend would reach into that of the memory panel
        rows = max(rows, _LEGEND_ROW * (len(bars.kinds) + 1))
    inner = rows + _PANEL_GAP + MEMORY_HEIGHT
    split = MEMORY_HEIGHT / inner, (MEMORY_HEIGHT + _PANEL_GAP) / inner
    marks = _capacity(view, peak_gib)
    shapes = [*marks.get("shapes", ()), *_begin_of_step(bars.timeline, unit)]
    return {
        "height": inner + _TOP + _BOTTOM,
        "margin": {"l": 64 + 7 * max(map(len, bars.timeline.rank_names), default=0), "r": 150, "t": _TOP, "b": _BOTTOM},
        "title": title(view),
        **FIGURE_STYLE,
        "xaxis": time_axis(bars.step_end / unit, unit_name, "y2"),
        "yaxis": rank_axis(bars.timeline, (split[1], 1), rows),
        "yaxis2": {**_memory_axis(peak_gib, view), "domain": (0, split[0])},
        "legend": {"x": 1.01, "y": 1, "xanchor": "left", "yanchor": "top", "tracegroupgap": 0},
        "legend2": {"x": 1.01, "y": split[0], "xanchor": "left", "yanchor": "top", "font": {"size": 11}},
        **marks,
        **({"shapes": shapes} if shapes else {}),
    }


def gantt_height(num_ranks: int, num_lanes: int = 1) -> int:
    """Return the height of the Gantt panel, px: readable rows for few ranks, at most some screens for many."""
    row = min(44, max(2, 640 // max(num_ranks, 1)))
    return int(min(max(row * num_ranks * (1.25 if num_lanes > 1 else 1), 90), 1100))


def title(view: View) -> dict[str, Any]:
    """Return the title with its line of facts."""
    return {
        "text": f"<b>{view.title}</b>" if view.title else "",
        "subtitle": {"text": view.subtitle, "font": {"size": 13}},
        "font": {"size": 18},
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": 1,
        "yref": "container",
        "yanchor": "top",
        "pad": {"t": 14},
    }


def time_axis(longest: float, unit_name: str, anchor: str) -> dict[str, Any]:
    """Return the common time axis, from 0 to `longest` in its unit."""
    spike = {"spikemode": "across", "spikethickness": 1, "spikedash": "dot", "spikecolor": INK}
    return axis(f"time ({unit_name})", 6, range=(0, longest or 1), anchor=anchor, showspikes=True, **spike)


def axis(text: str, standoff: int = 4, **more: Any) -> dict[str, Any]:
    """Return an axis with a title and a grid."""
    return {"title": {"text": text, "standoff": standoff}, "gridcolor": GRID, "zeroline": False, **more}


def _title_of_ranks(line: Timeline) -> str:
    """Return the title of an axis of ranks, whose names say how many are alike, what devices they have, or both."""
    if not line.rank_names:
        return "rank"
    return "rank (x ranks alike)" if line.ranks_a_row > 1 else "rank and device"


def rank_axis(line: Timeline, domain: tuple[float, float], height: float) -> dict[str, Any]:
    """Return the axis with a row a rank, rank 0 on top, and as many numbers as stand apart in a height in px.

    Args:
        line: whose rows it names.
        domain: the part of the figure's height that it takes.
        height: that part in px.
    """
    num_ranks, names = line.num_ranks, line.rank_names
    most = max(1, min(32, int(height) // _TICK))
    every = 1
    while every * most < num_ranks:
        every *= 2
    return {
        "title": {"text": _title_of_ranks(line), "standoff": 4},
        "domain": domain,
        "range": (max(num_ranks, 1) - 0.5, -0.5),
        "tickmode": "array",
        "tickvals": list(range(0, num_ranks, every)),
        **({"ticktext": list(names[::every])} if names else {}),
        "showgrid": False,
        "zeroline": False,
        "fixedrange": num_ranks <= 32,
    }


def _memory_axis(peak_gib: float, view: View) -> dict[str, Any]:
    """Return the memory axis; it reaches to the device's capacity where the curves come near it."""
    top = max(peak_gib, _shown_capacity(view, peak_gib) or 0.0) * 1.08
    return axis("memory (GiB)", range=(0, top or 1), fixedrange=True)


def _begin_of_step(line: Timeline, unit: float) -> list[dict[str, Any]]:
    """Return the line where the step begins, unless that is at 0."""
    begin = line.begin / unit
    dots = {"color": INK, "width": 1.5, "dash": "dot"}
    shape = {"type": "line", "xref": "x", "x0": begin, "x1": begin, "yref": "paper", "y0": 0, "y1": 1, "line": dots}
    return [shape] if begin else []


def _shown_capacity(view: View, peak_gib: float) -> float | None:
    """Return the capacity in GiB if the curves rise to 40 % of it, else None."""
    capacity = (view.capacity_bytes or 0.0) / GIB
    return capacity if capacity and peak_gib >= 0.4 * capacity else None


def _capacity(view: View, peak_gib: float) -> dict[str, Any]:
    """Return the line at the device's capacity, or a note where it is far above the curves."""
    if view.capacity_bytes is None:
        return {}
    text = f"device memory {view.capacity_bytes / GIB:.4g} GiB"
    font = {"size": 11, "color": "#D55E00"}
    place = {"xref": "x domain", "x": 1, "xanchor": "right", "showarrow": False, "font": font}
    shown = _shown_capacity(view, peak_gib)
    if shown is None:
        note = {**place, "text": f"{text} ↑", "yref": "y2 domain", "y": 1, "yanchor": "bottom"}
        return {"annotations": [note]}
    line = {"color": "#D55E00", "width": 1.5, "dash": "dash"}
    shape = {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "yref": "y2", "y0": shown, "y1": shown, "line": line}
    return {"shapes": [shape], "annotations": [{**place, "text": text, "yref": "y2", "y": shown, "yanchor": "bottom"}]}


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
