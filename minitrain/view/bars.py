"""What a Gantt chart draws: a bar for every operation and for every wait, each on a lane of its rank.

A rank has one main lane. Communication that overlaps with other work is drawn on lanes beside it.

The colours of bars by kind of operation, after Okabe and Ito (2008): colour-blind readers can tell them apart.

Compute has the warm and bright colours, communication the deep ones. A pattern marks forwards that are done again, and
waiting. On black, the deepest colours are replaced by lighter ones. Where kinds are summed up, there are three colours
(`Use`): blue for computing, red for exposed communication, and grey for waiting.

The number that is written on a bar, and the text that appears when the mouse is over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from minitrain.operations import COMPUTE
from minitrain.operations.collectives import COLLECTIVES, TRANSFERS
from minitrain.operations.computations import COMPUTATIONS
from minitrain.run.analysis.breakdown import checked_end
from minitrain.run.analysis.explanation import GAP_KINDS, Gaps, find_gaps
from minitrain.run.analysis.labels import duration, size
from minitrain.run.analysis.timeline import NO_LAYER, NONE, Bools, Floats, Ints, Stream, Timeline, sweep_intervals
from minitrain.tensors.index_sets import ranges

WAITING = "waiting"
RECOMPUTED = "forward again"


class Kind(NamedTuple):
    """The look of one kind of bar.

    Args:
        name: as in the legend: an event's type, "forward again" or "waiting".
        color: fill, as "#rrggbb" or rgba().
        ink: colour of the text on it.
        pattern: "" or a hatch, as Plotly names it.
        dark: fill in dark mode, where it is another one.
        dark_ink: colour of the text on that.
    """

    name: str
    color: str
    ink: str = "#111111"
    pattern: str = ""
    dark: str = ""
    dark_ink: str = ""


class Use(NamedTuple):
    """The look of what time is used for: computing, exposed communication or waiting.

    Args:
        name: what it is.
        color: where nothing else is done, on white.
        pale: where other things are done nearly as much, on white.
        dark: as `color`, on black.
    """

    name: str
    color: str
    pale: str
    dark: str


COMPUTING = Use("computing", "#3A9BDC", "#94C9EE", "#56B4E9")
EXPOSED = Use("exposed communication", "#C8450B", "#E8A07E", "#E8662A")
IDLE = Use("waiting", "#D5D8DC", "#ECEDEF", "#353C45")
USES = (COMPUTING, EXPOSED, IDLE)

_WHITE = "#ffffff"
_RECORDS: Mapping[str, Any] = {**COMPUTATIONS, **COLLECTIVES, **TRANSFERS}
_KINDS = [
    Kind(each.name, each.color, each.ink, "", each.dark, each.dark_ink) for each in _RECORDS.values() if each.color
]
_FORWARD = [kind.name for kind in _KINDS].index("forward")
_KINDS.insert(_FORWARD + 1, _KINDS[_FORWARD]._replace(name=RECOMPUTED, pattern="/"))
_KINDS.append(Kind(WAITING, "rgba(128,128,128,0.16)", "#777777", "/"))
_BY_NAME = {kind.name: kind for kind in _KINDS}
_PLACE = {kind.name: place for place, kind in enumerate(_KINDS)}
_UNKNOWN_COMPUTE, _UNKNOWN_COMM = "#B8C4CE", "#5B6770"


def kind_of(name: str, stream: str = COMPUTE) -> Kind:
    """Return the look of an event type; unknown types have one neutral colour for compute and one for communication."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    return Kind(name, _UNKNOWN_COMPUTE) if stream == COMPUTE else Kind(name, _UNKNOWN_COMM, _WHITE)


def legend_place(name: str) -> tuple[int, str]:
    """Return a key that sorts kinds in the order of a step, unknown ones just before "waiting"."""
    return _PLACE.get(name, _PLACE[WAITING] - 1), name


_ROUNDING = 1e-12  # of the time shown; a shorter gap is a rounding error
MAX_LANES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """Bars by rank and start.

    Args:
        timeline: the run.
        step_end: when the step ends, s.
        rank: row of each bar, (num_bars,), like all that follow.
        start: its left end, s.
        duration: its length, s; never 0.
        kind: index into `kinds`.
        lane: 0 for the rank's main lane, 1 and up for what overlaps it.
        event: the operation, or the one that ended a wait; `NONE` for a wait until the step's end.
        last: the last operation of a bar that stands for several consecutive ones; otherwise `event`.
        gap: index into `gaps` of a wait, `NONE` for an operation.
        kinds: the look of each kind, in the order of the legend; "waiting" is the last.
        gaps: every idle time, with its reason.
    """

    timeline: Timeline
    step_end: float
    rank: Ints
    start: Floats
    duration: Floats
    kind: Ints
    lane: Ints
    event: Ints
    last: Ints
    gap: Ints
    kinds: tuple[Kind, ...]
    gaps: Gaps

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def num_lanes(self) -> int:
        """Number of lanes of the rank that has the most."""
        return int(self.lane.max(initial=0)) + 1

    @property
    def waits(self) -> Bools:
        """Whether each bar is a wait, (num_bars,)."""
        waits: Bools = self.kind == len(self.kinds) - 1
        return waits

    def take(self, chosen: Ints | Bools) -> Bars:
        """Return some of the bars."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in _OF_EACH_BAR})


_OF_EACH_BAR = ("rank", "start", "duration", "kind", "lane", "event", "last", "gap")


def rows_of(*columns: Any) -> Iterator[Any]:
    """Return what arrays of equal length say of each place, as Python's numbers."""
    return zip(*(column.tolist() for column in columns), strict=True)


def make_bars(timeline: Timeline, step_end: float | None = None, gaps: Gaps | None = None) -> Bars:
    """Return a bar for every operation that takes time, and for every gap in which a rank waits.

    Args:
        timeline: the run.
        step_end: when the step ends, s; the latest end of all ranks if None.
        gaps: the idle times, if they are known already.
    """
    end = checked_end(timeline.last_end, step_end)
    codes, kinds = _kinds(timeline)
    gaps = find_gaps(timeline, end) if gaps is None else gaps
    num_waits, drawn = len(gaps), np.flatnonzero(timeline.duration > 0)
    rank = np.concatenate([timeline.rank[drawn], gaps.rank])
    start = np.concatenate([timeline.time[drawn], gaps.start])
    order = np.lexsort((start, rank))
    event = np.concatenate([drawn, gaps.event])[order]
    return Bars(
        timeline=timeline,
        step_end=end,
        rank=rank[order],
        start=start[order],
        duration=np.concatenate([timeline.duration[drawn], gaps.duration])[order],
        kind=np.concatenate([codes[drawn], np.full(num_waits, len(kinds) - 1)])[order],
        lane=np.concatenate([lanes(timeline)[drawn], np.zeros(num_waits, np.int64)])[order],
        event=event,
        last=event,
        gap=np.concatenate([np.full(len(drawn), NONE), np.arange(num_waits)])[order],
        kinds=kinds,
        gaps=gaps,
    )


def _kinds(timeline: Timeline) -> tuple[Ints, tuple[Kind, ...]]:
    """Return the kind of every event that is drawn, and the kinds that occur, with "waiting" last."""
    typs = [*timeline.typs, RECOMPUTED]
    codes = np.where(timeline.recomputed, len(typs) - 1, timeline.typ)
    drawn = np.flatnonzero(timeline.duration > 0)
    found, first = np.unique(codes[drawn], return_index=True)
    streams = [timeline.streams[stream].kind for stream in timeline.stream[drawn[first]].tolist()]
    stream_of = dict(zip(found.tolist(), streams, strict=True))
    order = sorted(stream_of, key=lambda code: legend_place(typs[code]))
    place = np.zeros(len(typs), np.int64)
    place[order] = np.arange(len(order))
    return place[codes], (*(kind_of(typs[code], stream_of[code]) for code in order), kind_of(WAITING))


def lanes(timeline: Timeline) -> Ints:
    """Return the lane of every event: 0, or 1 to `MAX_LANES` - 1 for an operation that overlaps others.

    Communication that was launched to overlap is moved off the main lane. On a rank where other operations still
    overlap (its program has several tasks), all communication is.
    """
    beside = timeline.overlaps & ~timeline.computes
    crowded = _crowded_ranks(timeline, ~beside)
    beside |= crowded[timeline.rank] & ~timeline.computes
    lane = np.zeros(timeline.num_events, np.int64)
    chosen = np.flatnonzero(beside & (timeline.duration > 0))
    lane[chosen] = 1 + _packed(timeline, chosen)
    return lane


def _crowded_ranks(timeline: Timeline, chosen: Bools) -> Bools:
    """Tell on which ranks some of the chosen events overlap one another, (num_ranks,)."""
    swept = sweep_intervals(timeline.rank[chosen], timeline.time[chosen], timeline.end[chosen])
    overlaps = swept.busy_until - swept.start > _ROUNDING * timeline.last_end
    crowded = np.zeros(timeline.num_ranks, dtype=bool)
    crowded[swept.rank[overlaps & (swept.end > swept.start)]] = True
    return crowded


def _packed(timeline: Timeline, chosen: Ints) -> Ints:
    """Return the first free lane for each event, in the order of time, or the last lane where none is free."""
    order = np.lexsort((timeline.time[chosen], timeline.rank[chosen]))
    rows = rows_of(*(column[chosen][order] for column in (timeline.rank, timeline.time, timeline.end)))
    tolerance = _ROUNDING * timeline.last_end
    packed, current = [], -1
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for rank, start, end in rows:
        if rank != current:
            current, busy, free = rank, [], list(range(MAX_LANES - 1))
        while busy and busy[0][0] <= start + tolerance:
            heappush(free, heappop(busy)[1])
        lane = heappop(free) if free else MAX_LANES - 2
        heappush(busy, (end, lane))
        packed.append(lane)
    found = np.empty(len(chosen), np.int64)
    found[order] = packed
    return found


def merged(bars: Bars) -> Bars:
    """Return bars with consecutive ones that differ only in their layer joined to one."""
    first, last = rows_of_layers(bars)
    whole = bars.take(first)
    end = bars.start[last] + bars.duration[last]
    joined = replace(whole, duration=end - whole.start, last=bars.last[last])
    return joined.take(np.lexsort((joined.start, joined.rank)))


def rows_of_layers(bars: Bars) -> tuple[Ints, Ints]:
    """Return the first and the last of each sequence of bars on a lane that differ only in their layer."""
    if not len(bars):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.lexsort((bars.start, bars.lane, bars.rank))
    part = bars.take(order)
    samples = np.append(bars.timeline.samples, NONE)[part.event]
    end = part.start + part.duration
    is_new = np.ones(len(bars), dtype=bool)
    is_new[1:] = part.waits[1:] | (part.start[1:] - end[:-1] > _ROUNDING * bars.step_end)
    for column in (part.rank, part.lane, part.kind, samples):
        is_new[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(is_new)
    return order[first], order[np.append(first[1:], len(bars)) - 1]


def bar_numbers(timeline: Timeline) -> Ints:
    """Return the number to write on each event, or `NONE`: its microbatch or, where a rank has only one, its layer."""
    numbers = microbatches(timeline)
    if numbers.max(initial=NONE) < 1:
        return np.where(timeline.layer == NO_LAYER, NONE, timeline.layer)
    return numbers


def microbatches(timeline: Timeline) -> Ints:
    """Return the microbatch of each event, or `NONE`, (num_events,).

    Microbatches are counted on each rank from 0, in the order of their samples.
    """
    works = timeline.beginning_with("forward", "backward")
    lowest = np.array([min(samples, default=NONE) for samples in timeline.sample_sets], np.int64)
    if not timeline.num_events:
        return np.zeros(0, np.int64)
    base = int(lowest.max()) + 2
    keys = timeline.rank * base + lowest[timeline.samples] + 1
    known = np.unique(keys[works & (lowest[timeline.samples] >= 0)])
    first = np.searchsorted(known, np.arange(timeline.num_ranks) * base)
    if not len(known):
        return np.full(timeline.num_events, NONE)
    place = np.searchsorted(known, keys)
    is_known = known[np.minimum(place, len(known) - 1)] == keys
    return np.where(is_known, place - first[timeline.rank], NONE)


def bar_labels(bars: Bars) -> Ints:
    """Return the number to write on each bar, or `NONE` on waits and where the operations of a bar differ in it."""
    numbers = np.append(bar_numbers(bars.timeline), NONE)
    same = numbers[bars.event] == numbers[bars.last]
    return np.where(bars.waits | ~same, NONE, numbers[bars.event])


def hover_texts(bars: Bars, bytes_per_element: float) -> list[str]:
    """Return the text of each bar that appears when the mouse is over it."""
    line = bars.timeline
    names = [kind.name for kind in bars.kinds]
    partners = [partners_of(stream) for stream in line.streams]  # groups and sets of samples may be large
    codes = np.unique(line.samples[bars.event[~bars.waits]]).tolist()
    samples = {code: samples_text(line.sample_sets[code]) for code in codes}
    texts = []
    for place, event in enumerate(bars.event.tolist()):
        span = f"{duration(bars.duration[place])} from {duration(bars.start[place])}"
        head = f"<b>{names[bars.kind[place]]}</b> · rank {line.rank_name(bars.rank[place])}"
        if bars.waits[place]:
            gap = int(bars.gap[place])
            texts.append(f"{head}<br>{span}<br>for {bars.gaps.reason(gap)}<br>{GAP_KINDS[bars.gaps.kind[gap]]}")
            continue
        layer = _layers(line, event, int(bars.last[place]))
        works_on = " · ".join(part for part in (layer, samples[line.samples[event]]) if part)
        memory = f"memory {size(line.memory[event] * bytes_per_element, '.4g')}"
        moved = f"{_amount(line.size_bytes[event])} {partners[line.stream[event]]}".strip()
        facts = [head, works_on, span, moved, memory]
        texts.append("<br>".join(fact for fact in facts if fact))
    return texts


def _layers(line: Timeline, first: int, last: int) -> str:
    """Name the layer of one operation, or the layers from a first to a last one."""
    layers = sorted({layer for layer in line.layer[[first, last]].tolist() if layer != NO_LAYER})
    if line.layer_names:
        return " to ".join(map(line.layer_name, layers))
    return f"layer{'s' if len(layers) > 1 else ''} {'-'.join(map(str, layers))}" if layers else ""


def _amount(size_bytes: float) -> str:
    """Say how much an operation moved."""
    return f"{size_bytes / 2**20:.4g} MiB" if size_bytes else ""


def samples_text(numbers: frozenset[int]) -> str:
    """Name samples in a few letters."""
    return f"samples {ranges(numbers)}" if numbers else ""


def partners_of(stream: Stream) -> str:
    """Say with whom the operations of a stream exchange what they move."""
    if stream.kind in TRANSFERS:
        partner = TRANSFERS[stream.kind].partner
        return partner if stream.peer is None else f"{partner} {stream.peer}"
    return f"among ranks {ranges(stream.group)}" if stream.group else ""
