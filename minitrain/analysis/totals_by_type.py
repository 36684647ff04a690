"""How many events of each type there are, and how long they worked, summed exactly.

A sum of floats depends on its order, and events come in different orders: rank after rank, or in chunks of all ranks.
So equal durations are counted, and their multiples are added as fractions. The sum is rounded once, at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from minitrain.analysis.busy_time import are_flat
from minitrain.events import PRICE, STRIDE, TYP, Event

_MOST_DURATIONS = 4096  # counted at a time, since there can be as many distinct durations as events


class TypeTotal(NamedTuple):
    """The events of one type.

    Args:
        num_events: how many there are on all ranks.
        seconds: how long they worked, s, all of them together.
    """

    num_events: int
    seconds: float


class TypeSums:
    """The totals by type of events that come in several chunks, in any order."""

    __slots__ = ("_counts", "_durations", "_seconds")

    def __init__(self) -> None:
        self._durations: Counter[tuple[str, float]] = Counter()
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, Fraction] = {}

    def add(self, rows: Sequence[Any]) -> None:
        """Add rows of a flat log."""
        seconds = [price.seconds for price in rows[PRICE::STRIDE]]
        self._durations.update(zip(rows[TYP::STRIDE], seconds, strict=True))
        if len(self._durations) > _MOST_DURATIONS:
            self._add_counted()

    def add_events(self, events: Sequence[Event]) -> None:
        """Add events."""
        self._durations.update((event.typ, event.duration) for event in events)

    def totals(self, times: int = 1) -> dict[str, TypeTotal]:
        """Return the totals so far, so many times, by type in alphabetical order."""
        self._add_counted()
        return {
            typ: TypeTotal(times * count, float(times * self._seconds[typ]))
            for typ, count in sorted(self._counts.items())
        }

    def _add_counted(self) -> None:
        """Add the counted durations to the sums."""
        for (typ, duration), count in self._durations.items():
            self._counts[typ] += count
            self._seconds[typ] = self._seconds.get(typ, Fraction()) + count * Fraction(duration)
        self._durations.clear()


def totals_by_type(logs: Sequence[Sequence[Event]], times: int = 1) -> dict[str, TypeTotal]:
    """Return the totals by type.

    Args:
        logs: the events of each rank, or of one rank of each class.
        times: how many ranks each log stands for.
    """
    sums = TypeSums()
    if are_flat(logs):
        for log in logs:
            sums.add(log._rows)
    else:
        for events in logs:
            sums.add_events(events)
    return sums.totals(times)
