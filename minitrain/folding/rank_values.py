"""An integer of which each rank of a class has its own: linear in the folded coordinates.

The value of the rank with folded coordinates i is const + sum of slope x i over the axes. Whatever a strategy computes
from its rank is either such a value again, or the same for all ranks of the class, or refused: an `Each` is no int, so
that nothing (an index, a hash, a text) can take the value of one rank for that of all.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NoReturn

from minitrain.errors import StrategyError
from minitrain.source_lines import ENGINE, OWNERS, present_place


class DivergesError(StrategyError):
    """Ranks that should do the same would do different things."""


class Fold:
    """How the ranks of one attempt are folded, and what was found out about the strategy.

    Args:
        axes: size of each axis, the last one fastest.
        kept: axes whose positions are classes of their own.
        free: whether a division of the rank may split an axis in two; a mesh of the strategy's own stays as it is.

    Attributes:
        sizes: size of each folded axis of more than one rank.
        strides: distance in ranks of neighbours on each axis.
        diverged: axes on which ranks part ways, and where.
        layout: axes that the strategy asked for and that are not these.
        is_split: whether it did so by a division, and not by a mesh.
        travelled: kept axes along which a message went.
        over: whether the attempt has ended, so that nobody's values are asked for any more.
        told: whether the strategy knows anything yet that depends on the axes.
        is_laid: whether the strategy's own mesh took the place of the axes before that.
    """

    def __init__(self, axes: Mapping[str, int], kept: frozenset[str], *, free: bool = False) -> None:
        self.kept = kept
        self.free = free
        self._lay(axes)
        self.told = self.is_laid = False
        self.diverged: tuple[frozenset[str], str] | None = None
        self.layout: dict[str, int] | None = None
        self.is_split = False
        self.travelled: set[str] = set()
        self.over = False

    def _lay(self, axes: Mapping[str, int]) -> None:
        """Lay the ranks out on some axes."""
        self.axes = dict(axes)
        self.sizes = {axis: size for axis, size in axes.items() if size > 1 and axis not in self.kept}
        self.strides: dict[str, int] = {}
        stride = 1
        for axis, size in reversed(self.axes.items()):
            self.strides[axis] = stride
            stride *= size
        self.world_size = stride

    def lay_anew(self, axes: Mapping[str, int]) -> bool:
        """Take the axes of the strategy's own mesh if it knows nothing yet that depends on others; return whether.

        That spares an attempt: one that began with these axes would have done the same up to here.
        """
        if self.told or self.kept or not self.free:
            return False
        self._lay(axes)
        self.free = False
        self.is_laid = True
        return True

    def each(self, const: int, slopes: Mapping[str, int]) -> Any:
        """Return the value const + sum of slope x coordinate: an int where it is the same for all ranks."""
        found = {axis: slope for axis, slope in slopes.items() if slope and axis in self.sizes}
        return Each(self, const, found) if found else const

    def representatives(self) -> list[int]:
        """Return the lowest rank of each class, ascending."""
        ranks = [0]
        for axis, size in self.axes.items():
            if axis in self.kept:
                ranks = [rank + place * self.strides[axis] for rank in ranks for place in range(size)]
        return ranks

    def spread(self, values: list[Any]) -> list[Any]:
        """Return the value of every rank from that of each class."""
        chunks = [[value] for value in values]
        for axis, size in reversed(self.axes.items()):
            if axis in self.sizes:
                chunks = [chunk * size for chunk in chunks]
            elif axis in self.kept:
                chunks = [list(chain(*chunks[first : first + size])) for first in range(0, len(chunks), size)]
        return chunks[0]

    @property
    def num_ranks_a_class(self) -> int:
        """How many ranks each representative stands for."""
        product = 1
        for size in self.sizes.values():
            product *= size
        return product

    def split(self, axis: str, num_inner: int) -> None:
        """Ask for a layout with an axis in two: blocks of `num_inner` neighbours, and the places in a block."""
        is_part = 1 < num_inner < self.axes[axis] and self.axes[axis] % num_inner == 0
        if not self.free or self.layout is not None or not is_part:
            return
        parts = {f"{axis}//{num_inner}": self.axes[axis] // num_inner, f"{axis}%{num_inner}": num_inner}
        self.layout = {}
        for name, size in self.axes.items():
            self.layout |= parts if name == axis else {name: size}
        self.is_split = True

    def diverge(self, what: str, axes: Mapping[str, Any] | frozenset[str] | None = None) -> NoReturn:
        """Note that ranks part ways here, and raise.

        Raises:
            DivergesError: always; the attempt ends even if the strategy catches it.
        """
        place = f"{what} ({present_place()})"
        if self.diverged is None:
            self.diverged = frozenset(self.sizes if axes is None else axes), place
        raise DivergesError(f"ranks that are folded into one would part ways: {place}")


def in_engine(depth: int = 2) -> bool:
    """Return whether the function that called the caller is the engine's own."""
    return OWNERS[sys._getframe(depth).f_code.co_filename] == ENGINE


_NO_NUMBERS = (type(None), str, bytes, tuple, list, dict, set, frozenset)  # what no integer equals


def _integer(value: Any) -> int | None:
    """Return an integer of any type (numpy's, too) as an int, None for anything else."""
    if value.__class__ is int:
        return value
    return operator.index(value) if hasattr(value, "__index__") and not isinstance(value, Each) else None


def _refusing(what: str) -> Callable[..., Any]:
    """Return a method that refuses what cannot be evaluated over all ranks at once."""

    def method(self: Each, *_: Any) -> NoReturn:
        self.fold.diverge(f"{what} of a value that differs between ranks", self.slopes)

    return method


class Each:
    """One integer a rank of a class.

    Args:
        fold: the attempt it belongs to.
        const: the value of the class's lowest rank.
        slopes: how much it grows along each folded axis, without zeros.
    """

    __slots__ = ("_alone", "_bounds", "const", "fold", "slopes")

    def __init__(self, fold: Fold, const: int, slopes: Mapping[str, int]) -> None:
        self.fold = fold
        self.const = const
        self.slopes = slopes
        self._alone: Any = None
        self._bounds: tuple[int, int] | None = None  # layers ask for the same shards

    def bounds(self) -> tuple[int, int]:
        """Return the least and the greatest value of any rank."""
        if self._bounds is None:
            low = high = self.const
            for axis, slope in self.slopes.items():
                reach = slope * (self.fold.sizes[axis] - 1)
                low, high = low + min(reach, 0), high + max(reach, 0)
            self._bounds = low, high
        return self._bounds

    def _plus(self, other: Any, sign: int) -> Any:
        """Return self + sign x other."""
        if isinstance(other, Each):
            axes = {*self.slopes, *other.slopes}
            slopes = {axis: self.slopes.get(axis, 0) + sign * other.slopes.get(axis, 0) for axis in axes}
            return self.fold.each(self.const + sign * other.const, slopes)
        number = _integer(other)
        if number is None:
            self.fold.diverge(
                f"arithmetic with a {type(other).__name__} of a value that differs between ranks", self.slopes
            )
        return Each(self.fold, self.const + sign * number, self.slopes)

    def __add__(self, other: Any) -> Any:
        return self._plus(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._plus(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return (-self)._plus(other, 1)

    def __neg__(self) -> Each:
        return Each(self.fold, -self.const, {axis: -slope for axis, slope in self.slopes.items()})

    def __pos__(self) -> Each:
        return self

    def __mul__(self, other: Any) -> Any:
        factor = _integer(other)
        if factor is None:
            self.fold.diverge("a product of a value that differs between ranks", self.slopes)
        return self.fold.each(self.const * factor, {axis: slope * factor for axis, slope in self.slopes.items()})

    __rmul__ = __mul__

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        """Divide where quotient and remainder are linear too, as for coordinates on a mesh."""
        other = _integer(other)
        if other is None or other < 1:
            self.fold.diverge("a division of a value that differs between ranks", self.slopes)
        whole = {axis: slope // other for axis, slope in self.slopes.items() if not slope % other}
        rest = {axis: slope for axis, slope in self.slopes.items() if slope % other}
        remainder = self.fold.each(self.const % other, rest)
        low, high = remainder.bounds() if isinstance(remainder, Each) else (remainder, remainder)
        if low < 0 or high >= other:
            for axis, slope in rest.items():
                if slope > 0 and other % slope == 0:
                    self.fold.split(axis, other // slope)
            self.fold.diverge(f"a division by {other} of a value that differs between ranks", self.slopes)
        return self.fold.each(self.const // other, whole), remainder

    def __floordiv__(self, other: Any) -> Any:
        return divmod(self, other)[0]

    def __mod__(self, other: Any) -> Any:
        return divmod(self, other)[1]

    def _reach_from(self, other: Any) -> tuple[int, int]:
        """Return the least and the greatest difference to a number, or to another `Each`."""
        if other.__class__ is int:
            low, high = self.bounds()
            return low - other, high - other
        difference = self - other
        return difference.bounds() if isinstance(difference, Each) else (difference, difference)

    def _compare(self, other: Any, below: bool, inside: bool, above: bool) -> bool:
        """Return a comparison's result where it is one for all ranks.

        Args:
            other: a number, or another `Each`.
            below: the result where all are less.
            inside: the result where all are equal.
            above: the result where all are greater.
        """
        low, high = self._reach_from(other)
        if low > 0 or high < 0:
            return above if low > 0 else below
        results = {inside, below if low < 0 else inside, above if high > 0 else inside}
        if len(results) > 1:
            self.fold.diverge("a comparison that holds for some ranks only", self.slopes)
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

    def __copy__(self) -> Each:
        return self

    def __deepcopy__(self, memo: Any) -> Each:
        return self

    def __getattr__(self, name: str) -> Any:
        """Refuse what an int can do beside arithmetic."""
        if name.startswith("__") or not hasattr(int, name):
            raise AttributeError(name)
        self.fold.diverge(f"{name} of a value that differs between ranks", self.slopes)

    def __repr__(self) -> str:
        if not (self.fold.over or in_engine()):
            self.fold.diverge("the text of a value that differs between ranks", self.slopes)
        return f"{self.const} (and so on)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        if not (self.fold.over or in_engine()):
            self.fold.diverge("the text of a value that differs between ranks", self.slopes)
        return f"{self.const} (and so on)"

    def alone(self) -> Any:
        """Return the set of this value alone, one a rank (`Tensor.shard` asks for it)."""
        if self._alone is None:
            from minitrain.folding.index_ranges import Spans  # noqa: PLC0415  (sets are made of these)

            self._alone = Spans(self.fold, ((self.const, self.const + 1),), self.slopes)
        return self._alone
