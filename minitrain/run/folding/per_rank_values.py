"""Integers and ranges of which each rank of a class has its own, linear in the folded coordinates.

The value of the rank with folded coordinates i is const + sum of slope x i over the axes. Whatever a strategy computes
from its rank is either such a value again, or the same for all ranks of the class, or refused. A `PerRankInt` is no
int, so that nothing (an index, a hash, a text) can take the value of one rank for that of all.

Sets of integers of which each rank of a class has its own, as intervals: no memory for each sample.

The set of the rank with folded coordinates i is

    {x + sum of slope x i + sum of step x k: x in the intervals, k < count}.

The first sum goes over the folded axes. The second one goes over the repeats (step, count), each of which is an axis
along which a collective has united the sets of the ranks. Whether a value is in such a set, and whether two sets are
equal, is answered for all ranks at once, or the ranks diverge.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, product
from math import prod
from typing import Any, NoReturn, overload

from minitrain.run.folding.attempt import FoldAttempt, in_engine


def per_rank(attempt: FoldAttempt, const: int, slopes: Mapping[str, int]) -> Any:
    """Return the value const + sum of slope x coordinate: an int where it is the same for all ranks of a class."""
    found = {axis: slope for axis, slope in slopes.items() if slope and axis in attempt.folded_sizes}
    return PerRankInt(attempt, const, found) if found else const


_NO_NUMBERS = (type(None), str, bytes, tuple, list, dict, set, frozenset)  # what no integer equals


def _integer(value: Any) -> int | None:
    """Return an integer of any type (numpy's, too) as an int, None for anything else."""
    if value.__class__ is int:
        return value
    return operator.index(value) if hasattr(value, "__index__") and not isinstance(value, PerRankInt) else None


def _refusing(what: str) -> Callable[..., Any]:
    """Return a method that refuses what cannot be evaluated over all ranks at once."""

    def method(self: PerRankInt, *_: Any) -> NoReturn:
        self.attempt.diverge(f"{what} of a value that differs between ranks", self.slopes)

    return method


class PerRankInt:
    """One integer for each rank of a class.

    Args:
        attempt: the attempt it belongs to.
        const: the value of the class's lowest rank.
        slopes: how much it grows along each folded axis, without zeros.
    """

    __slots__ = ("_bounds", "_singleton", "attempt", "const", "slopes")

    def __init__(self, attempt: FoldAttempt, const: int, slopes: Mapping[str, int]) -> None:
        self.attempt = attempt
        self.const = const
        self.slopes = slopes
        self._singleton: Any = None  # layers ask for the same shards
        self._bounds: tuple[int, int] | None = None

    def bounds(self) -> tuple[int, int]:
        """Return the least and the greatest value of any rank."""
        if self._bounds is None:
            low = high = self.const
            for axis, slope in self.slopes.items():
                reach = slope * (self.attempt.folded_sizes[axis] - 1)
                low, high = low + min(reach, 0), high + max(reach, 0)
            self._bounds = low, high
        return self._bounds

    def _plus(self, other: Any, sign: int) -> Any:
        """Return self + sign x other."""
        if isinstance(other, PerRankInt):
            axes = {*self.slopes, *other.slopes}
            slopes = {axis: self.slopes.get(axis, 0) + sign * other.slopes.get(axis, 0) for axis in axes}
            return per_rank(self.attempt, self.const + sign * other.const, slopes)
        number = _integer(other)
        if number is None:
            self.attempt.diverge(
                f"arithmetic with a {type(other).__name__} of a value that differs between ranks", self.slopes
            )
        return PerRankInt(self.attempt, self.const + sign * number, self.slopes)

    def __add__(self, other: Any) -> Any:
        return self._plus(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._plus(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return (-self)._plus(other, 1)

    def __neg__(self) -> PerRankInt:
        return PerRankInt(self.attempt, -self.const, {axis: -slope for axis, slope in self.slopes.items()})

    def __pos__(self) -> PerRankInt:
        return self

    def __mul__(self, other: Any) -> Any:
        factor = _integer(other)
        if factor is None:
            self.attempt.diverge("a product of a value that differs between ranks", self.slopes)
        return per_rank(
            self.attempt, self.const * factor, {axis: slope * factor for axis, slope in self.slopes.items()}
        )

    __rmul__ = __mul__

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        """Divide where quotient and remainder are linear too, as for coordinates on a mesh."""
        other = _integer(other)
        if other is None or other < 1:
            self.attempt.diverge("a division of a value that differs between ranks", self.slopes)
        whole = {axis: slope // other for axis, slope in self.slopes.items() if not slope % other}
        rest = {axis: slope for axis, slope in self.slopes.items() if slope % other}
        remainder = per_rank(self.attempt, self.const % other, rest)
        low, high = remainder.bounds() if isinstance(remainder, PerRankInt) else (remainder, remainder)
        if low < 0 or high >= other:
            for axis, slope in rest.items():
                if slope > 0 and other % slope == 0:
                    self.attempt.request_split(axis, other // slope)
            self.attempt.diverge(f"a division by {other} of a value that differs between ranks", self.slopes)
        return per_rank(self.attempt, self.const // other, whole), remainder

    def __floordiv__(self, other: Any) -> Any:
        return divmod(self, other)[0]

    def __mod__(self, other: Any) -> Any:
        return divmod(self, other)[1]

    def _reach_from(self, other: Any) -> tuple[int, int]:
        """Return the least and the greatest difference to a number, or to another `PerRankInt`."""
        if other.__class__ is int:
            low, high = self.bounds()
            return low - other, high - other
        difference = self - other
        return difference.bounds() if isinstance(difference, PerRankInt) else (difference, difference)

    def _compare(self, other: Any, below: bool, inside: bool, above: bool) -> bool:
        """Return a comparison's result where it is one for all ranks.

        Args:
            other: a number, or another `PerRankInt`.
            below: the result where all are less.
            inside: the result where all are equal.
            above: the result where all are greater.
        """
        low, high = self._reach_from(other)
        if low > 0 or high < 0:
            return above if low > 0 else below
        results = {inside, below if low < 0 else inside, above if high > 0 else inside}
        if len(results) > 1:
            self.attempt.diverge("a comparison that holds for some ranks only", self.slopes)
        return results.pop()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _NO_NUMBERS):
            return NotImplemented
        return self._compare(other, False, True, False)

    def __ne__(self, other: object) -> bool:
        if isinstance(other, _NO_NUMBERS):
            return NotImplemented
        return self._compare(other, True, False, True)

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, True, False, False)

    def __le__(self, other: Any) -> bool:
        return self._compare(other, True, True, False)

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, False, False, True)

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, False, True, True)

    def __bool__(self) -> bool:
        return self != 0

    __hash__ = _refusing("a look-up")
    __index__ = _refusing("an index (a place in a list, an end of a range)")
    __int__ = __float__ = __complex__ = _refusing("a conversion")
    __round__ = __trunc__ = __floor__ = __ceil__ = __abs__ = _refusing("a rounding")
    __truediv__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rdivmod__ = _refusing("a division")
    __pow__ = __rpow__ = _refusing("a power")
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refusing("the bits")
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refusing("the bits")
    __reduce__ = __reduce_ex__ = _refusing("a pickle")

    def __copy__(self) -> PerRankInt:
        return self

    def __deepcopy__(self, memo: Any) -> PerRankInt:
        return self

    def __getattr__(self, name: str) -> Any:
        """Refuse what an int can do beside arithmetic."""
        if name.startswith("__") or not hasattr(int, name):
            raise AttributeError(name)
        self.attempt.diverge(f"{name} of a value that differs between ranks", self.slopes)

    def __repr__(self) -> str:
        self.attempt.require_text_allowed("a value", self.slopes)
        return f"{self.const} (and so on)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        self.attempt.require_text_allowed("a value", self.slopes)
        return f"{self.const} (and so on)"

    def singleton(self) -> Any:
        """Return the set of this value, one set for each rank (`Tensor.shard` asks for it)."""
        if self._singleton is None:
            self._singleton = PerRankSet(self.attempt, ((self.const, self.const + 1),), self.slopes)
        return self._singleton

    def item_of(self, values: Sequence[Any]) -> Any:
        """Return the item of a sequence that each rank means by this index (`minitrain.engine.stages` asks).

        Args:
            values: numbers, of which one is meant by all ranks, or ranges of samples.

        Raises:
            DivergesError: ranks have different numbers, ranges of different lengths, or ranges that do not move evenly.
        """
        attempt = self.attempt
        attempt.is_observed = True
        first = values[self.const]
        slopes = {axis: _start(values[self.const + slope]) - _start(first) for axis, slope in self.slopes.items()}
        for places in product(*(range(attempt.folded_sizes[axis]) for axis in self.slopes)):
            moved = dict(zip(self.slopes, places, strict=True))
            value = values[self.const + sum(self.slopes[axis] * place for axis, place in moved.items())]
            start = _start(first) + sum(slopes[axis] * place for axis, place in moved.items())
            if _length(value) != _length(first) or _start(value) != start:
                attempt.prices_differ = True
                attempt.diverge("a share of the batch that differs between ranks", self.slopes)
        if not isinstance(first, range):
            return first
        begin = per_rank(attempt, first.start, slopes)
        return PerRankRange(begin, len(first)) if isinstance(begin, PerRankInt) else first

    @staticmethod
    def span(start: Any, stop: Any) -> Sequence[Any]:
        """Return the integers from start to stop, of which at least one is a `PerRankInt` (`minitrain.span` asks)."""
        length = stop - start
        if isinstance(length, PerRankInt):
            length.attempt.diverge("a range whose length differs between ranks", length.slopes)
        return PerRankRange(start, max(length, 0))


def _start(value: Any) -> int:
    """Return where a range begins; 0 for a number, which is no range."""
    return value.start if isinstance(value, range) else 0


def _length(value: Any) -> int:
    """Return the length of a range, or the number."""
    return len(value) if isinstance(value, range) else value


class PerRankRange(Sequence[Any]):
    """A range of consecutive integers that starts elsewhere on each rank of a class."""

    __slots__ = ("length", "start")

    def __init__(self, start: PerRankInt, length: int) -> None:
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
            return PerRankRange(self.start + places.start, len(places))
        return self.start + places

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PerRankRange | range):
            return NotImplemented
        return len(other) == self.length and (not self.length or bool(self.start == other.start))

    __hash__ = None  # type: ignore[assignment]  # a look-up would make the ranks diverge

    def __repr__(self) -> str:
        self.start.attempt.require_text_allowed("a range", self.start.slopes)
        return f"{self.length} integers from {self.start}"


Interval = tuple[int, int]
Repeat = tuple[int, int]

_MOST_HASHED = 4096
_MOST_INTERVALS = 4096  # of a union that is not regular; more are refused rather than listed


class PerRankSet(Set[Any]):
    """A set of integers for each rank of a class.

    A set that differs between ranks has no hash. Any other one of up to `_MOST_HASHED` members has a frozenset's hash.

    Args:
        attempt: the attempt it belongs to.
        intervals: intervals [start, stop) of the class's lowest rank.
        slopes: how much all of them move along each folded axis.
        repeats: step and count of each axis over which sets were united.
    """

    __slots__ = ("_equal", "_known_hash", "_lowest", "_size", "_unions", "attempt", "intervals", "repeats", "slopes")

    def __init__(
        self,
        attempt: FoldAttempt,
        intervals: Sequence[Interval],
        slopes: Mapping[str, int] | None = None,
        repeats: Sequence[Repeat] = (),
    ) -> None:
        self.attempt = attempt
        self.slopes = dict(slopes or {})
        self.intervals, self.repeats = (
            _normalized(attempt, _merged(intervals), sorted(repeats)) if repeats else (_merged(intervals), ())
        )
        self._size = sum([stop - start for start, stop in self.intervals]) * prod([count for _, count in self.repeats])
        self._known_hash: int | None = None
        self._unions: dict[frozenset[str], PerRankSet] = {}  # layers share sets, and their collectives the unions
        self._lowest: PerRankSet | None = None
        self._equal: Any = None

    @classmethod
    def of(cls, attempt: FoldAttempt, values: Any) -> PerRankSet:
        """Return the set of some values: a range, or integers that are all linear in the same way."""
        if isinstance(values, PerRankSet):
            return values
        if isinstance(values, PerRankRange):
            first = values.start
            return cls(attempt, [(first.const, first.const + values.length)] if values.length else [], first.slopes)
        if isinstance(values, range) and values.step == 1:
            return cls(attempt, [(values.start, values.stop)] if values else [])
        return cls._of_list(attempt, list(values))

    @classmethod
    def _of_list(cls, attempt: FoldAttempt, items: list[Any]) -> PerRankSet:
        """Return the set of listed integers."""
        slopes = items[0].slopes if items and isinstance(items[0], PerRankInt) else {}
        consts: list[int] = []
        for item in items:
            if (item.slopes if isinstance(item, PerRankInt) else {}) != slopes:
                attempt.diverge("a set whose members move differently between ranks")
            consts.append(item.const if isinstance(item, PerRankInt) else int(item))
        return cls(attempt, [(const, const + 1) for const in consts], slopes)

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> frozenset[Any]:
        return frozenset(it)

    def of_lowest_rank(self) -> PerRankSet:
        """Return the set of the class's lowest rank."""
        if self._lowest is None:
            self._lowest = PerRankSet(self.attempt, self.intervals, None, self.repeats) if self.slopes else self
        return self._lowest

    def union_over(self, axes: Iterable[str]) -> PerRankSet:
        """Return the union of the sets of all ranks along some axes."""
        along = frozenset(axes)
        if along not in self._unions:
            self._unions[along] = self._united(along)
        return self._unions[along]

    def _united(self, axes: frozenset[str]) -> PerRankSet:
        """Make the union of the sets of all ranks along some axes, each of which becomes a repeat."""
        slopes, repeats, shift = dict(self.slopes), list(self.repeats), 0
        for axis in axes:
            slope = slopes.pop(axis, 0)
            if slope:
                repeats.append((abs(slope), self.attempt.folded_sizes[axis]))
                shift += min(slope, 0) * (self.attempt.folded_sizes[axis] - 1)
        if not repeats:
            return self if slopes == self.slopes else PerRankSet(self.attempt, self.intervals, slopes)
        intervals = [(start + shift, stop + shift) for start, stop in self.intervals]
        return PerRankSet(self.attempt, intervals, slopes, repeats)

    def bounds(self) -> tuple[int, int]:
        """Return the least and the greatest member on any rank; the set must not be empty."""
        low, high = self.intervals[0][0], self.intervals[-1][1] - 1
        high += sum(step * (count - 1) for step, count in self.repeats)
        for axis, slope in self.slopes.items():
            reach = slope * (self.attempt.folded_sizes[axis] - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        offsets = [range(0, step * count, step) for step, count in reversed(self.repeats)]
        for shifts in product(*offsets):
            shift = sum(shifts)
            for start, stop in self.intervals:
                values = range(start + shift, stop + shift)
                yield from (per_rank(self.attempt, value, self.slopes) for value in values) if self.slopes else values

    def __contains__(self, value: object) -> bool:
        if isinstance(value, float | str) or value is None:
            return False
        rest: Any = value - per_rank(self.attempt, 0, self.slopes)
        for step, count in reversed(self.repeats):
            if isinstance(rest, PerRankInt):
                self.attempt.diverge("a look-up that succeeds on some ranks only")
            rest -= min(max((rest - self.intervals[0][0]) // step, 0), count - 1) * step
        return any(start <= rest and rest < stop for start, stop in self.intervals)

    def __eq__(self, other: object) -> bool:
        if other is self or other is self._equal or (isinstance(other, PerRankSet) and self._form() == other._form()):
            return True
        if not isinstance(other, Set):
            return NotImplemented
        if len(self) != len(other):
            return False
        if self.slopes != getattr(other, "slopes", {}):
            self.attempt.diverge("a comparison of sets that holds for some ranks only")
        mine, theirs = self.of_lowest_rank(), other.of_lowest_rank() if isinstance(other, PerRankSet) else other
        if all(value in theirs for value in mine):
            self._equal = other  # layers share sets, and each is compared with all samples
            return True
        return False

    def _form(self) -> tuple[Any, ...]:
        return self.intervals, self.repeats, self.slopes

    def __hash__(self) -> int:
        if self.slopes:
            self.attempt.diverge("a look-up of a set that differs between ranks", self.slopes)
        if len(self) <= _MOST_HASHED:
            if self._known_hash is None:
                self._known_hash = hash(frozenset(chain(*(range(*interval) for interval in self.listed()))))
            return self._known_hash
        if not in_engine() and not self.attempt.is_over:
            self.attempt.diverge(f"a look-up of a set of more than {_MOST_HASHED} members", frozenset())
        return hash((len(self), self.bounds()))

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Set):
            return NotImplemented
        if not other:
            return self
        right = PerRankSet.of(self.attempt, other)
        if not self.intervals or self._form() == right._form():
            return right
        if self.slopes != right.slopes:
            self.attempt.diverge("a union of sets that move differently between ranks")
        if self.repeats == right.repeats:
            return PerRankSet(self.attempt, [*self.intervals, *right.intervals], self.slopes, self.repeats)
        return PerRankSet(self.attempt, [*self.listed(), *right.listed()], self.slopes)

    __ror__ = __or__

    def union(self, *others: Iterable[Any]) -> Any:
        """Return the union with others, as a frozenset does."""
        united: Any = self
        for other in others:
            united = united | PerRankSet.of(self.attempt, other)
        return united

    def issubset(self, other: Iterable[Any]) -> bool:
        """Return whether another set has every member, as a frozenset does."""
        within = PerRankSet.of(self.attempt, other)
        return all(value in within for value in self)

    def issuperset(self, other: Iterable[Any]) -> bool:
        """Return whether this set has every member of another, as a frozenset does."""
        return all(value in self for value in other)

    def intersection(self, *others: Iterable[Any]) -> Any:
        """Return the members that are in the others too, as a frozenset does."""
        within = [PerRankSet.of(self.attempt, other) for other in others]
        return PerRankSet.of(self.attempt, [value for value in self if all(value in other for other in within)])

    def difference(self, *others: Iterable[Any]) -> Any:
        """Return the members that are in none of the others, as a frozenset does."""
        without = [PerRankSet.of(self.attempt, other) for other in others]
        return PerRankSet.of(self.attempt, [value for value in self if not any(value in other for other in without)])

    def __and__(self, other: Any) -> Any:
        return self.intersection(other) if isinstance(other, Set) else NotImplemented

    __rand__ = __and__

    def __sub__(self, other: Any) -> Any:
        return self.difference(other) if isinstance(other, Set) else NotImplemented

    def copy(self) -> Any:
        """Return the set, which cannot change."""
        return self

    def listed(self) -> list[Interval]:
        """Return all intervals, with a copy of each for every repeat."""
        intervals = list(self.intervals)
        for step, count in self.repeats:
            intervals = _copied(self.attempt, intervals, step, count)
        return intervals

    def __repr__(self) -> str:
        if self.slopes:
            self.attempt.require_text_allowed("a set", self.slopes)
        several = len(self.intervals) > 1 or self.repeats
        start, stop = self.intervals[0] if self.intervals else (0, 0)
        return f"{{{start}..{stop - 1}{', ...' if several else ''}}}" + (" (and so on)" if self.slopes else "")


def of_lowest(value: Any) -> Any:
    """Return the value of the class's lowest rank."""
    if isinstance(value, PerRankSet):
        return value.of_lowest_rank()
    return value.const if isinstance(value, PerRankInt) else value


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return the same integers as intervals in order that do not touch."""
    found: list[Interval] = []
    for start, stop in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def _normalized(
    attempt: FoldAttempt, intervals: tuple[Interval, ...], repeats: list[Repeat]
) -> tuple[tuple[Interval, ...], tuple[Repeat, ...]]:
    """Return intervals and repeats for the same set, where no repeat can be written as intervals or overlaps itself."""
    kept: list[Repeat] = []
    reach = 0
    for step, count in repeats if intervals else ():
        extent = intervals[-1][1] - intervals[0][0] + reach
        if not kept and all(stop - start >= step for start, stop in intervals):
            intervals = _merged((start, stop + step * (count - 1)) for start, stop in intervals)
        elif step >= extent:
            kept.append((step, count))
            reach += step * (count - 1)
        else:
            for inner_step, inner_count in kept:
                intervals = tuple(_copied(attempt, intervals, inner_step, inner_count))
            intervals, kept, reach = _merged(_copied(attempt, intervals, step, count)), [], 0
    return intervals, tuple(kept)


def _copied(attempt: FoldAttempt, intervals: Sequence[Interval], step: int, count: int) -> list[Interval]:
    """Return copies of intervals, `count` of them, `step` apart."""
    if len(intervals) * count > _MOST_INTERVALS:
        attempt.diverge(f"a union of more than {_MOST_INTERVALS} intervals")
    return [(start + step * k, stop + step * k) for k in range(count) for start, stop in intervals]
