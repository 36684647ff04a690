"""What ranks do, drawn in a terminal: a lane for each kind of stream, of one rank of each class that does the same.

A column is a span of time. The height of its block is the share of it in which the lane is at work, and the colour, or
a letter below where there is no colour, what it mostly does. Left out: which operation waits for which, and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from rich.text import Text

from minitrain.operations import COMPUTE, RECV, SEND
from minitrain.run.analysis.labels import duration
from minitrain.run.analysis.timeline import Bools, Floats, Timeline
from minitrain.run.result import Run
from minitrain.view.bars import kind_of, legend_place

WIDTH, MOST_ROWS = 80, 8
_NAMES = 17  # columns before the lanes
_BLOCKS = " ▁▂▃▄▅▆▇█"
_LEAST = 0.02  # the share of a column below which it looks idle
_LANES: Mapping[str, str] = MappingProxyType({SEND: "peers", RECV: "peers"})


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
