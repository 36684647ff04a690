"""Sets of integers of which each rank of a class has its own, as intervals: no memory for each sample.

The set of the rank with folded coordinates i is

    {x + sum of slope x i + sum of step x k: x in the intervals, k < count}.

The first sum goes over the folded axes. The second one goes over the repeats (step, count), each of which is an axis
along which a collective has united the sets of the ranks. Whether a value is in such a set, and whether two sets are
equal, is answered for all ranks at once, or the ranks diverge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, product
from math import prod
from typing import Any

from minitrain.run.folding.attempt import FoldAttempt, in_engine
from minitrain.run.folding.per_rank_values import PerRankInt, PerRankRange, per_rank

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


PerRankInt.set_kind = PerRankSet
