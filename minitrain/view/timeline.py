"""A run as the data of the timeline on a canvas (`timeline.js`): compressed columns, one row for ranks alike.

Ranks that draw the same are one row: their bars (kind, lane, start, length, layer, microbatch, why they wait) and their
memory over time are equal, or a folded run says so. What such a row says of other ranks, such as whom it waits for,
holds for its lowest rank. A row has the main lane, with compute, what blocks it and waits, and a lane beside it for
communication along each axis of the mesh, for messages and for moves to the host.

Times are whole numbers of a unit of about a 1e-9th of the step. Columns are differences of neighbours where that is
shorter, in the smallest type, with the bytes of each place together, deflated and in base 64. For the script's own
interface see its first lines.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from itertools import pairwise
from math import floor, log10, prod
from typing import Any, TypeVar
from zlib import compress

import numpy as np
from numpy.typing import NDArray

from minitrain.operations import HOST_MOVES, RECV, SEND
from minitrain.operations import Stream as _Stream
from minitrain.run.analysis.breakdown import WORLD, axis_finder
from minitrain.run.analysis.explanation import GAP_KINDS, Explanation
from minitrain.run.analysis.memory_over_time import Journals, curves_by_kind, high_water, memory_curve
from minitrain.run.analysis.retiming import Binding, CriticalPath
from minitrain.run.analysis.timeline import NO_LAYER, NONE, Floats, Ints, Stream, Timeline
from minitrain.tensors.index_sets import ranges
from minitrain.view.bars import Bars, microbatches, partners_of, samples_text
from minitrain.view.explanation_panel import law_of, words_of
from minitrain.view.layout import View

T = TypeVar("T")
MAIN_LANE = "compute"
_NUMBERED = ("forward", "backward", "loss", SEND, RECV)  # what has the samples of one microbatch
_DIGITS = 9  # of the step's length
_SUMS = (
    *("row", "lane", "start", "layer"),
    *("memory_row", "memory_time", "memory_kib"),
    *("path_row", "path_start", "path_end"),
)
"""Columns that are written as differences of neighbours."""


@cache
def timeline_script() -> str:
    """Return the JavaScript module that draws the data."""
    return files("minitrain.view").joinpath("timeline.js").read_text(encoding="utf-8")


def timeline_data(
    bars: Bars, view: View, explained: Explanation, journals: Journals = (), *, explains_prices: bool = True
) -> dict[str, Any]:
    """Return what `mountTimeline` of the script takes, ready for JSON.

    Args:
        bars: the bars of the run.
        view: its units, its meshes, and the ranks that each row of the bars stands for.
        explained: why its ranks wait, and its critical path.
        journals: every change of every store, for memory by kind, if they were kept.
        explains_prices: whether `accounts` are `explained_prices`; otherwise there are none, and they may come later.
    """
    line = bars.timeline
    unit = 10.0 ** (floor(log10(bars.step_end)) - _DIGITS) if bars.step_end > 0 else 10.0**-_DIGITS
    axes = [_lane_name(stream, view) for stream in line.streams]
    lane, lane_names = _lanes(bars, axes)
    bars, axis_of_kind = _kinds_by_axis(bars, axes, view)
    columns = _bar_columns(bars, unit)
    memory_kinds, memory = _memory_of_rows(line, journals, bars.step_end)
    alike = _rows_alike(bars, columns, memory)
    shown = np.full(line.num_ranks, NONE)
    for row, ranks in enumerate(alike):
        shown[ranks] = row
    lowest = np.array([ranks[0] for ranks in alike], np.int64)
    order = np.flatnonzero(lowest[shown[bars.rank]] == bars.rank)
    order = order[np.lexsort((bars.start[order], lane[order], shown[bars.rank[order]]))]
    columns = {"row": shown[bars.rank], "lane": lane, **columns, **_causes(bars, explained.binding)}
    columns = {name: column[order] for name, column in columns.items()}
    columns |= _memory_columns([memory[ranks[0]] for ranks in alike], view, unit)
    columns |= _path_columns(explained.critical_path, shown, unit)
    by_rank = high_water(line, journals)
    marks = [by_rank[ranks[0]] for ranks in alike]
    peaks = [  # a curve leaves out what comes and goes at one moment
        max(_peak(memory[ranks[0]]), mark.elements) * view.bytes_per_element
        for ranks, mark in zip(alike, marks, strict=True)
    ]
    partners = _numbered(columns, "partner", lambda code: partners_of(line.streams[code]))
    samples = _numbered(columns, "samples", lambda code: samples_text(line.sample_sets[code]))
    head, blob = _packed(columns)
    return {
        "unit": unit,
        "step_s": bars.step_end,
        "begin_s": line.begin,
        "steps_s": list(view.steps),
        "kinds": [
            kind._asdict() | {"axis": axis, "law": law_of(kind.name)}
            for kind, axis in zip(bars.kinds, axis_of_kind, strict=True)
        ],
        "lanes": lane_names,
        "rows": [
            _row(line, ranks, view, peak)
            | {
                "peak": mark.text(line, view.bytes_per_element, "{}"),
                "peak_at_s": mark.time,
            }  # by which clock it is drawn
            for ranks, peak, mark in zip(alike, peaks, marks, strict=True)
        ],
        "peak_row": int(np.argmax(peaks)) if peaks else 0,
        "row_of_rank": shown.tolist(),
        "ranks": [line.rank_name(rank) for rank in range(line.num_ranks)],
        "layers": list(line.layer_names),
        "partners": partners,
        "samples": samples,
        "accounts": explained_prices(bars, view) if explains_prices else [],
        "unexplained": view.unexplained,
        "typs": list(line.typs),
        "gap_kinds": list(GAP_KINDS),
        "memory_kinds": memory_kinds,
        "capacity_bytes": view.capacity_bytes,
        "head": head,
        "blob": blob,
    }


def explained_prices(bars: Bars, view: View) -> list[dict[str, Any]]:
    """Return what the prices of bars are made of, in words, in the order in which bars refer to them."""
    known = map(view.accounts.get, dict.fromkeys(_answered(bars).values()))
    return [{"facts": [], "parts": [], "seconds": 0.0} if each is None else words_of(each()) for each in known]


def _answered(bars: Bars) -> dict[int, int]:
    """Return the ids of what predictors have answered for operations that are drawn, by the place of their price."""
    codes = np.unique(bars.timeline.price[bars.event[~bars.waits]])
    return {code: id(bars.timeline.prices[code].answered) for code in codes.tolist() if code != NONE}


def _lanes(bars: Bars, names: Sequence[str]) -> tuple[Ints, list[str]]:
    """Return the lane of each bar and the names of lanes: the main one, then one for each use of streams beside it.

    Args:
        bars: all of them.
        names: of the lane of each stream.
    """
    line, beside = bars.timeline, bars.lane > 0
    used = sorted({names[stream] for stream in np.unique(line.stream[bars.event[beside]]).tolist()})
    place = np.array([1 + used.index(name) if name in used else 0 for name in names], np.int64)
    lane = np.zeros(len(bars), np.int64)
    lane[beside] = place[line.stream[bars.event[beside]]]
    return lane, [MAIN_LANE, *used]


def _kinds_by_axis(bars: Bars, names: Sequence[str], view: View) -> tuple[Bars, list[str]]:
    """Return bars with a kind for each axis of the mesh, where ranks communicate along several, and each kind's axis.

    The axis whose ranks are neighbours comes first, and looks as usual; the others have patterns.

    Args:
        bars: all of them.
        names: of the lane of each stream.
        view: its meshes.
    """
    line = bars.timeline
    known = [*dict.fromkeys(axis for mesh in view.meshes for axis in reversed(list(mesh)))]
    along = [
        name if stream.group is not None and name != "communication" else ""
        for name, stream in zip(names, line.streams, strict=True)
    ]
    used = {along[stream] for stream in np.unique(line.stream[bars.event[~bars.waits]]).tolist()} - {""}
    if len(used) < 2 or not known:
        return bars, [""] * len(bars.kinds)
    axes = ["", *sorted(used, key=lambda axis: (known.index(axis) if axis in known else len(known), axis))]
    place = np.array([axes.index(axis) if axis in axes else 0 for axis in along], np.int64)
    pairs = bars.kind * len(axes) + np.where(bars.waits, 0, place[line.stream[bars.event]])
    codes, kind = np.unique(pairs, return_inverse=True)
    kinds, axis_of_kind, seen = [], [], dict[str, int]()
    for one, axis in (divmod(code, len(axes)) for code in codes.tolist()):
        look = bars.kinds[one]
        nth = seen[look.name] = seen.get(look.name, -1) + 1
        kinds.append(look._replace(pattern=look.pattern or _PATTERNS[nth % len(_PATTERNS)]))
        axis_of_kind.append(axes[axis])
    return replace(bars, kind=kind.reshape(-1), kinds=tuple(kinds)), axis_of_kind


_PATTERNS = ("", "-", "|", ".")  # of a kind's axes; see `INKED` of the script


def _lane_name(stream: Stream, view: View) -> str:
    """Name the lane of a stream, by the axis of the mesh along which its group communicates."""
    if stream.kind in (SEND, RECV):
        return "peers"
    if stream.kind in HOST_MOVES:
        return "host"
    if not view.meshes:
        return "communication" if stream.group is None else f"groups of {len(stream.group)}"
    size = max(prod(mesh.values()) for mesh in view.meshes)
    rank = 0 if stream.group is None else stream.group[0]
    axis = axis_finder(rank, size, view.meshes)(_Stream(*stream)) or MAIN_LANE
    return "communication" if axis == WORLD else axis


def _bar_columns(bars: Bars, unit: float) -> dict[str, Ints]:
    """Return what is drawn and said of each bar, as whole numbers, but for its row and lane."""
    line, event, waits = bars.timeline, bars.event, bars.waits
    account = np.full(len(line.prices) + 1, NONE)
    answered = _answered(bars)
    places = {key: place for place, key in enumerate(dict.fromkeys(answered.values()))}
    account[list(answered)] = [places[key] for key in answered.values()]
    start, end = _ticks(bars.start, unit), _ticks(bars.start + bars.duration, unit)
    ends_wait = waits & (event != NONE)
    layer = np.where(line.layer == NO_LAYER, NONE, line.layer)
    source = np.append(bars.gaps.source, NONE)[bars.gap]
    numbered = line.beginning_with(*_NUMBERED)
    return {
        "start": start,
        "length": end - start,
        "kind": bars.kind,
        "layer": np.where(waits & ~ends_wait, NONE, layer[event]),
        "number": np.where(waits | ~numbered[event], NONE, microbatches(line)[event]),
        "gap_kind": np.append(bars.gaps.kind, 0)[bars.gap],
        "wait_typ": np.where(ends_wait, line.typ[event], NONE),
        "source": np.where(source == NONE, NONE, line.rank[source]),
        "bytes": np.where(waits, 0, _whole(line.size_bytes[event])),
        "partner": np.where(waits, NONE, line.stream[event]),
        "samples": np.where(waits, NONE, line.samples[event]),
        "account": np.where(waits, NONE, account[line.price[event]]),
    }


def _numbered(columns: dict[str, Ints], name: str, text_of: Callable[[int], T]) -> list[T]:
    """Return what is said of each code that a column has, and make it refer to the places of that."""
    used, place = np.unique(columns[name], return_inverse=True)
    known = used[used != NONE]
    columns[name] = np.where(columns[name] == NONE, NONE, place - (len(used) - len(known)))
    return [text_of(code) for code in known.tolist()]


def _ticks(seconds: Floats, unit: float) -> Ints:
    """Return times as whole numbers of a unit."""
    return np.rint(seconds / unit).astype(np.int64)


def _causes(bars: Bars, bound: Binding) -> dict[str, Ints]:
    """Return of each bar the operation before which it could not begin: its rank, kind and layer, or `NONE`."""
    line = bars.timeline
    cause = np.append(bound.moment, NONE)[: line.num_events]
    while (cause >= line.num_events).any():  # a submission or a meeting, which waited for something itself
        cause = np.where(cause >= line.num_events, bound.moment[cause], cause)
    kind_of_event = np.full(line.num_events + 1, NONE)
    works = ~bars.waits
    kind_of_event[bars.event[works]] = bars.kind[works]
    cause = np.where(works & (bars.event != NONE), cause[bars.event], NONE)
    known = (cause != NONE) & (kind_of_event[cause] != NONE)
    return {
        "cause": np.where(known, line.rank[cause], NONE),
        "cause_kind": np.where(known, kind_of_event[cause], NONE),
        "cause_layer": np.where(known & (line.layer[cause] != NO_LAYER), line.layer[cause], NONE),
    }


Curves = tuple[Floats, Sequence[tuple[int, Floats]]]
"""Times at which a rank's memory changes, s, and its elements of each kind from each of them on."""


def _memory_of_rows(line: Timeline, journals: Journals, step_end: float) -> tuple[list[str], list[Curves]]:
    """Return the names of kinds of memory, one where no journals were kept, and the curves of every row."""
    if not journals:
        totals = [memory_curve(line, rank, step_end) for rank in range(line.num_ranks)]
        return ["all"], [(curve.time, [(0, curve.memory)]) for curve in totals]
    split = [curves_by_kind(line, journals, rank, step_end) for rank in range(line.num_ranks)]
    names = list(dict.fromkeys(name for curves in split for name in curves))
    return names, [
        (
            next(iter(curves.values())).time if curves else np.zeros(0),
            [(names.index(name), curve.memory) for name, curve in curves.items()],
        )
        for curves in split
    ]


def _rows_alike(bars: Bars, columns: dict[str, Ints], memory: Sequence[Curves]) -> list[list[int]]:
    """Return the rows that draw the same, in the order of the lowest of each."""
    first = np.searchsorted(bars.rank, np.arange(bars.timeline.num_ranks + 1))
    compared = [bars.lane, bars.start, bars.duration, *(columns[name] for name in _COMPARED)]
    found: dict[bytes, list[int]] = {}
    for rank, (time, curves) in enumerate(memory):
        key = blake2b(time.tobytes())
        for kind, level in curves:
            key.update(bytes([kind]) + level.tobytes())
        for column in compared:
            key.update(column[first[rank] : first[rank + 1]].tobytes())
        found.setdefault(key.digest(), []).append(rank)
    return list(found.values())


_COMPARED = ("kind", "layer", "number", "gap_kind", "wait_typ", "bytes")


def _peak(memory: Curves) -> float:
    """Return the most that is held at a moment, elements."""
    total = sum((level for _, level in memory[1]), np.zeros(len(memory[0])))
    return float(total.max(initial=0.0))


def _whole(values: Floats) -> Ints:
    """Return sizes as whole numbers; those that nothing has, as files may say, are the largest that fit."""
    return np.rint(np.minimum(values, 2.0**62)).astype(np.int64)


def _memory_columns(shown: Sequence[Curves], view: View, unit: float) -> dict[str, Ints]:
    """Return the steps of memory of each row and kind, KiB."""
    parts = [(row, kind, time, level) for row, (time, curves) in enumerate(shown) for kind, level in curves]
    whole: dict[str, list[NDArray[Any]]] = {"row": [], "kind": [], "time": [], "kib": []}
    for row, kind, time, level in parts:
        whole["row"].append(np.full(len(time), row))
        whole["kind"].append(np.full(len(time), kind))
        whole["time"].append(_ticks(time, unit))
        whole["kib"].append(_whole(level * view.bytes_per_element / 1024))
    empty = np.zeros(0, np.int64)
    return {f"memory_{name}": np.concatenate([empty, *columns]) for name, columns in whole.items()}


def _path_columns(path: CriticalPath, shown: Ints, unit: float) -> dict[str, Ints]:
    """Return the operations of the critical path: row, start and end; of a send only its beginning counts."""
    line = path.timeline
    start = line.time[path.event]
    end = np.where(path.counts, line.end[path.event], start)
    return {"path_row": shown[line.rank[path.event]], "path_start": _ticks(start, unit), "path_end": _ticks(end, unit)}


def _row(line: Timeline, rows: Sequence[int], view: View, peak_bytes: float) -> dict[str, Any]:
    """Return the name of a row, its ranks as (first, how many, distance), and its peak memory."""
    known = [view.ranks_of_rows[row] for row in rows] if view.ranks_of_rows else [[row] for row in rows]
    ranks = sorted(rank for each in known for rank in each)
    along = view.along(ranks)
    if len(ranks) == 1:
        name = f"rank {line.rank_name(rows[0])}"
    else:
        name = f"{len(ranks):,} ranks alike" if along else f"ranks {ranges(frozenset(ranks))} alike"
        devices = {line.devices[row] for row in rows} if line.devices else set()
        along = " ".join((along, *devices)).strip() if len(devices) == 1 else along
    return {
        "name": f"{along}: {name}" if along else name,
        "count": len(ranks),
        "members": _progressions(ranks),
        "peak_bytes": peak_bytes,
    }


def _progressions(numbers: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return sorted numbers as a few (first, how many, distance).

    >>> _progressions([0, 1, 2, 8, 9, 10])
    [(0, 3, 1), (8, 3, 1)]
    >>> _progressions([1, 5, 9])
    [(1, 3, 4)]
    """
    steps = set(np.diff(numbers).tolist())
    if len(steps) < 2:
        return [(numbers[0], len(numbers), steps.pop() if steps else 1)]
    edges = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
    return [(numbers[begin], end - begin, 1) for begin, end in pairwise(edges)]


def _packed(columns: dict[str, Ints]) -> tuple[list[tuple[str, int, int, bool]], str]:
    """Return name, bytes a number, length and whether it is to be summed of each column; and all bytes, deflated."""
    head, parts = [], []
    for name, column in columns.items():
        sums = name in _SUMS
        values = _smallest(np.diff(column, prepend=0) if sums else column)
        head.append((name, values.itemsize, len(values), sums))
        data = values.tobytes()
        parts += [data[place :: values.itemsize] for place in range(values.itemsize)]
    return head, b64encode(compress(b"".join(parts))).decode()


def _smallest(values: Ints) -> NDArray[Any]:
    """Return whole numbers in the smallest signed type that holds them, little-endian."""
    for kind in ("<i1", "<i2", "<i4"):
        limits = np.iinfo(kind)
        if values.min(initial=0) >= limits.min and values.max(initial=0) <= limits.max:
            return values.astype(kind)
    return values.astype("<i8")
