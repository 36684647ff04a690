"""Ranks that did the same are written once: which they are, and their logs where a file has them so.

A rank repeats another one where their events differ in nothing but samples and partners (group, peer, and the rank that
was waited for), and equal ones of the one are equal ones of the other. Then a list of samples and one of partners, in
the place of each that the other rank has, is all that there is to say. `OnceWritten` is a list that says so.

Found by folding, or by comparing the rows of all logs (`by_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from minitrain.operations import (
    LAUNCHED,
    LAYER,
    MEMORY,
    NOTE,
    PRICE,
    SAMPLES,
    STREAM,
    STRIDE,
    TIME,
    TYP,
    WAITED_FOR,
    Event,
    EventLog,
    MadeWhenRead,
    Note,
    ReadOnlyLog,
)

Partners = tuple[tuple[int, ...] | None, int | None, int | None]
"""Group, peer, and the rank that was waited for."""

_EQUAL = (TYP, LAYER, PRICE, MEMORY, LAUNCHED)  # columns; times are equal already


class Repeated(NamedTuple):
    """A rank that did what another one did.

    Args:
        rank: which.
        like: the other one, whose events are written.
        samples: the rank's own sets of samples in the place of each that the other has, in the order of its events.
        partners: the rank's own partners in the place of each that the other has, in that order.
    """

    rank: int
    like: int
    samples: Sequence[frozenset[int]]
    partners: Sequence[Partners]


def repeated(
    rank: int, like: int, samples: Iterable[tuple[Any, Any]], partners: Iterable[tuple[Any, Any]]
) -> Repeated | None:
    """Return what a rank has in the place of another one's samples and partners; None where one has several.

    Args:
        rank: which.
        like: the other one.
        samples: pairs of what the other has and the rank has, in the order of events.
        partners: the same of partners.
    """
    own_samples, own_partners = _replaced(samples), _replaced(partners)
    if own_samples is None or own_partners is None:
        return None
    return Repeated(rank, like, own_samples, own_partners)


def _replaced(pairs: Iterable[tuple[Any, Any]]) -> list[Any] | None:
    """Return the second of each pair whose first is new; None where one first has two seconds."""
    found: dict[Any, Any] = {}
    for theirs, own in pairs:
        if found.setdefault(theirs, own) != own:
            return None
    return list(found.values())


def by_rows(logs: Sequence[Sequence[Event]], most_events: int | None = None) -> list[Repeated] | None:
    """Return the ranks that repeat others, by comparing rows; None where the others have more events than may be.

    Args:
        logs: the log of each rank.
        most_events: how many may be left to write.
    """
    found: list[Repeated] = []
    first_of: dict[Any, list[EventLog]] = {}
    left = sum(map(len, logs)) if most_events is None else most_events
    for log in logs:
        alike = None
        if isinstance(log, EventLog):
            others = first_of.setdefault(hash(tuple(log._rows[TIME::STRIDE])), [])
            alike = next(filter(None, (_compared(other, log) for other in others)), None)
            if alike is None:
                others.append(log)
            else:
                found.append(alike)
        if alike is None:
            left -= len(log)
            if left < 0:
                return None
    return found


def _compared(other: EventLog, log: EventLog) -> Repeated | None:
    """Return how a rank repeats another one, if it does."""
    theirs, own = other._rows, log._rows
    if len(theirs) != len(own) or theirs[TIME::STRIDE] != own[TIME::STRIDE]:
        return None
    if any(theirs[column::STRIDE] != own[column::STRIDE] for column in _EQUAL):
        return None
    if not all(map(_notes_are_equal, theirs[NOTE::STRIDE], own[NOTE::STRIDE])):
        return None
    columns = theirs[STREAM::STRIDE], theirs[WAITED_FOR::STRIDE], own[STREAM::STRIDE], own[WAITED_FOR::STRIDE]
    distinct = {(id(each[0]), each[1], id(each[2]), each[3]): each for each in zip(*columns, strict=True)}
    if any(stream.kind != mine.kind for stream, _, mine, _ in distinct.values()):
        return None
    partners = (
        ((stream.group, stream.peer, waited), (mine.group, mine.peer, for_whom))
        for stream, waited, mine, for_whom in distinct.values()
    )
    sets = {(id(a), id(b)): (a, b) for a, b in zip(theirs[SAMPLES::STRIDE], own[SAMPLES::STRIDE], strict=True)}
    found = repeated(log.rank, other.rank, sets.values(), partners)
    return found if found is not None and _recomputed(other) == _recomputed(log) else None


def _notes_are_equal(one: Any, other: Any) -> bool:
    """Return whether two notes say the same."""
    if one is None or other is None:
        return one is other
    return all(getattr(one, name) == getattr(other, name) for name in Note.__slots__)


def _recomputed(log: EventLog) -> list[bool]:
    """Return which events of a log take samples through a layer once more."""
    if len(log):
        log._is_recomputed(len(log) - 1)
        return log._recomputed
    return []


class OnceWritten(ReadOnlyLog, MadeWhenRead[Event]):
    """The log of a rank that did what another one did; its events are made when somebody reads them.

    Args:
        rank: which.
        other: the other one's log.
        samples: the rank's own sets by those of the other.
        partners: the rank's own partners by those of the other.
    """

    __slots__ = ("_other", "_partners", "_rank", "_samples")

    _other: Sequence[Event]
    _partners: dict[Partners, Partners]
    _rank: int
    _samples: dict[Any, Any]

    def __init__(
        self, rank: int, other: Sequence[Event], samples: dict[Any, Any], partners: dict[Partners, Partners]
    ) -> None:
        for name, value in (("_rank", rank), ("_other", other), ("_samples", samples), ("_partners", partners)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self._other)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle what it was made of."""
        return OnceWritten, (self._rank, self._other, self._samples, self._partners)

    def _at(self, place: int) -> Event:
        """Return the rank's own event in the place of the other one's."""
        event = self._other[place]
        group, peer, waited_for = self._partners[partners_of(event)]
        samples = self._samples[event.samples]
        return replace(event, rank=self._rank, samples=samples, group=group, peer=peer, waited_for=waited_for)


def partners_of(event: Event) -> Partners:
    """Return the partners of an event."""
    return event.group, event.peer, event.waited_for


def distinct_of(log: Sequence[Event]) -> tuple[list[Any], list[Partners]]:
    """Return the different sets of samples and partners of a log, in the order of events."""
    return list(dict.fromkeys(event.samples for event in log)), list(dict.fromkeys(map(partners_of, log)))
