"""Event logs -> a Plotly figure: what every rank does, above the memory that it holds, on one time axis.

- **One run** (`figure`): rank 0 is on top. Up to `MAX_BARS` bars are drawn one by one. The critical path is a line over
  the bars, which is switched on in the legend.
- **More bars** become a heat map (`Heat`). The colour of a cell says what takes most of its ranks' time (computing,
  exposed communication or waiting), and its strength how much of it.
- **Several runs** on one common time axis (`compare_figure`): a Gantt chart each, and their memory together.
- **Memory**: a curve a rank, or a band for many ranks; or areas by kind for one rank, where a run has journals. The
  rank that holds most is shown first. A menu switches to another rank, or to the totals of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minitrain.operations import COMMUNICATIONS, STORE_NAMES
from minitrain.run.analysis.labels import GIB, duration, time_unit
from minitrain.run.analysis.memory_over_time import (
    Curve,
    HighWater,
    Journals,
    curves_by_kind,
    high_water,
    highest_in_spans,
    memory_curve,
)
from minitrain.run.analysis.retiming import critical_path, make_graph
from minitrain.run.analysis.timeline import NONE, Bools, Floats, Ints, Trace, as_timeline
from minitrain.tensors.index_sets import grouped
from minitrain.view.bars import (
    COMPUTING,
    EXPOSED,
    IDLE,
    Bars,
    Kind,
    bar_labels,
    hover_texts,
    legend_place,
    make_bars,
    merged,
    rows_of_layers,
)
from minitrain.view.explanation_panel import name_of_ranks
from minitrain.view.layout import (
    FIGURE_STYLE,
    MEMORY_HEIGHT,
    Drawing,
    Properties,
    View,
    as_figure,
    axis,
    bar,
    changed,
    layout,
    rank_axis,
    scatter,
    time_axis,
    title,
)

MAX_ROWS = 512
NUM_BINS = 1000
BANDS = (IDLE, COMPUTING, EXPOSED)
STEPS = 67  # colours of a use, from a third of a cell's time to all of it
_ROUNDING = 1e-9
_TOP = STEPS * len(BANDS) - 1


class Heat(NamedTuple):
    """Shares of time of groups of ranks in equal spans of the step, 0 to 1, which add up to 1.

    Args:
        ranks_per_row: how many neighbouring ranks share a row.
        computing: share with compute at work, (num_rows, num_bins).
        exposed: share communicating with no compute beside it, (num_rows, num_bins).
        waiting: share with nothing at work, (num_rows, num_bins).
    """

    ranks_per_row: int
    computing: Floats
    exposed: Floats
    waiting: Floats

    def codes(self) -> Ints:
        """Return what is done most and how much, as a place on the scale of colours, (num_rows, num_bins)."""
        shares = np.rint(100 * np.stack([self.waiting, self.computing, self.exposed])).astype(np.int64)
        most = shares.argmax(axis=0)
        codes: Ints = STEPS * most + np.clip(shares.max(axis=0) - (100 - STEPS + 1), 0, STEPS - 1)
        return codes


def heat(bars: Bars, num_bins: int = NUM_BINS) -> Heat:
    """Return the shares of time over the whole step."""
    num_ranks = bars.timeline.num_ranks
    per_row = -(-num_ranks // MAX_ROWS)
    num_rows = -(-num_ranks // per_row) if per_row else 0
    ranks_in_row = np.bincount(np.arange(num_ranks) // max(per_row, 1), minlength=num_rows)[:, None]
    on_compute = np.append(bars.timeline.computes, False)[bars.event] & ~bars.waits
    computing, waiting = (
        np.clip(_covered(bars, chosen, per_row, (num_rows, num_bins)) / ranks_in_row, 0, 1)
        for chosen in (on_compute, bars.waits)
    )
    # a rank computes, waits, or does neither: then it communicates with no compute beside it
    exposed = 1 - computing - waiting
    return Heat(per_row, computing, np.where(exposed > _ROUNDING, exposed, 0.0), waiting)


def _covered(bars: Bars, chosen: Bools, ranks_per_row: int, shape: tuple[int, int]) -> Floats:
    """Return how much of each bin the chosen bars cover, in bins."""
    num_rows, num_bins = shape
    row = bars.rank[chosen] // max(ranks_per_row, 1)
    step_end = bars.step_end if bars.step_end > 0 else np.inf
    start = np.clip(bars.start[chosen] / step_end * num_bins, 0, num_bins)
    end = np.clip((bars.start + bars.duration)[chosen] / step_end * num_bins, 0, num_bins)
    # the integral of a bar from 0 to x is max(x - start, 0) - max(x - end, 0); differences of it are the coverage
    return np.diff(_ramp(row, start, num_rows, num_bins) - _ramp(row, end, num_rows, num_bins), axis=1)


def _ramp(row: Ints, corner: Floats, num_rows: int, num_bins: int) -> Floats:
    """Return the sum of max(x - corner, 0) at every edge x of the bins, (num_rows, num_bins + 1)."""
    width = num_bins + 2
    edge = np.ceil(corner).astype(np.int64)
    place = row * width + edge
    count = np.bincount(place, minlength=num_rows * width).reshape(num_rows, width)
    offset = np.bincount(place, weights=edge - corner, minlength=num_rows * width).reshape(num_rows, width)
    began = np.cumsum(count, axis=1)
    slope = np.zeros((num_rows, width))
    slope[:, 1:] = np.cumsum(began[:, :-1], axis=1)
    return (slope + np.cumsum(offset, axis=1))[:, : num_bins + 1]


def scale() -> list[tuple[float, str]]:
    """Return the scale of colours: a band for each use of time, from pale to strong."""
    stops = []
    for place, use in enumerate(BANDS):
        stops += [(place * STEPS / _TOP, use.pale), ((place * STEPS + STEPS - 1) / _TOP, use.color)]
    return stops


def heat_trace(bars: Bars, unit: float) -> Properties:
    """Return the heat map of what ranks mostly do."""
    shares = heat(bars)
    step = bars.step_end / unit / shares.computing.shape[1]
    whose = "" if bars.timeline.rank_names else "rank %{y:.0f} "  # the axis has names, which a hover text cannot show
    return {
        "type": "heatmap",
        "z": shares.codes().astype(np.uint8),
        "customdata": np.rint(shares.computing * 100).astype(np.uint8),
        "text": np.rint(shares.exposed * 100).astype(np.uint8),
        "x0": step / 2,
        "dx": step,
        "y0": (shares.ranks_per_row - 1) / 2,
        "dy": shares.ranks_per_row,
        "zmin": 0,
        "zmax": _TOP,
        "colorscale": scale(),
        "showscale": False,
        "hovertemplate": f"{whose}at %{{x:.6g}}<br>{COMPUTING.name} %{{customdata}} %"
        f"<br>{EXPOSED.name} %{{text}} %<br>{IDLE.name} the rest<extra></extra>",
        "name": "what ranks mostly do",
    }


def heat_legend() -> list[Properties]:
    """Return a square for each use of time, for the legend alone."""
    words = {COMPUTING: "mostly computing", EXPOSED: "mostly communicating", IDLE: "mostly waiting"}
    return [
        scatter(
            x=[None],
            y=[None],
            name=name,
            mode="markers",
            marker={"color": use.color, "symbol": "square", "size": 12},
            hoverinfo="skip",
        )
        for use, name in words.items()
    ]


MAX_BARS = 5000
_MAIN_LANE, _LANE_GAP = 0.8, 0.04
CRITICAL_PATH = "critical path (click)"
_PATH_COLOR = "#D6006C"
BELOW_NUMBERS = 0.36  # of a bar's height below its middle: where the critical path runs


def figure(trace: Trace, view: View | None = None, journals: Journals = ()) -> Any:
    """Draw one run.

    Args:
        trace: one log a rank, or columns.
        view: title, facts and units; plain ones if None.
        journals: every change of every store, for memory by kind, if they were kept.

    Returns:
        A `plotly.graph_objects.Figure`.
    """
    view = view or View()
    return as_figure(drawn_bars(make_bars(as_timeline(trace), view.step_end), view, journals))


def drawn_bars(bars: Bars, view: View, journals: Journals = ()) -> Drawing:
    """Draw one run, given its bars; the traces of memory come first, so that menus can refer to them by their place."""
    unit, unit_name = time_unit(bars.step_end)
    totals = memory_traces(bars, view, unit)
    kinds, owners = kind_traces(bars, view, unit, journals) if journals else ([], [])
    for trace in totals if kinds else ():
        trace["visible"] = False
    center, width = lane_geometry(bars.num_lanes)
    overlays = [path_trace(bars, center + BELOW_NUMBERS * width, unit)] if len(bars) else []
    if len(bars) > MAX_BARS:
        drawn = [heat_trace(bars, unit), *heat_legend()]
    else:
        drawn = [*bar_traces(bars, view, unit), *microbatch_labels(bars, unit)]
    arranged = layout(bars, view, unit, unit_name, peak_gib(bars, view, journals))
    menu = rank_menu(len(totals), owners, arranged["yaxis2"]["domain"][1])
    if menu:
        arranged["updatemenus"] = menu
    return Drawing([*totals, *kinds, *overlays, *drawn], arranged)


def bar_traces(bars: Bars, view: View, unit: float, yaxis: str = "y") -> list[Properties]:
    """Return one bar trace a kind, over time in `unit` s, on rows 0 to num_ranks - 1 of an axis."""
    numbers = np.where(_has_common_label(bars), NONE, bar_labels(bars))
    traces = []
    for kind, part, trace in _traces_of_kinds(bars, numbers, bars.num_lanes, unit):
        own = {
            **({} if bars.num_lanes > 1 else {"width": _MAIN_LANE}),
            "hovertext": hover_texts(part, view.bytes_per_element),
            "hoverinfo": "text",
            "marker": {"line": {"width": 0}, **_fill(kind)},
            "yaxis": yaxis,
            "cliponaxis": True,
        }
        traces.append(trace | own)
    return traces


def microbatch_labels(bars: Bars, unit: float) -> list[Properties]:
    """Return one number for all consecutive layers of a microbatch, whose bars are too short for one each."""
    whole = merged(bars)
    whole = whole.take(np.flatnonzero((whole.last != whole.event) & (bar_labels(whole) != NONE)))
    unseen = {"showlegend": False, "hoverinfo": "skip", "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 0}}}
    return [trace | unseen for *_, trace in _traces_of_kinds(whole, bar_labels(whole), bars.num_lanes, unit)]


def _traces_of_kinds(bars: Bars, numbers: Ints, num_lanes: int, unit: float) -> Iterator[tuple[Kind, Bars, Properties]]:
    """Yield each kind that bars have, these bars, and their trace with numbers in the middle, where they fit."""
    center, width = lane_geometry(num_lanes)
    for code, kind in enumerate(bars.kinds):
        chosen = np.flatnonzero(bars.kind == code)
        if len(chosen):
            part = bars.take(chosen)
            yield (
                kind,
                part,
                bar(
                    name=kind.name,
                    legendgroup=kind.name,
                    orientation="h",
                    base=(part.start / unit).tolist(),
                    x=part.duration / unit,
                    y=part.rank + center[part.lane],
                    width=width[part.lane],
                    text=["" if number == NONE else str(number) for number in numbers[chosen].tolist()],
                    textposition="inside",
                    insidetextanchor="middle",
                    textangle=0,
                    insidetextfont={"color": kind.ink, "size": 11},
                ),
            )


def _has_common_label(bars: Bars) -> Bools:
    """Tell which bars get their number from `microbatch_labels`, (num_bars,)."""
    labels = bar_labels(bars)
    first, last = rows_of_layers(bars)
    order = np.lexsort((bars.start, bars.lane, bars.rank))
    place = np.empty(len(bars), np.int64)
    place[order] = np.arange(len(bars))
    common = np.repeat((first != last) & (labels[first] == labels[last]), place[last] - place[first] + 1)
    found = np.zeros(len(bars), dtype=bool)
    found[order] = common
    return found


def lane_geometry(num_lanes: int) -> tuple[Floats, Floats]:
    """Return the centre (from the row's middle, downwards) and the height of each lane, in rows."""
    if num_lanes == 1:
        return np.zeros(1), np.full(1, _MAIN_LANE)
    main = _MAIN_LANE * 0.6
    rest = (_MAIN_LANE - main) / (num_lanes - 1)
    width = np.array([main - _LANE_GAP, *[rest] * (num_lanes - 1)])
    top = np.array([0.0, *(main + rest * place for place in range(num_lanes - 1))])
    return top + width / 2 - _MAIN_LANE / 2, width


def _fill(kind: Kind) -> dict[str, Any]:
    """Return the fill of a kind of bar."""
    pattern = {"shape": kind.pattern, "size": 6, "solidity": 0.12, "fgcolor": "#666666"}
    return {"color": kind.color} | ({"pattern": pattern} if kind.pattern else {})


def path_trace(bars: Bars, center: Floats, unit: float, yaxis: str = "y") -> Properties:
    """Return the critical path as a line through its bars, hidden until it is switched on in the legend.

    Args:
        bars: the bars of the run, not merged.
        center: distance of the line from the row's middle on each lane, in rows.
        unit: unit of the time axis, s.
        yaxis: the axis with a row a rank.
    """
    time, row = path_points(bars, center)
    return {**path_entry(), "x": time / unit, "y": row, "yaxis": yaxis}


def path_entry() -> Properties:
    """Return the line without points, for the legend."""
    return scatter(
        x=[None],
        y=[None],
        name=CRITICAL_PATH,
        legendgroup=CRITICAL_PATH,
        mode="lines",
        line={"color": _PATH_COLOR, "width": 3},
        visible="legendonly",
        showlegend=True,
        hoverinfo="skip",
        legendrank=1100,
    )


def path_points(bars: Bars, center: Floats) -> tuple[Floats, Floats]:
    """Return the corners of the line: times in s, and rows."""
    line = bars.timeline
    path = critical_path(make_graph(line))
    lane = np.zeros(line.num_events, np.int64)
    works = ~bars.waits
    lane[bars.event[works]] = bars.lane[works]
    start = line.time[path.event]
    end = np.where(path.counts, line.end[path.event], start)
    time = np.stack([start, end], axis=1).reshape(-1)
    row = np.repeat(line.rank[path.event] + center[lane[path.event]], 2)
    corner = np.ones(len(row), dtype=bool)
    corner[1:-1] = (row[1:-1] != row[:-2]) | (row[1:-1] != row[2:])
    return time[corner], row[corner]


_CAPTION, _MEMORY_GAP, _HEAD, _BOTTOM = 34, 30, 122, 52
_MIN_ROW, _MAX_ROW = 3, 20  # px; below 20, Plotly writes no numbers
_COMPARED_SPANS = 600
# Paul Tol's bright scheme, which colour-blind readers can tell apart; runs beyond the seventh get dashes
_LINES = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#888888")
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a comparison: its name, bars (joined over layers, and one a layer), words and y axis."""

    name: str
    bars: Bars
    single: Bars
    view: View
    axis: str


def compare_figure(traces: Mapping[str, Trace], views: Mapping[str, View] | None = None, title: str = "") -> Any:
    """Draw several runs above one another, in the mapping's order.

    Args:
        traces: one trace a name.
        views: facts and units by name; plain ones where a name is missing.
        title: what is compared.

    Returns:
        A `plotly.graph_objects.Figure`.
    """
    runs = [
        _run(place, name, trace, (views or {}).get(name, View())) for place, (name, trace) in enumerate(traces.items())
    ]
    longest = max((run.bars.step_end for run in runs), default=0.0)
    unit, unit_name = time_unit(longest)
    memory_axis = f"y{len(runs) + 1}" if runs else "y"
    exact = _drawn_exactly(runs)
    drawn = _legend(runs, exact)
    for run in runs:
        drawn += _gantt(run, unit, run.name in exact)
    drawn += [_memory(place, run, unit, memory_axis) for place, run in enumerate(runs)]
    drawn += [_path(run, unit) for run in runs if len(run.bars)]
    return as_figure(Drawing(drawn, _layout(runs, title, longest / unit, unit_name, memory_axis)))


def _path(run: _Run, unit: float) -> Properties:
    """Return the critical path of one run; the legend has one entry for all of them."""
    center, width = lane_geometry(run.bars.num_lanes)
    return path_trace(run.single, center + BELOW_NUMBERS * width, unit, run.axis) | {"showlegend": False}


def _run(place: int, name: str, trace: Trace, view: View) -> _Run:
    """Make the bars of one run; those of consecutive layers are joined, as in the figures of papers."""
    single = make_bars(as_timeline(trace), view.step_end)
    return _Run(name, merged(single), single, view, f"y{place + 1}" if place else "y")


def _drawn_exactly(runs: list[_Run]) -> set[str]:
    """Return the runs whose bars are drawn one by one: the smallest ones, up to `MAX_BARS` bars in all."""
    names, drawn = set(), 0
    for run in sorted(runs, key=lambda run: len(run.bars)):
        drawn += len(run.bars)
        if drawn <= MAX_BARS:
            names.add(run.name)
    return names


def _gantt(run: _Run, unit: float, exact: bool) -> list[Properties]:
    """Return the bars of one run, or a heat map of it."""
    if not exact:
        return [heat_trace(run.bars, unit) | {"yaxis": run.axis}]
    drawn = bar_traces(run.bars, run.view, unit, run.axis)
    for trace in drawn:
        trace["showlegend"] = False
        if trace["name"] in COMMUNICATIONS:
            del trace["text"]  # Plotly writes beyond a bar that is narrower than its padding
    return drawn


def _legend(runs: list[_Run], exact: set[str]) -> list[Properties]:
    """Return an empty bar for every kind and an empty path, so that the legend is complete whichever run is shown."""
    kinds = {kind.name: kind for run in runs if run.name in exact for kind in run.bars.kinds}
    entries = [
        bar(x=[None], y=[None], name=name, legendgroup=name, orientation="h", marker=_fill(kinds[name]))
        for name in sorted(kinds, key=legend_place)
    ]
    entries += heat_legend() if len(exact) < len(runs) else []
    return [*entries, path_entry()] if any(len(run.bars) for run in runs) else entries


def _memory(place: int, run: _Run, unit: float, memory_axis: str) -> Properties:
    """Return the memory of a run over time: at every moment, that of the rank that holds most."""
    line, step = run.bars.timeline, run.bars.step_end
    gib = run.view.bytes_per_element / GIB
    spans: Floats = highest_in_spans(line, step, _COMPARED_SPANS) if line.num_ranks else np.zeros((1, _COMPARED_SPANS))
    dash = _DASHES[place // len(_LINES) % len(_DASHES)]
    line_of_run = {"width": 1.8, "color": _LINES[place % len(_LINES)], "dash": dash}
    time = np.linspace(0, step / unit, _COMPARED_SPANS, endpoint=False)
    return _curve(run.name, time, spans.max(axis=0) * gib, line_of_run, yaxis=memory_axis)


def _layout(runs: list[_Run], text: str, longest: float, unit_name: str, memory_axis: str) -> Properties:
    """Return the layout that shows all runs."""
    names = {run.axis.replace("y", "yaxis"): run for run in runs}
    layout: dict[str, Any] = {
        "margin": {"l": 64, "r": 150, "t": _HEAD, "b": _BOTTOM},
        "title": title(View(text)),
        **FIGURE_STYLE,
        "xaxis": time_axis(longest, unit_name, memory_axis),
        "annotations": [_caption(run) for run in runs],
        "legend": {"x": 1.01, "y": 1, "xanchor": "left", "yanchor": "top", "tracegroupgap": 0},
        "legend2": {"x": 1.01, "yanchor": "top", "xanchor": "left", "font": {"size": 11}},
        memory_axis.replace("y", "yaxis"): axis("memory (GiB),<br>highest rank", rangemode="tozero", fixedrange=True),
    }
    heights = [_small_height(run.bars.timeline.num_ranks, run.bars.num_lanes) for run in runs]
    for (key, run), height in zip(names.items(), heights, strict=True):
        layout[key] = {**rank_axis(run.bars.timeline, (0, 1), height), "fixedrange": True}
    return changed(layout, _arranged(heights))


def _caption(run: _Run) -> dict[str, Any]:
    """Return the line above a run's panel: its name and facts."""
    facts = run.view.subtitle or f"step {duration(run.bars.step_end)}"
    return {
        "text": f"<b>{run.name}</b>   {facts}",
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 13},
    }


def _arranged(heights: Sequence[int]) -> dict[str, Any]:
    """Return the height of the figure, and domains and captions of panels of these heights, px, from the top."""
    inner = sum(heights) + _CAPTION * max(len(heights) - 1, 0) + (_MEMORY_GAP if heights else 0) + MEMORY_HEIGHT
    changes: dict[str, Any] = {"height": inner + _HEAD + _BOTTOM, "legend2.y": MEMORY_HEIGHT / inner}
    top = inner
    for place, height in enumerate(heights):
        changes[f"annotations[{place}].y"] = top / inner
        changes[f"yaxis{place + 1 if place else ''}.domain"] = (max(top - height, 0) / inner, top / inner)
        top -= height + _CAPTION
    changes[f"yaxis{len(heights) + 1 if heights else ''}.domain"] = (0, MEMORY_HEIGHT / inner)
    return changes


def _small_height(num_ranks: int, num_lanes: int) -> int:
    """Return the height of one panel among many, px."""
    row = min(_MAX_ROW, max(_MIN_ROW, 160 // max(num_ranks, 1))) * (1.4 if num_lanes > 1 else 1)
    return int(min(max(row * num_ranks, 40), 320))


MAX_CURVES = 16
_MOST_EVENTS = 20_000  # whose memory is drawn step by step; of more, the highest of equal spans of time
_NUM_SPANS = 1000
# viridis without its ends, and lighter at the beginning, so that all are seen on white and on black
_RANK_SCALE = ("#6A5ACD", "#3E78B2", "#2A8C98", "#1FA187", "#4AC16D", "#A0DA39")
_MAX_RANKS = 16  # in the menu
_MAX_POINTS = 2000  # of one kind
# Paul Tol's light scheme: areas that colour-blind readers tell apart, on white and on black
_KIND_COLORS = dict(
    zip(
        STORE_NAMES.values(), ("#77AADD", "#99DDFF", "#EE8866", "#44BB99", "#BBCC33", "#EEDD88", "#FFAABB"), strict=True
    )
)


def memory_traces(bars: Bars, view: View, unit: float) -> list[Properties]:
    """Return the traces of the memory panel, in GiB over time in `unit` s."""
    gib = view.bytes_per_element / GIB
    if bars.timeline.num_ranks > MAX_CURVES:
        return _band(bars, gib, unit)
    exact = bars.timeline.num_events <= _MOST_EVENTS
    spans = None if exact else highest_in_spans(bars.timeline, bars.step_end, _NUM_SPANS) * gib
    curves: list[tuple[Floats, Floats]] = []
    for rank in range(bars.timeline.num_ranks):
        if spans is None:
            time, memory = memory_curve(bars.timeline, rank, bars.step_end)
            curves.append((time / unit, memory * gib))
        else:
            curves.append((np.linspace(0, bars.step_end / unit, _NUM_SPANS, endpoint=False), spans[rank]))
    return [_line(bars, ranks, *curves[ranks[0]]) for ranks in _alike(curves)]


def _alike(curves: Sequence[tuple[Floats, Floats]]) -> list[list[int]]:
    """Return the ranks by curve: of curves that cover one another, only the last would be seen."""
    found = grouped(((time.tobytes(), memory.tobytes()), rank) for rank, (time, memory) in enumerate(curves))
    return list(found.values())


def peak_gib(bars: Bars, view: View, journals: Journals = ()) -> float:
    """Return the most memory that any rank held, GiB; journals show it between events too."""
    marks = [mark.elements for mark in high_water(bars.timeline, journals)]
    return max(marks, default=0.0) * view.bytes_per_element / GIB


def rank_color(rank: int, num_ranks: int) -> str:
    """Return the colour of a rank's curve, on a scale from the first rank to the last."""
    place = rank / max(num_ranks - 1, 1) * (len(_RANK_SCALE) - 1)
    low = min(int(place), len(_RANK_SCALE) - 2)
    pairs = zip(_channels(_RANK_SCALE[low]), _channels(_RANK_SCALE[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in pairs)


def _channels(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


def _line(bars: Bars, ranks: Sequence[int], time: Floats, memory: Floats) -> Properties:
    """Return the curve of a rank, or of several with the same memory."""
    line = {"width": 1.6, "color": rank_color(ranks[0], bars.timeline.num_ranks)}
    return _curve(name_of_ranks(ranks, bars.timeline.rank_names), time, memory, line)


def _curve(name: str, time: Floats, memory: Floats, line: Properties, said: str = "", **more: Any) -> Properties:
    """Return a curve of memory in GiB over time; what is said where the mouse is begins with its name by default."""
    hover = f"{said or f'{name}<br>'}%{{y:.4g}} GiB at %{{x:.6g}}<extra></extra>"
    place = {"legend": "legend2", "yaxis": "y2", **more}
    return scatter(
        x=time, y=memory, name=name, mode="lines", line={"shape": "hv", **line}, hovertemplate=hover, **place
    )


def _band(bars: Bars, gib: float, unit: float) -> list[Properties]:
    """Return the highest and lowest rank at every moment, and the curve of the rank with the highest peak."""
    spans = highest_in_spans(bars.timeline, bars.step_end, _NUM_SPANS) * gib
    time = np.linspace(0, bars.step_end / unit, _NUM_SPANS, endpoint=False)
    top = int(np.argmax(spans.max(axis=1)))
    edge = {"width": 1, "color": "#4C86C6"}
    fill = {"fill": "tonexty", "fillcolor": "rgba(76,134,198,0.25)"}
    low = _curve("lowest rank", time, spans.min(axis=0), edge, "lowest ")
    high = _curve("highest rank", time, spans.max(axis=0), edge, "highest ", **fill)
    peak = _line(bars, [top], time, spans[top])
    peak |= {"name": f"{peak['name']} (peak)", "line": {**peak["line"], "color": "#D55E00"}}
    return [low, high, peak]


def kind_traces(bars: Bars, view: View, unit: float, journals: Journals) -> tuple[list[Properties], list[int]]:
    """Return areas by kind and the high-water mark of each rank in the menu, and the rank of each of these traces.

    Only those of the rank that holds most are visible.
    """
    marks = high_water(bars.timeline, journals)
    highest = max(marks, key=lambda mark: (mark.elements, -mark.rank), default=None)
    traces: list[Properties] = []
    owners: list[int] = []
    for rank in _offered(len(marks), highest):
        drawn = _rank_traces(bars, view, unit, journals, marks[rank])
        for trace in drawn:
            trace["visible"] = highest is not None and rank == highest.rank
        traces += drawn
        owners += [rank] * len(drawn)
    return traces, owners


def rank_menu(num_totals: int, owners: list[int], y: float) -> list[dict[str, Any]]:
    """Return the menu that shows one rank's memory by kind, or the totals of all ranks.

    Args:
        num_totals: how many traces of totals come first in the figure.
        owners: the rank of each trace by kind, which follow.
        y: lower edge of the menu, share of the figure's inner height.
    """
    ranks = list(dict.fromkeys(owners))
    every = list(range(num_totals + len(owners)))
    buttons = [_button(f"memory of rank {rank} by kind", num_totals, owners, rank, every) for rank in ranks]
    buttons.append(_button("memory of all ranks", num_totals, owners, None, every))
    place = {"x": 0, "xanchor": "left", "y": y, "yanchor": "bottom", "pad": {"b": 2, "t": 0}}
    style = {"font": {"size": 11}, "showactive": True, "active": 0, "type": "dropdown", "direction": "down"}
    return [{"buttons": buttons, **place, **style}] if ranks else []


def _button(label: str, num_totals: int, owners: list[int], rank: int | None, traces: list[int]) -> dict[str, Any]:
    """Return the entry that shows one rank, or the totals for None."""
    visible = [rank is None] * num_totals + [owner == rank for owner in owners]
    return {"label": label, "method": "restyle", "args": [{"visible": visible}, traces]}


def _offered(num_ranks: int, highest: HighWater | None) -> list[int]:
    """Return the ranks of the menu: the one that holds most, then all others or, of many, the first and the last."""
    if highest is None:
        return []
    others = range(num_ranks) if num_ranks <= _MAX_RANKS else (0, num_ranks - 1)
    return list(dict.fromkeys([highest.rank, *others]))


def _rank_traces(bars: Bars, view: View, unit: float, journals: Journals, mark: HighWater) -> list[Properties]:
    """Return one area a kind, and the high-water mark."""
    gib = view.bytes_per_element / GIB
    curves = curves_by_kind(bars.timeline, journals, mark.rank, bars.step_end)
    traces = []
    for name, curve in curves.items():
        time, memory = _thinned(curve, bars.step_end)
        line, said = {"width": 0.5, "color": _KIND_COLORS[name]}, f"rank {mark.rank}, {name}<br>"
        area = {"stackgroup": f"memory {mark.rank}", "fillcolor": _KIND_COLORS[name]}
        traces.append(_curve(name, time / unit, memory * gib, line, said, **area))
    return [*traces, _mark(bars, view, unit, mark)]


def _thinned(curve: Curve, step_end: float) -> Curve:
    """Return a curve, or the highest value of each of equal spans where it has many steps."""
    if len(curve.time) <= _MAX_POINTS or step_end <= 0:
        return curve
    edges = np.linspace(0, step_end, _NUM_SPANS, endpoint=False)
    first = np.searchsorted(curve.time, edges, side="right") - 1
    begins = np.maximum(first, 0)
    highest: Floats = np.maximum.reduceat(curve.memory, np.append(begins, len(curve.memory) - 1))[:-1]
    return Curve(edges, np.where(first < 0, 0.0, highest))


def _mark(bars: Bars, view: View, unit: float, mark: HighWater) -> Properties:
    """Return the point where a rank held most, with its time and what it held then as text."""
    text = mark.text(bars.timeline, view.bytes_per_element).replace(" (", "<br>(")
    return scatter(
        x=[mark.time / unit],
        y=[mark.elements * view.bytes_per_element / GIB],
        name="high-water mark",
        mode="markers",
        marker={"symbol": "triangle-down", "size": 11, "color": "#D55E00"},
        hovertext=[text],
        hoverinfo="text",
        cliponaxis=False,
        legend="legend2",
        yaxis="y2",
    )
