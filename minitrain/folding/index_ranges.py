"""Sets and ranges of integers of which each rank of a class has its own, as intervals: no memory a sample.

A set is {x + sum of slope x i + sum of step x k: x in the pieces, k < count}. The folded coordinates i are free, and
differ from rank to rank; rings (step, count) are coordinates k over which a collective has united the ranks' sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, product
from math import prod
from typing import Any, overload

from minitrain.folding.rank_values import Each, Fold, in_engine

Piece = tuple[int, int]
Ring = tuple[int, int]

_MOST_HASHED = 4096
_MOST_PIECES = 4096  # of a union that is no ring; more are refused rather than listed


def span(start: Any, stop: Any) -> Sequence[Any]:
    """Return `range(start, stop)`, also where each rank of a class has its own start and stop."""
    if isinstance(start, Each) or isinstance(stop, Each):
        length = stop - start
        if isinstance(length, Each):
            length.fold.diverge("a range whose length differs between ranks", length.slopes)
        return EachRange(start, max(length, 0))
    return range(start, stop)


class EachRange(Sequence[Any]):
    """A range of consecutive integers that starts elsewhere on each rank of a class."""

    __slots__ = ("length", "start")

    def __init__(self, start: Each, length: int) -> None:
        self.start = start
        self.length = length

    @property
    def stop(self) -> Any:
        """The integer after the last."""
        return self.start + self.length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        places = range(self.length)[index]
        if isinstance(places, range):
            if places.step != 1:
                return [self.start + place for place in places]
            return EachRange(self.start + places.start, len(places))
        return self.start + places

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EachRange | range):
            return NotImplemented
        return len(other) == self.length and (not self.length or bool(self.start == other.start))

    __hash__ = None  # type: ignore[assignment]  # as a look-up, it would part the ranks

    def __repr__(self) -> str:
        if not (self.start.fold.over or in_engine()):
            self.start.fold.diverge("the text of a range that differs between ranks", self.start.slopes)
        return f"{self.length} integers from {self.start}"


class Spans(Set[Any]):
    """A set of integers, one set a rank of a class.

    Its hash, which sets that differ between ranks have none of, is a frozenset's up to `_MOST_HASHED` members.

    Args:
        fold: the attempt it belongs to.
        pieces: intervals [start, stop) of the class's lowest rank.
        slopes: how much all of them move along each folded axis.
        rings: steps and counts of axes over which sets were united.
    """

    __slots__ = ("_known_hash", "_lowest", "_over", "_size", "fold", "pieces", "rings", "slopes")

    def __init__(
        self, fold: Fold, pieces: Sequence[Piece], slopes: Mapping[str, int] | None = None, rings: Sequence[Ring] = ()
    ) -> None:
        self.fold = fold
        self.slopes = dict(slopes or {})
        self.pieces, self.rings = _settled(fold, _merged(pieces), sorted(rings)) if rings else (_merged(pieces), ())
        self._size = sum([stop - start for start, stop in self.pieces]) * prod([count for _, count in self.rings])
        self._known_hash: int | None = None
        self._over: dict[frozenset[str], Spans] = {}  # layers share sets, and their collectives the unions
        self._lowest: Spans | None = None

    @classmethod
    def of(cls, fold: Fold, values: Any) -> Spans:
        """Return the set of some values: a range, or integers that are all linear in the same way."""
        if isinstance(values, Spans):
            return values
        if isinstance(values, EachRange):
            first = values.start
            return cls(fold, [(first.const, first.const + values.length)] if values.length else [], first.slopes)
        if isinstance(values, range) and values.step == 1:
            return cls(fold, [(values.start, values.stop)] if values else [])
        return cls._of_list(fold, list(values))

    @classmethod
    def _of_list(cls, fold: Fold, items: list[Any]) -> Spans:
        """Return the set of listed integers."""
        slopes = items[0].slopes if items and isinstance(items[0], Each) else {}
        consts: list[int] = []
        for item in items:
            if (item.slopes if isinstance(item, Each) else {}) != slopes:
                fold.diverge("a set whose members move differently between ranks")
            consts.append(item.const if isinstance(item, Each) else int(item))
        return cls(fold, [(const, const + 1) for const in consts], slopes)

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> frozenset[Any]:
        return frozenset(it)

    def lowest(self) -> Spans:
        """Return the set of the class's lowest rank."""
        if self._lowest is None:
            self._lowest = Spans(self.fold, self.pieces, None, self.rings) if self.slopes else self
        return self._lowest

    def over(self, axes: Iterable[str]) -> Spans:
        """Return the union of the sets of all ranks along some axes."""
        along = frozenset(axes)
        if along not in self._over:
            self._over[along] = self._united(along)
        return self._over[along]

    def _united(self, axes: frozenset[str]) -> Spans:
        """Make the union of the sets of all ranks along some axes."""
        slopes, rings, shift = dict(self.slopes), list(self.rings), 0
        for axis in axes:
            slope = slopes.pop(axis, 0)
            if slope:
                rings.append((abs(slope), self.fold.sizes[axis]))
                shift += min(slope, 0) * (self.fold.sizes[axis] - 1)
        if not rings:
            return self if slopes == self.slopes else Spans(self.fold, self.pieces, slopes)
        pieces = [(start + shift, stop + shift) for start, stop in self.pieces]
        return Spans(self.fold, pieces, slopes, rings)

    def bounds(self) -> tuple[int, int]:
        """Return the least and the greatest member on any rank; the set must not be empty."""
        low, high = self.pieces[0][0], self.pieces[-1][1] - 1
        high += sum(step * (count - 1) for step, count in self.rings)
        for axis, slope in self.slopes.items():
            reach = slope * (self.fold.sizes[axis] - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        offsets = [range(0, step * count, step) for step, count in reversed(self.rings)]
        for shifts in product(*offsets):
            shift = sum(shifts)
            for start, stop in self.pieces:
                values = range(start + shift, stop + shift)
                yield from (self.fold.each(value, self.slopes) for value in values) if self.slopes else values

    def __contains__(self, value: object) -> bool:
        if isinstance(value, float | str) or value is None:
            return False
        rest: Any = value - self.fold.each(0, self.slopes)
        for step, count in reversed(self.rings):
            if isinstance(rest, Each):
                self.fold.diverge("a look-up that succeeds on some ranks only")
            rest -= min(max((rest - self.pieces[0][0]) // step, 0), count - 1) * step
        return any(start <= rest and rest < stop for start, stop in self.pieces)

    def __eq__(self, other: object) -> bool:
        if other is self or (isinstance(other, Spans) and self._form() == other._form()):
            return True
        if not isinstance(other, Set):
            return NotImplemented
        if len(self) != len(other):
            return False
        if self.slopes != getattr(other, "slopes", {}):
            self.fold.diverge("a comparison of sets that holds for some ranks only")
        mine, theirs = self.lowest(), other.lowest() if isinstance(other, Spans) else other
        return all(value in theirs for value in mine)

    def _form(self) -> tuple[Any, ...]:
        return self.pieces, self.rings, self.slopes

    def __hash__(self) -> int:
        if self.slopes:
            self.fold.diverge("a look-up of a set that differs between ranks", self.slopes)
        if len(self) <= _MOST_HASHED:
            if self._known_hash is None:
                self._known_hash = hash(frozenset(chain(*(range(*piece) for piece in self._listed()))))
            return self._known_hash
        if not in_engine() and not self.fold.over:
            self.fold.diverge(f"a look-up of a set of more than {_MOST_HASHED} members", frozenset())
        return hash((len(self), self.bounds()))

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Set):
            return NotImplemented
        if not other:
            return self
        right = Spans.of(self.fold, other)
        if not self.pieces or self._form() == right._form():
            return right
        if self.slopes != right.slopes:
            self.fold.diverge("a union of sets that move differently between ranks")
        if self.rings == right.rings:
            return Spans(self.fold, [*self.pieces, *right.pieces], self.slopes, self.rings)
        return Spans(self.fold, [*self._listed(), *right._listed()], self.slopes)

    __ror__ = __or__

    def union(self, *others: Iterable[Any]) -> Any:
        """Return the union with others, as a frozenset does."""
        united: Any = self
        for other in others:
            united = united | Spans.of(self.fold, other)
        return united

    def issubset(self, other: Iterable[Any]) -> bool:
        """Return whether another set has every member, as a frozenset does."""
        within = Spans.of(self.fold, other)
        return all(value in within for value in self)

    def issuperset(self, other: Iterable[Any]) -> bool:
        """Return whether this set has every member of another, as a frozenset does."""
        return all(value in self for value in other)

    def intersection(self, *others: Iterable[Any]) -> Any:
        """Return the members that are in the others too, as a frozenset does."""
        within = [Spans.of(self.fold, other) for other in others]
        return Spans.of(self.fold, [value for value in self if all(value in other for other in within)])

    def difference(self, *others: Iterable[Any]) -> Any:
        """Return the members that are in none of the others, as a frozenset does."""
        without = [Spans.of(self.fold, other) for other in others]
        return Spans.of(self.fold, [value for value in self if not any(value in other for other in without)])

    def __and__(self, other: Any) -> Any:
        return self.intersection(other) if isinstance(other, Set) else NotImplemented

    __rand__ = __and__

    def __sub__(self, other: Any) -> Any:
        return self.difference(other) if isinstance(other, Set) else NotImplemented

    def copy(self) -> Any:
        """Return the set, which cannot change."""
        return self

    def _listed(self) -> list[Piece]:
        """Return all pieces, those of rings too."""
        pieces = list(self.pieces)
        for step, count in self.rings:
            pieces = _repeated(self.fold, pieces, step, count)
        return pieces

    def __repr__(self) -> str:
        if self.slopes and not (self.fold.over or in_engine()):
            self.fold.diverge("the text of a set that differs between ranks", self.slopes)
        several = len(self.pieces) > 1 or self.rings
        start, stop = self.pieces[0] if self.pieces else (0, 0)
        return f"{{{start}..{stop - 1}{', ...' if several else ''}}}" + (" (and so on)" if self.slopes else "")


def _merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Return the same integers as intervals in order that do not touch."""
    found: list[Piece] = []
    for start, stop in sorted(pieces):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def _settled(fold: Fold, pieces: tuple[Piece, ...], rings: list[Ring]) -> tuple[tuple[Piece, ...], tuple[Ring, ...]]:
    """Return pieces and rings so that no ring can be written as pieces, and none overlaps itself."""
    kept: list[Ring] = []
    reach = 0
    for step, count in rings if pieces else ():
        extent = pieces[-1][1] - pieces[0][0] + reach
        if not kept and all(stop - start >= step for start, stop in pieces):
            pieces = _merged((start, stop + step * (count - 1)) for start, stop in pieces)
        elif step >= extent:
            kept.append((step, count))
            reach += step * (count - 1)
        else:
            for inner_step, inner_count in kept:
                pieces = tuple(_repeated(fold, pieces, inner_step, inner_count))
            pieces, kept, reach = _merged(_repeated(fold, pieces, step, count)), [], 0
    return pieces, tuple(kept)


def _repeated(fold: Fold, pieces: Sequence[Piece], step: int, count: int) -> list[Piece]:
    """Return copies of pieces, `count` of them, `step` apart."""
    if len(pieces) * count > _MOST_PIECES:
        fold.diverge(f"a union of more than {_MOST_PIECES} intervals")
    return [(start + step * k, stop + step * k) for k in range(count) for start, stop in pieces]
