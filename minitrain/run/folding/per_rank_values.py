"""Integers and ranges of which each rank of a class has its own, linear in the folded coordinates.

The value of the rank with folded coordinates i is const + sum of slope x i over the axes. Whatever a strategy computes
from its rank is either such a value again, or the same for all ranks of the class, or refused. A `PerRankInt` is no
int, so that nothing (an index, a hash, a text) can take the value of one rank for that of all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar, NoReturn, overload

from minitrain.run.folding.attempt import FoldAttempt


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

    set_kind: ClassVar[Any]
    """What makes sets of such integers: `folding/per_rank_sets.py`, which builds on this file, puts it here."""

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
            self._singleton = self.set_kind(self.attempt, ((self.const, self.const + 1),), self.slopes)
        return self._singleton

    def item_of(self, values: Sequence[Any]) -> Any:
        """Return the item of a sequence that each rank means by this index (`minitrain.engine.divided_batch` asks).

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
