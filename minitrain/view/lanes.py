"""What ranks do, drawn in a terminal: a lane for each kind of stream, of one rank of each class that does the same.

A column is a span of time. The height of its block is the share of it in which the lane is at work, and the colour, or
a letter below where there is no colour, what it mostly does. Left out: which operation waits for which, and memory.

A run's schedule as text, a rank a line: `F0 F1 B0 F2 B1 ...`, as papers and schedule files write it.

F is a forward, B a backward, I and W the two halves of a split one; the number is the microbatch, counted on each rank.
Consecutive layers are one token. Where ranks hold several stages, the stage comes first: `1F0`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.text import Text

from minitrain.operations import COMPUTE, RECV, SEND
from minitrain.operations.computations import COMPUTATIONS
from minitrain.run.analysis.labels import duration
from minitrain.run.analysis.timeline import NO_LAYER, NONE, Bools, Floats, Ints, Timeline, Trace, as_timeline
from minitrain.run.result import Run
from minitrain.view.bars import kind_of, legend_place, microbatches

WIDTH, MOST_ROWS = 80, 8
_NAMES = 17  # columns before the lanes
_BLOCKS = " ▁▂▃▄▅▆▇█"
_LEAST = 0.02  # the share of a column below which it looks idle
_LANES: Mapping[str, str] = {SEND: "peers", RECV: "peers"}


def lanes(run: Run, width: int = WIDTH, *, color: bool = True, blocks: bool = True) -> Iterator[Text]:
    """Yield the lines of a picture of a run.

    Args:
        run: the run, which keeps its events.
        width: columns of the terminal.
        color: whether colours tell what a lane does; letters do otherwise.
        blocks: whether the terminal can show blocks; letters alone are drawn otherwise.
    """
    line, ranks, size = run.step_timeline_of_classes, run.ranks_of_class_logs, run.num_ranks_a_class
    end = line.last_end if run.step_end is None else run.step_end
    edges = np.linspace(line.begin, end, max(width - _NAMES, 8) + 1)
    letters = letters_of(line)
    yield from _axis(end - line.begin, len(edges) - 1)
    for row in np.unique(
        np.linspace(0, line.num_ranks - 1, min(MOST_ROWS, line.num_ranks)).round().astype(int)
    ).tolist():
        name = f"{ranks[row]} (x{size})" if size > 1 else f"rank {ranks[row]}"
        for lane, chosen in _lanes_of(line, row):
            shares = _shares(line, chosen, edges)
            yield from _drawn(f"{name:8.8} {lane:>7.7} ", line.typs, shares, letters, color=color, blocks=blocks)
            name = ""
    yield from _legend(letters, width, color=color and blocks)


def letters_of(line: Timeline) -> dict[str, str]:
    """Return a letter for each type of operation that takes time in the step: capitals for computing."""
    found: dict[str, str] = {}
    shown = (line.duration > 0) & (line.end > line.begin)
    computes = {line.typs[code] for code in np.unique(line.typ[line.computes]).tolist()}
    for typ in sorted((line.typs[code] for code in np.unique(line.typ[shown]).tolist()), key=legend_place):
        wanted = (typ.upper() if typ in computes else typ).replace("_", "")
        found[typ] = next((one for one in wanted if one not in found.values()), "?")
    return found


def _lanes_of(line: Timeline, row: int) -> Iterator[tuple[str, Bools]]:
    """Yield the lanes of a row that do anything, computing first, each with its events."""
    own = (line.rank == row) & (line.duration > 0)
    names = [_LANES.get(stream.kind, stream.kind) for stream in line.streams]
    for name in sorted(dict.fromkeys(names), key=lambda name: name != COMPUTE):
        chosen = own & np.array([other == name for other in names])[line.stream]
        if chosen.any():
            yield name, chosen


def _shares(line: Timeline, chosen: Bools, edges: Floats) -> Floats:
    """Return the share of each column that each type takes, (number of types, number of columns)."""
    found = np.zeros((len(line.typs), len(edges) - 1))
    for code in np.unique(line.typ[chosen]).tolist():
        of_type = chosen & (line.typ == code)
        busy = _before(line.time[of_type], edges) - _before(line.end[of_type], edges)
        found[code] = np.diff(busy) / np.diff(edges)
    return found


def _before(moments: Floats, edges: Floats) -> Floats:
    """Return how long before each edge the moments were, all together, s; those after it count nothing."""
    in_order = np.sort(moments)
    count = np.searchsorted(in_order, edges)
    passed: Floats = count * edges - np.concatenate([[0.0], np.cumsum(in_order)])[count]
    return passed


def _drawn(
    name: str, typs: Sequence[str], shares: Floats, letters: Mapping[str, str], *, color: bool, blocks: bool
) -> Iterator[Text]:
    """Yield the lines of one lane."""
    total, mostly = np.minimum(shares.sum(axis=0), 1.0), shares.argmax(axis=0)
    cells = list(zip(total.tolist(), (typs[code] for code in mostly.tolist()), strict=True))
    if blocks:
        text = Text(name)
        for share, typ in cells:
            height = 0 if share < _LEAST else max(1, round(share * (len(_BLOCKS) - 1)))
            text.append(_BLOCKS[height], _style(typ) if color else "")
        yield text
    if not (color and blocks):
        drawn = "".join(letters.get(typ, "?") if share >= _LEAST else "." for share, typ in cells)
        yield Text((" " * len(name) if blocks else name) + drawn.replace(".", " " if blocks else "."))


def _style(typ: str) -> str:
    """Return the colour of a type: one that is seen on black and white, the terminal's own in the place of black."""
    kind = kind_of(typ)
    return "" if kind.color == "#000000" else kind.dark or kind.color


def _axis(seconds: float, columns: int) -> Iterator[Text]:
    """Yield what time a column takes, and the times at the beginning, the middle and the end."""
    end = duration(seconds)
    middle = duration(seconds / 2).center(columns - 2 * len(end))
    yield Text(f"a column is {duration(seconds / columns)}")
    yield Text(f"{'':{_NAMES}}{'0':{len(end)}}{middle}{end}")


def _legend(letters: Mapping[str, str], width: int, *, color: bool) -> Iterator[Text]:
    """Yield what colours or letters stand for."""
    text = Text(" " * _NAMES)
    for typ, letter in letters.items():
        if len(text) + len(typ) + 4 > width:
            yield text
            text = Text(" " * _NAMES)
        text.append("█" if color else letter, _style(typ) if color else "")
        text.append(f" {typ}  ")
    yield text


_LETTERS = {name: record.letter for name, record in COMPUTATIONS.items() if record.letter}


def schedule_text(trace: Trace) -> str:
    r"""Return the order of forwards and backwards of every rank, one line each.

    >>> import minitrain as mt
    >>> run = mt.simulate("1f1b", world_size=2, num_layers=2, global_batch_size=3, microbatch_size=1)
    >>> print(schedule_text(run.timeline), end="")
    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2
    """
    timeline = as_timeline(trace)
    tokens: list[list[str]] = [[] for _ in range(timeline.num_ranks)]
    events, lowest = _tokens(timeline)
    stages = _stages(timeline, events, lowest)
    numbers = microbatches(timeline)
    for event, stage in zip(events.tolist(), stages, strict=True):
        letter, number = _LETTERS[timeline.typs[timeline.typ[event]]], int(numbers[event])
        tokens[timeline.rank[event]].append(f"{stage}{letter}{number if number != NONE else ''}")
    return "".join(" ".join(line) + "\n" for line in tokens)


def _tokens(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the first event of each token, by rank and time, and the lowest layer of each."""
    passes = np.flatnonzero(timeline.of_types(_LETTERS) & (timeline.layer != NO_LAYER))
    order = passes[np.lexsort((passes, timeline.time[passes], timeline.rank[passes]))]
    if not len(order):
        return order, order
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = np.abs(np.diff(timeline.layer[order])) != 1
    for column in (timeline.rank, timeline.typ, timeline.samples):
        is_new[1:] |= column[order][1:] != column[order][:-1]
    first = np.flatnonzero(is_new)
    return order[first], np.minimum.reduceat(timeline.layer[order], first)


def _stages(timeline: Timeline, events: Ints, lowest: Ints) -> list[str]:
    """Return the stage to write before each token: nothing where every rank has one."""
    pairs = np.unique(np.stack([timeline.rank[events], lowest], axis=1), axis=0)
    if not len(pairs) or np.bincount(pairs[:, 0]).max() < 2:
        return [""] * len(events)
    return [str(stage) for stage in np.searchsorted(np.unique(lowest), lowest).tolist()]
