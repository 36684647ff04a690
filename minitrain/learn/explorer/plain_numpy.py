"""The part of NumPy's interface that runs, figures and pages use, in plain Python: the lab has it in NumPy's place.

NumPy has no build for browsers in the registry of Python's packages, and a step of a few thousand events needs none.
`install` puts this there, where NumPy is not installed. What is missing raises an `AttributeError` by its name, as in
any module. Tests compare answers with NumPy's own, to the last float.

Arrays are flat lists in C order, of any number of dimensions. Integers do not overflow. Sums add in the order in which
NumPy adds, so that all floats are the same. A part of an array is a copy here, and refuses to be changed, since NumPy
would change the whole.
"""

from __future__ import annotations

import bisect
import importlib.util
import itertools
import math
import operator
import sys
import types
from array import array as packed
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from minitrain.run.analysis.breakdown import add_in_order, pairwise_sum

CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "f8": "d", "b1": "b"}


class dtype:  # noqa: N801  (NumPy's name, as all names of this kind here)
    """The kind of an array's elements."""

    def __init__(self, kind: str, itemsize: int) -> None:
        self.kind, self.itemsize = kind, itemsize
        self.cast: Any = {"b": bool, "f": float}.get(kind, int)

    def __call__(self, value: Any = 0) -> Any:
        """Return a value, or an array, as one of this kind."""
        return value.astype(self) if isinstance(value, ndarray) else self.cast(value)

    def newbyteorder(self, _order: str) -> dtype:
        """Return the same: all is little-endian."""
        return self

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, dtype | type | str)
            and (found := dtype_of(other)).kind == self.kind
            and (found.itemsize == self.itemsize)
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.itemsize))


bool_, float64 = dtype("b", 1), dtype("f", 8)
int8, int16, int32, int64 = (dtype("i", 2**power) for power in range(4))
uint8, uint16, uint32, uint64 = (dtype("u", 2**power) for power in range(4))
_OBJECT = dtype("O", 8)
_OBJECT.cast = lambda value: value


def dtype_of(given: Any) -> dtype:
    """Return the kind that is meant by Python's types and NumPy's words."""
    if isinstance(given, dtype):
        return given
    if isinstance(given, str):
        word = given.lstrip("<=")
        return dtype(word[0], int(word[1:]))
    return {bool: bool_, float: float64, object: _OBJECT}.get(given, int64)


def kind_of(flat: Sequence[Any]) -> dtype:
    """Return the kind of some values."""
    kinds = set(map(type, flat))
    if kinds <= {bool}:
        return bool_ if kinds else float64
    if kinds <= {bool, int}:
        return int64
    return float64 if kinds <= {bool, int, float} else _OBJECT


def joined(*kinds: dtype) -> dtype:
    """Return the kind that can hold values of some kinds."""
    return max(kinds, key=lambda kind: ("biufO".index(kind.kind), kind.itemsize))


def _strides(shape: Sequence[int]) -> list[int]:
    steps = [1]
    for size in reversed(shape[1:]):
        steps.append(steps[-1] * size)
    return steps[::-1]


def _places(shape: Sequence[int], steps: Sequence[int], first: int = 0) -> list[int]:
    """Return the places in a flat list of all elements of a shape, in C order."""
    found = [first]
    for size, step in zip(shape, steps, strict=True):
        found = [place + step * number for place in found for number in range(size)]
    return found


class ndarray:  # noqa: N801
    """An array.

    Args:
        flat: its elements in C order.
        kind: their kind.
        shape: its sizes; one dimension if None.
    """

    __slots__ = ("dtype", "flat", "is_part", "shape")

    def __init__(
        self, flat: list[Any], kind: dtype, shape: tuple[int, ...] | None = None, *, is_part: bool = False
    ) -> None:
        self.flat, self.dtype, self.shape, self.is_part = flat, kind, (len(flat),) if shape is None else shape, is_part

    def changing(self) -> list[Any]:
        """Return the elements, to be changed.

        Raises:
            TypeError: it is a part of another array, which NumPy would change too.
        """
        if self.is_part:
            raise TypeError("a part of another array cannot be changed without NumPy; change the whole, or a copy")
        return self.flat

    def __class_getitem__(cls, _of: Any) -> type:
        return cls

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return len(self.flat)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def T(self) -> ndarray:  # noqa: N802
        """The array with its dimensions reversed."""
        places = _places(self.shape[::-1], _strides(self.shape)[::-1])
        return ndarray([self.flat[place] for place in places], self.dtype, self.shape[::-1], is_part=True)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.flat) if self.ndim == 1 else (self[place] for place in range(len(self)))

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError("an array of several elements is neither true nor false; use any() or all()")
        return bool(self.flat[0])

    def __repr__(self) -> str:
        return f"array({self.tolist()!r})"

    def _chosen(self, key: Any) -> tuple[list[int], tuple[int, ...] | None]:
        """Return the places of an index, and the shape of what it chooses; None for a single element."""
        given = list(key) if isinstance(key, tuple) else [key]
        keys = [place for one in given for place in (one.nonzero() if _is_mask(one) else [one])]
        used = sum(one is not None for one in keys)
        return _select(self.shape, [*keys, *[slice(None)] * (self.ndim - used)])

    def __getitem__(self, key: Any) -> Any:
        flat = self.flat
        if self.ndim == 1:
            if isinstance(key, int):
                return flat[key]
            if isinstance(key, slice):
                return ndarray(flat[key], self.dtype, is_part=True)
            if isinstance(key, ndarray) and key.ndim == 1:
                if key.dtype.kind == "b":
                    return ndarray(list(itertools.compress(flat, _same_length(key, flat))), self.dtype)
                return ndarray(list(map(flat.__getitem__, key.flat)), self.dtype)
        places, shape = self._chosen(key)
        return (
            flat[places[0]]
            if shape is None
            else ndarray([flat[one] for one in places], self.dtype, shape, is_part=True)
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        flat, (places, shape) = self.changing(), self._chosen(key)
        cast = self.dtype
        if not isinstance(value, ndarray | list | tuple):
            one = cast(value)
            for place in places:
                flat[place] = one
            return
        for place, one in zip(places, spread(asarray(value), shape or (1,)), strict=True):
            flat[place] = cast(one)

    def tolist(self) -> Any:
        """Return nested lists."""
        found: list[Any] = list(self.flat)
        if not self.shape:
            return found[0]
        for size in reversed(self.shape[1:]):
            found = [found[first : first + size] for first in range(0, len(found), size)] if size else []
        return found

    def copy(self) -> ndarray:
        """Return a copy."""
        return ndarray(list(self.flat), self.dtype, self.shape)

    def astype(self, kind: Any, copy: bool = True) -> ndarray:
        """Return the elements as another kind."""
        kind = dtype_of(kind)
        if kind is self.dtype:
            return self.copy() if copy else self
        return ndarray(list(map(kind.cast, self.flat)), kind, self.shape)

    def reshape(self, *shape: Any) -> ndarray:
        """Return the elements in another shape; -1 stands for the size that follows from the others."""
        sizes = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        if -1 in sizes:
            others = math.prod(size for size in sizes if size != -1)
            sizes[sizes.index(-1)] = self.size // others if others else 0
        if math.prod(sizes) != self.size:
            raise ValueError(f"{self.size} elements have no shape {tuple(sizes)}")
        return ndarray(self.flat, self.dtype, tuple(sizes), is_part=self.is_part)

    def ravel(self) -> ndarray:
        """Return the elements in one dimension."""
        return self.reshape(-1)

    def tobytes(self) -> bytes:
        """Return the bytes of the elements, little-endian."""
        code = CODES[f"{self.dtype.kind}{self.dtype.itemsize}"]
        return bytes(self.flat) if code == "B" else packed(code, self.flat).tobytes()

    def lines(self, axis: int) -> tuple[list[list[Any]], tuple[int, ...]]:
        """Return the lines of elements along an axis, and the shape of what is one value for each."""
        axis %= self.ndim
        steps = _strides(self.shape)
        size, step = self.shape[axis], steps[axis]
        rest = self.shape[:axis] + self.shape[axis + 1 :]
        firsts = _places(rest, steps[:axis] + steps[axis + 1 :])
        return [self.flat[first : first + step * size : step] if size else [] for first in firsts], rest

    def _reduced(self, reduce: Callable[[list[Any]], Any], axis: int | None, kind: dtype | None = None) -> Any:
        if axis is None:
            return reduce(self.flat)
        lines, shape = self.lines(axis)
        found = [reduce(line) for line in lines]
        return ndarray(found, kind or self.dtype, shape) if shape else found[0]

    def sum(self, axis: int | None = None) -> Any:
        """Return the sum, along an axis if one is given."""
        if self.dtype.kind != "f":
            return self._reduced(sum, axis, int64)
        is_last = axis is None or axis % self.ndim == self.ndim - 1  # along others NumPy adds row to row
        return self._reduced(pairwise_sum if is_last else add_in_order, axis)

    def mean(self, axis: int | None = None) -> Any:
        """Return the mean, along an axis if one is given."""
        return self.astype(float).sum(axis) / (self.size if axis is None else self.shape[axis])

    def max(self, axis: int | None = None, initial: Any = None) -> Any:
        """Return the largest."""
        return self._reduced(lambda line: _extreme(max, [*line, *([] if initial is None else [initial])]), axis)

    def min(self, axis: int | None = None, initial: Any = None) -> Any:
        """Return the smallest."""
        return self._reduced(lambda line: _extreme(min, [*line, *([] if initial is None else [initial])]), axis)

    def any(self, axis: int | None = None) -> Any:
        """Return whether any is true."""
        return self._reduced(any, axis, bool_)

    def argmax(self, axis: int | None = None) -> Any:
        """Return the place of the first largest."""
        return self._reduced(lambda line: line.index(_extreme(max, line)), axis, int64)

    def cumsum(self, axis: int | None = None) -> ndarray:
        """Return the sums up to each element."""
        return add.accumulate(self if axis is not None else self.ravel(), axis or 0)

    def nonzero(self) -> tuple[ndarray, ...]:
        """Return the indices of what is not zero, one array a dimension."""
        found = flatnonzero(self)
        steps = zip(self.shape, _strides(self.shape), strict=True)
        return tuple(ndarray([place // step % size for place in found.flat], int64) for size, step in steps)

    def __neg__(self) -> ndarray:
        return ndarray(list(map(operator.neg, self.flat)), self.dtype, self.shape)

    def __invert__(self) -> ndarray:
        do: Callable[[Any], Any] = operator.not_ if self.dtype.kind == "b" else operator.invert
        return ndarray(list(map(do, self.flat)), self.dtype, self.shape)

    __hash__ = None  # type: ignore[assignment]  # as NumPy's


def _same_length(mask: ndarray, flat: Sequence[Any]) -> list[Any]:
    if len(mask.flat) != len(flat):
        raise IndexError(f"a mask of {len(mask.flat)} does not fit {len(flat)} elements")
    return mask.flat


def _is_mask(key: Any) -> bool:
    return isinstance(key, ndarray) and key.dtype.kind == "b"


def _select(shape: tuple[int, ...], keys: Sequence[Any]) -> tuple[list[int], tuple[int, ...] | None]:
    """Return the places that keys choose, one a dimension and None for new ones, and the shape of what is chosen.

    Arrays among the keys are taken together, as NumPy does, and stand where the first of them stands.
    """
    steps = iter(zip(shape, _strides(shape), strict=True))
    sizes: list[int] = []
    strides: list[int] = []
    first, together, where_together = 0, [], None
    for key in keys:
        if key is None:
            sizes.append(1)
            strides.append(0)
            continue
        size, step = next(steps)
        if isinstance(key, slice):
            chosen = range(size)[key]
            first += step * chosen.start if len(chosen) else 0
            sizes.append(len(chosen))
            strides.append(step * chosen.step)
        elif isinstance(key, int):
            first += step * range(size)[key]
        else:
            listed = asarray(key)
            where_together = len(sizes) if where_together is None else where_together
            together.append(ndarray([step * range(size)[place] for place in listed.flat], int64, listed.shape))
    if where_together is None:
        return _places(sizes, strides, first), tuple(sizes) if sizes else None
    joint = shape_of(*(one.shape for one in together))
    moves = [sum(places) for places in zip(*(spread(one, joint) for one in together), strict=True)]
    before = _places(sizes[:where_together], strides[:where_together], first)
    after = _places(sizes[where_together:], strides[where_together:])
    found = [one + move + last for one in before for move in moves for last in after]
    return found, (*sizes[:where_together], *joint, *sizes[where_together:])


def shape_of(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that shapes have together, as NumPy broadcasts them."""
    most = max(map(len, shapes))
    columns = zip(*((1,) * (most - len(shape)) + shape for shape in shapes), strict=True)
    found = []
    for sizes in columns:
        wanted = {size for size in sizes if size != 1} or {1}
        if len(wanted) > 1:
            raise ValueError(f"shapes {shapes} do not go together")
        found.append(wanted.pop())
    return tuple(found)


def spread(one: ndarray, shape: tuple[int, ...]) -> list[Any]:
    """Return the elements of an array, repeated to a shape."""
    if one.shape == shape:
        return one.flat
    if one.size == 1:
        return one.flat * math.prod(shape)
    own = (1,) * (len(shape) - one.ndim) + one.shape
    if shape_of(own, shape) != shape:
        raise ValueError(f"an array of shape {one.shape} does not fit {shape}")
    steps = [0 if size == 1 else step for size, step in zip(own, _strides(own), strict=True)]
    return [one.flat[place] for place in _places(shape, steps)]


def _extreme(choose: Callable[[Sequence[Any]], Any], values: Sequence[Any]) -> Any:
    """Return the largest or the smallest value, as is chosen; what is no number comes before all, as in NumPy."""
    undefined = next((value for value in values if value != value), None)
    return choose(values) if undefined is None else undefined


class ufunc:  # noqa: N801
    """A function of two elements, with NumPy's ways to apply it.

    Args:
        do: the function.
        kind: of its results; the arguments' where None.
    """

    def __init__(self, do: Callable[[Any, Any], Any], kind: dtype | None = None) -> None:
        self.do, self.kind = do, kind

    def __call__(self, first: Any, second: Any, out: ndarray | None = None) -> Any:
        """Apply it to arrays, or to single values."""
        if not (isinstance(first, ndarray | list | tuple) or isinstance(second, ndarray | list | tuple)):
            return self.do(first, second)
        found = self._applied(first, second)
        if out is None:
            return found
        out.changing()[:] = found.flat
        return out

    def _applied(self, first: Any, second: Any) -> ndarray:
        do = self.do
        if isinstance(first, ndarray) and isinstance(second, int | float):
            kind = self.kind or _with_number(first.dtype, second)
            return ndarray([do(one, second) for one in first.flat], kind, first.shape)
        if isinstance(second, ndarray) and isinstance(first, int | float):
            kind = self.kind or _with_number(second.dtype, first)
            return ndarray([do(first, one) for one in second.flat], kind, second.shape)
        one, other = asarray(first), asarray(second)
        shape = one.shape if one.shape == other.shape else shape_of(one.shape, other.shape)
        flat = list(map(do, spread(one, shape), spread(other, shape)))
        return ndarray(flat, self.kind or joined(one.dtype, other.dtype), shape)

    def at(self, target: ndarray, places: Any, values: Any) -> None:
        """Apply it to elements one after the other, those that are named twice too."""
        chosen, shape = target._chosen(places)
        do, flat = self.do, target.changing()
        for place, value in zip(chosen, spread(asarray(values), shape or (1,)), strict=True):
            flat[place] = do(flat[place], value)

    def accumulate(self, values: ndarray, axis: int = 0) -> ndarray:
        """Return the results up to each element along an axis."""
        if values.ndim == 1:
            return ndarray(list(itertools.accumulate(values.flat, self.do)), values.dtype)
        lines, rest = values.lines(axis)
        found = [one for line in lines for one in itertools.accumulate(line, self.do)]
        size = values.shape[axis]
        along = ndarray(found, values.dtype, (*rest, size))
        return moveaxis(along, -1, axis)

    def reduceat(self, values: ndarray, places: ndarray) -> ndarray:
        """Return the result of each part that begins at a place."""
        ends = [*places.flat[1:], len(values)]
        parts = (values.flat[first : max(end, first + 1)] for first, end in zip(places.flat, ends, strict=True))
        return ndarray([self._whole(part) for part in parts], values.dtype)

    def _whole(self, part: list[Any]) -> Any:
        if self.do is operator.add and isinstance(part[0], float):
            return part[0] + pairwise_sum(part[1:]) if len(part) > 1 else part[0]
        return list(itertools.accumulate(part, self.do))[-1]


def _with_number(kind: dtype, number: float) -> dtype:
    """Return the kind of an array together with a single number, which takes the array's width."""
    if isinstance(number, bool) or (isinstance(number, int) and kind.kind != "b"):
        return kind
    return int64 if isinstance(number, int) else joined(kind, float64)


def _divided(one: Any, other: Any) -> float:
    if other:
        return float(one / other)
    return math.nan if not one or one != one else math.copysign(math.inf, one) * math.copysign(1.0, other)


def _larger(one: Any, other: Any) -> Any:
    return one if one >= other or one != one else other


def _less(one: Any, other: Any) -> Any:
    return one if one <= other or one != one else other


add, maximum, minimum = ufunc(operator.add), ufunc(_larger), ufunc(_less)
_ARITHMETIC = {
    "add": add,
    "sub": ufunc(operator.sub),
    "mul": ufunc(operator.mul),
    "truediv": ufunc(_divided, float64),
    "floordiv": ufunc(operator.floordiv),
    "mod": ufunc(operator.mod),
    "and": ufunc(operator.and_),
    "or": ufunc(operator.or_),
}


def _give_operators() -> None:
    """Give arrays Python's operators."""
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        do = ufunc(getattr(operator, name), bool_)
        setattr(ndarray, f"__{name}__", lambda one, other, do=do: do(one, other))
    for name, do in _ARITHMETIC.items():
        setattr(ndarray, f"__{name}__", lambda one, other, do=do: do(one, other))
        setattr(ndarray, f"__r{name}__", lambda one, other, do=do: do(other, one))

        def changed(one: ndarray, other: Any, do: ufunc = do) -> ndarray:
            one.changing()[:] = map(one.dtype.cast, spread(do(one, other), one.shape))
            return one

        setattr(ndarray, f"__i{name}__", changed)


_give_operators()


def asarray(values: Any, dtype: Any = None) -> ndarray:
    """Return values as an array, which they may be already."""
    if isinstance(values, ndarray):
        return values if dtype is None else values.astype(dtype, copy=False)
    return array(values, dtype)


def array(values: Any, dtype: Any = None) -> ndarray:
    """Return an array of nested values."""
    if isinstance(values, ndarray):
        return values.copy() if dtype is None else values.astype(dtype)
    if not isinstance(values, list | tuple | range):
        kind = kind_of([values]) if dtype is None else dtype_of(dtype)
        return ndarray([kind(values)], kind, ())
    if any(isinstance(one, list | tuple | ndarray) for one in values):
        parts = [asarray(one) for one in values]
        shape = (len(parts), *parts[0].shape)
        flat = [one for part in parts for one in part.flat]
        kind = joined(*(part.dtype for part in parts)) if flat else parts[0].dtype
    else:
        flat, shape = list(values), (len(values),)
        kind = kind_of(flat)
    wanted = kind if dtype is None else dtype_of(dtype)
    return ndarray(list(map(wanted.cast, flat)), wanted, shape)


def moveaxis(values: ndarray, source: int, target: int) -> ndarray:
    """Return an array with one axis in another place."""
    order = list(range(values.ndim))
    order.insert(target % values.ndim, order.pop(source % values.ndim))
    steps = _strides(values.shape)
    shape = tuple(values.shape[axis] for axis in order)
    places = _places(shape, [steps[axis] for axis in order])
    return ndarray([values.flat[place] for place in places], values.dtype, shape)


def flatnonzero(values: Any) -> ndarray:
    """Return the places of what is not zero."""
    return ndarray([place for place, one in enumerate(asarray(values).flat) if one], int64)


inf = math.inf


def rint(values: Any) -> Any:
    """Return values rounded to the nearest integer, halves to the even one."""
    if not isinstance(values, ndarray):
        return float(round(values))
    return ndarray([float(round(one)) for one in values.flat], float64, values.shape)


def isfinite(values: ndarray) -> ndarray:
    """Return which values are neither infinite nor undefined."""
    return ndarray(list(map(math.isfinite, values.flat)), bool_, values.shape)


def full(shape: Any, value: Any, dtype: Any = None) -> ndarray:
    """Return an array of one value."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = kind_of([value]) if dtype is None else dtype_of(dtype)
    return ndarray([kind(value)] * math.prod(sizes), kind, sizes)


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    """Return an array of zeros."""
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = float) -> ndarray:
    """Return an array of ones."""
    return full(shape, 1, dtype)


empty = zeros


def full_like(values: ndarray, value: Any) -> ndarray:
    """Return an array of one value, shaped as another."""
    return full(values.shape, value, values.dtype)


def zeros_like(values: ndarray) -> ndarray:
    """Return an array of zeros, shaped as another."""
    return full_like(values, 0)


def arange(*limits: int) -> ndarray:
    """Return the integers of a range."""
    return ndarray(list(range(*limits)), int64)


def fromiter(values: Iterable[Any], kind: Any, count: int = -1) -> ndarray:
    """Return an array of values, of which there are `count` if that is given."""
    wanted = dtype_of(kind)
    found = list(map(wanted.cast, values if count < 0 else itertools.islice(values, count)))
    if len(found) < count:
        raise ValueError(f"there are {len(found)} values, and not {count}")
    return ndarray(found, wanted)


class iinfo:  # noqa: N801
    """The limits of integers of a kind."""

    def __init__(self, kind: Any) -> None:
        bits = 8 * (found := dtype_of(kind)).itemsize - (found.kind == "i")
        self.min, self.max = (-(2**bits) if found.kind == "i" else 0), 2**bits - 1


def concatenate(parts: Iterable[Any], axis: int = 0) -> ndarray:
    """Return arrays one after the other along an axis."""
    listed = [asarray(part) for part in parts]
    kind = joined(*(part.dtype for part in listed))
    if listed[0].ndim == 1:
        return ndarray([kind.cast(one) for part in listed for one in part.flat], kind)
    moved = [moveaxis(part, axis, 0) for part in listed]
    flat = [kind.cast(one) for part in moved for one in part.flat]
    return moveaxis(ndarray(flat, kind, (sum(map(len, moved)), *moved[0].shape[1:])), 0, axis)


def append(values: Any, more: Any) -> ndarray:
    """Return an array with values at its end."""
    return concatenate([asarray(values).ravel(), asarray(more).ravel()])


def stack(parts: Sequence[Any], axis: int = 0) -> ndarray:
    """Return arrays along a new axis."""
    return moveaxis(array([asarray(part) for part in parts]), 0, axis)


def column_stack(parts: Sequence[ndarray]) -> ndarray:
    """Return columns beside each other."""
    return concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def repeat(values: Any, counts: Any) -> ndarray:
    """Return each element as often as its count says."""
    given = asarray(values)
    times = spread(asarray(counts), given.shape)
    return ndarray([one for one, count in zip(given.flat, times, strict=True) for _ in range(count)], given.dtype)


def split(values: ndarray, places: Any) -> list[ndarray]:
    """Return the parts between places."""
    borders = [0, *asarray(places).flat, len(values)]
    return [values[first:end] for first, end in itertools.pairwise(borders)]


def broadcast_to(values: Any, shape: tuple[int, ...]) -> ndarray:
    """Return an array repeated to a shape."""
    given = asarray(values)
    return ndarray(list(spread(given, shape)), given.dtype, shape)


def where(chosen: Any, yes: Any, no: Any) -> ndarray:
    """Return elements of one array where something is true, else of another."""
    given = [asarray(one) for one in (chosen, yes, no)]
    shape = shape_of(*(one.shape for one in given))
    kind = joined(given[1].dtype, given[2].dtype)
    parts = (spread(one, shape) for one in given)
    return ndarray(
        [kind.cast(one if is_chosen else other) for is_chosen, one, other in zip(*parts, strict=True)], kind, shape
    )


def argmax(values: Any, axis: int | None = None) -> Any:
    """Return the place of the first largest."""
    return asarray(values).argmax(axis)


def cumsum(values: Any, axis: int | None = None) -> ndarray:
    """Return the sums up to each element."""
    return asarray(values).cumsum(axis)


def diff(values: Any, prepend: Any = None) -> ndarray:
    """Return the differences of neighbours."""
    given = asarray(values) if prepend is None else append(prepend, values)
    do = operator.ne if given.dtype.kind == "b" else lambda one, other: other - one
    return ndarray([do(one, other) for one, other in itertools.pairwise(given.flat)], given.dtype)


def lexsort(keys: Sequence[Any]) -> ndarray:
    """Return the order by the last key, then by the one before, and so on; what is equal keeps its order."""
    columns = [asarray(key).flat for key in keys]
    rows = list(zip(*columns[::-1], strict=True))
    return ndarray(sorted(range(len(rows)), key=rows.__getitem__), int64)


def argsort(values: ndarray, kind: str = "stable") -> ndarray:  # noqa: ARG001
    """Return the order of elements; what is equal keeps its order."""
    return ndarray(sorted(range(len(values)), key=values.flat.__getitem__), int64)


def sort(values: Any) -> ndarray:
    """Return the elements in order."""
    given = asarray(values)
    return ndarray(sorted(given.flat), given.dtype)


def searchsorted(values: ndarray, wanted: Any, side: str = "left") -> Any:
    """Return where values would stand in an array that is in order."""
    find = bisect.bisect_left if side == "left" else bisect.bisect_right
    if not isinstance(wanted, ndarray | list | tuple):
        return find(values.flat, wanted)
    given = asarray(wanted)
    return ndarray([find(values.flat, one) for one in given.flat], int64, given.shape)


def unique(values: Any, return_index: bool = False, return_inverse: bool = False, axis: int | None = None) -> Any:
    """Return the different elements, or rows, in order; beside them where each is first, and where each one is."""
    given = asarray(values)
    rows = list(map(tuple, given.tolist())) if axis == 0 and given.ndim > 1 else given.flat
    first: dict[Any, int] = {}
    for place, row in enumerate(rows):
        first.setdefault(row, place)
    found = sorted(first)
    if rows is given.flat:
        distinct = ndarray(found, given.dtype)
    else:
        distinct = ndarray([one for row in found for one in row], given.dtype, (len(found), *given.shape[1:]))
    more = []
    if return_index:
        more.append(ndarray([first[row] for row in found], int64))
    if return_inverse:
        number = {row: place for place, row in enumerate(found)}
        more.append(ndarray([number[row] for row in rows], int64))
    return (distinct, *more) if more else distinct


def bincount(places: ndarray, weights: ndarray | None = None, minlength: int = 0) -> ndarray:
    """Return how often each number occurs, or the sum of its weights."""
    size = (max(places.flat) + 1) if places.size else 0
    found = [0 if weights is None else 0.0] * (size if size > minlength else minlength)
    for place, weight in zip(places.flat, itertools.repeat(1) if weights is None else weights.flat, strict=False):
        found[place] += weight
    return ndarray(found, int64 if weights is None else float64)


_NUMPY, _TYPING = types.ModuleType("numpy"), types.ModuleType("numpy.typing")
vars(_NUMPY).update({name: value for name, value in globals().items() if not name.startswith("_")})
_TYPING.NDArray = ndarray  # type: ignore[attr-defined]


def install() -> None:
    """Put what is here in the place of NumPy, where there is none."""
    if importlib.util.find_spec("numpy") is None:
        sys.modules.update({"numpy": _NUMPY, "numpy.typing": _TYPING})


def is_installed() -> bool:
    """Return whether it stands in the place of NumPy."""
    return sys.modules.get("numpy") is _NUMPY
