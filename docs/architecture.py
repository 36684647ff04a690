"""Draw the house, docs/architecture.svg, from what files import: `python docs/architecture.py`.

A floor is a row of boxes, the ground at the bottom. A solid arrow leads from a room to one that it imports; what
follows from other arrows is left out. An arrow passes a floor where there is no box.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

import house

PICTURE = Path(__file__).with_name("architecture.svg")
WIDTH, LEFT, RIGHT, TOP = 1000, 132, 948, 20
BOX_WIDTH, BOX_HEIGHT, GAP, FLOOR = 190, 46, 18, 84
LANE, PORT, ROUND = 12, 22, 26

STYLE = """
    svg { color-scheme: light dark; font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
    .paper { fill: #ffffff; }
    .band { fill: #f3f5f9; }
    .band.odd { fill: #e9edf5; }
    .title { fill: #5b6577; text-anchor: end; font-size: 12.5px; }
    .room { fill: #ffffff; stroke: #6f7f9c; stroke-width: 1.2; }
    .name { fill: #17202f; font: 600 14.5px ui-monospace, "SF Mono", Menlo, Consolas, monospace; text-anchor: middle; }
    .holds { fill: #4d586b; text-anchor: middle; }
    .import { fill: none; stroke: #7787a5; stroke-width: 1.5; marker-end: url(#import); }
    .tip { fill: #7787a5; }
    .legend { fill: #4d586b; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; }
      .band { fill: #141a23; }
      .band.odd { fill: #1a222e; }
      .title { fill: #98a4b8; }
      .room { fill: #202a38; stroke: #6b7c99; }
      .name { fill: #eef2f8; }
      .holds { fill: #b3bfd1; }
      .import { stroke: #7f90b0; }
      .tip { fill: #7f90b0; }
      .legend { fill: #b3bfd1; }
    }
"""


@dataclass(slots=True)
class Arrow:
    """An arrow from one room to another, and where it passes each floor between them."""

    begin: str
    end: str
    kind: str
    lanes: dict[int, float] = field(default_factory=dict)
    ports: dict[str, float] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[str, str]:
        """The lower and the upper room."""
        lower, upper = sorted((self.begin, self.end), key=house.LEVELS.__getitem__)
        return lower, upper

    def beside(self, room: str) -> float:
        """Return where the arrow is on the floor next to the room of one of its ends."""
        lower, upper = self.ends
        between = [self.lanes[level] for level in sorted(self.lanes)]
        other = center(upper if room == lower else lower)
        return (between or [other])[0 if room == lower else -1]


def center(room: str) -> float:
    """Return the middle of a room's box, from the left."""
    rooms = [one.name for one in house.FLOORS[house.LEVELS[room]].rooms]
    width = len(rooms) * (BOX_WIDTH + GAP) - GAP
    return (LEFT + RIGHT - width) / 2 + rooms.index(room) * (BOX_WIDTH + GAP) + BOX_WIDTH / 2


def top(level: int) -> float:
    """Return the upper edge of a floor's boxes."""
    return TOP + 18 + (len(house.FLOORS) - 1 - level) * FLOOR


def arrows() -> list[Arrow]:
    """Return what is drawn between rooms: imports that no other arrows imply."""
    pairs: defaultdict[str, set[str]] = defaultdict(set)
    for one in house.imports():
        if house.room_of(one.file) != house.room_of(one.target) and not house.is_upward(one):
            pairs[house.room_of(one.file)].add(house.room_of(one.target))
    reached: dict[str, set[str]] = {}
    for room in house.ROOMS:  # from the ground up
        reached[room] = pairs[room].union(*(reached[below] for below in pairs[room]))
    return [
        Arrow(room, below, "import")
        for room in house.ROOMS
        for below in sorted(pairs[room], key=list(house.ROOMS).index)
        if not any(below in reached[other] for other in pairs[room])
    ]


def lay(drawn: list[Arrow]) -> None:
    """Find every arrow's way past the boxes between its ends, then where it touches those."""
    for arrow in drawn:
        lower, upper = arrow.ends
        first, last = house.LEVELS[lower], house.LEVELS[upper]
        here = center(lower)
        for level in range(first + 1, last):
            aim = here + (center(upper) - here) / (last - level + 1)
            arrow.lanes[level] = here = _free(level, aim)
    for level in range(len(house.FLOORS)):
        _spread([arrow for arrow in drawn if level in arrow.lanes], level)
    for room in house.ROOMS:
        for side in (0, 1):
            ends = sorted((one for one in drawn if one.ends[side] == room), key=lambda one: one.beside(room))
            for place, arrow in enumerate(ends):
                arrow.ports[room] = center(room) + (place - (len(ends) - 1) / 2) * min(PORT, BOX_WIDTH / len(ends))


def _gaps(level: int) -> list[tuple[float, float]]:
    """Return the stretches of a floor where there is no box."""
    edges = [LEFT - 4.0]
    for room in house.FLOORS[level].rooms:
        edges += [center(room.name) - BOX_WIDTH / 2, center(room.name) + BOX_WIDTH / 2]
    edges.append(RIGHT + 34.0)
    return list(zip(edges[::2], edges[1::2], strict=True))


def _free(level: int, aim: float) -> float:
    """Return the place nearest to where an arrow would pass a floor at which there is no box."""
    places = (min(max(aim, begin + GAP / 2), end - GAP / 2) for begin, end in _gaps(level))
    return min(places, key=lambda place: abs(place - aim))


def _spread(passing: list[Arrow], level: int) -> None:
    """Keep arrows that pass a floor in the same gap apart."""
    for begin, end in _gaps(level):
        inside = sorted(
            (one for one in passing if begin <= one.lanes[level] <= end),
            key=lambda one: (one.lanes[level], sum(map(center, one.ends)), one.kind),
        )
        step = min(LANE, (end - begin) / (len(inside) + 1))
        for before, arrow in zip([None, *inside], inside, strict=False):
            least = begin + step / 2 if before is None else before.lanes[level] + step
            arrow.lanes[level] = max(arrow.lanes[level], least)
        for after, arrow in zip([None, *inside[::-1]], inside[::-1], strict=False):
            most = end - step / 2 if after is None else after.lanes[level] - step
            arrow.lanes[level] = min(arrow.lanes[level], most)


def _path(arrow: Arrow) -> str:
    """Return an arrow's line: straight past a floor, bent between floors."""
    lower, upper = arrow.ends
    points = [(arrow.ports[lower], top(house.LEVELS[lower]))]
    for level in sorted(arrow.lanes):
        points += [(arrow.lanes[level], top(level) + BOX_HEIGHT), (arrow.lanes[level], top(level))]
    points.append((arrow.ports[upper], top(house.LEVELS[upper]) + BOX_HEIGHT))
    if arrow.begin == upper:
        points.reverse()
    line = f"M{points[0][0]:.0f} {points[0][1]:.0f}"
    for (x, y), (to_x, to_y) in pairwise(points):
        bend = (to_y - y) / 2
        straight = round(x) == round(to_x)
        curve = f" C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}"
        line += f" V{to_y:.0f}" if straight else curve
    return line


def _bands() -> Iterator[str]:
    """Yield the stripes behind floors that have a title in common, with the title."""
    bands: list[tuple[str, int, int]] = []
    for level, floor in enumerate(house.FLOORS):
        title, first = (floor.title, level) if floor.title else bands.pop()[:2]
        bands.append((title, first, level))
    for place, (title, first, last) in enumerate(bands):
        begin, height = top(last) - (FLOOR - BOX_HEIGHT) / 2, (last - first + 1) * FLOOR
        odd = " odd" if place % 2 else ""
        yield f'<rect class="band{odd}" x="8" y="{begin:.0f}" width="{WIDTH - 16}" height="{height}"/>'
        yield f'<text class="title" x="{LEFT - 16}" y="{begin + height / 2 + 4:.0f}">{escape(title)}</text>'


def _boxes() -> Iterator[str]:
    """Yield the rooms."""
    for room in house.ROOMS.values():
        middle, upper = center(room.name), top(house.LEVELS[room.name])
        yield (
            f'<rect class="room" x="{middle - BOX_WIDTH / 2:.0f}" y="{upper:.0f}" '
            f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="7"/>'
        )
        yield f'<text class="name" x="{middle:.0f}" y="{upper + 20:.0f}">{escape(room.name)}</text>'
        yield f'<text class="holds" x="{middle:.0f}" y="{upper + 36:.0f}">{escape(room.holds)}</text>'


def _legend(y: float) -> Iterator[str]:
    """Yield what the two kinds of arrow mean."""
    yield f'<path class="import" d="M{LEFT} {y:.0f} h40"/>'
    meaning = "imports (what follows from other arrows is left out)"
    yield f'<text class="legend" x="{LEFT + 50}" y="{y + 4:.0f}">{meaning}</text>'


def _marker(name: str, kind: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path class="{kind}" d="M0 0 8 4 0 8z"/></marker>'
    )


def drawing() -> str:
    """Return the picture."""
    drawn = arrows()
    lay(drawn)
    height = round(top(0) + BOX_HEIGHT + 66)
    lines = [
        *_bands(),
        *(
            f'<path class="{one.kind}" d="{_path(one)}"><title>{one.begin} imports {one.end}</title></path>'
            for one in drawn
        ),
        *_boxes(),
        *_legend(height - 24),
    ]
    return _page(height, lines)


def _page(height: int, lines: Iterable[str]) -> str:
    """Return a picture of some height."""
    body = "\n".join(f"  {line}" for line in lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        "  <title>The rooms of minitrain, from the ground up, and what they import</title>\n"
        f"  <style>{STYLE}  </style>\n"
        f"  <defs>{_marker('import', 'tip')}</defs>\n"
        f'  <rect class="paper" width="{WIDTH}" height="{height}" rx="10"/>\n'
        f"{body}\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
