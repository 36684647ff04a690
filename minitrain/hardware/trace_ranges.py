"""Nested ranges of time on a thread, as profilers record them, and which of them lie around a moment.

A range lies within another if it begins no earlier and ends no later. Ranges of one thread nest, as calls do; one that
does not (a clock that jumped) counts as within nothing that ends before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import final


@final
@dataclass(slots=True)
class Range:
    """Something that a thread did from a time to a time; `parent` is what it lies within.

    `is_named` says that somebody gave it a name: an annotation or a module, and no operation.
    """

    start: float
    end: float
    name: str
    layer: int | str | None = None
    sequence: int | None = None
    parent: Range | None = field(default=None, repr=False)
    is_named: bool = False

    def around(self) -> Iterator[Range]:
        """Yield this and what it lies within, from the inside out."""
        found: Range | None = self
        while found is not None:
            yield found
            found = found.parent


@final
class ThreadRanges:
    """The ranges of one thread, which finds those around a moment."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._ranges = sorted(ranges, key=lambda one: (one.start, -one.end))
        self._starts = [one.start for one in self._ranges]
        open_ranges: list[Range] = []
        for one in self._ranges:
            while open_ranges and open_ranges[-1].end < one.end:
                open_ranges.pop()
            one.parent = open_ranges[-1] if open_ranges else None
            open_ranges.append(one)

    def around(self, moment: float) -> Iterator[Range]:
        """Yield the ranges around a moment, from the inside out."""
        place = bisect_right(self._starts, moment)
        if place:
            yield from (one for one in self._ranges[place - 1].around() if one.end >= moment)


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of some spans lasts.

    >>> union([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
