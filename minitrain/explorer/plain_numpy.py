"""The part of NumPy's interface that runs, figures and pages use, in plain Python: the lab has it in NumPy's place.

NumPy has no build for browsers in the registry of Python's packages, and a step of a few thousand events needs none.
`install` puts this module there, where NumPy is not installed. What is missing raises an `AttributeError` by its name,
as in any module. Tests compare answers with NumPy's own, to the last float.
"""

from __future__ import annotations

import bisect
import builtins
import importlib.util
import itertools
import math
import operator
import sys
import types
from array import array as packed
from collections.abc import Iterable, Sequence
from typing import Any, final

from minitrain.explorer.plain_arrays import (
    CODES,
    add,
    array,
    asarray,
    bool_,
    dtype,
    dtype_of,
    flatnonzero,
    float64,
    int8,
    int16,
    int32,
    int64,
    joined,
    kind_of,
    maximum,
    minimum,
    moveaxis,
    ndarray,
    shape_of,
    spread,
    uint8,
    uint16,
    uint32,
)

__all__ = [
    "add",
    "any",
    "append",
    "arange",
    "argmax",
    "argsort",
    "array",
    "asarray",
    "bincount",
    "bool_",
    "broadcast_to",
    "column_stack",
    "concatenate",
    "count_nonzero",
    "cumsum",
    "delete",
    "diff",
    "dtype",
    "empty",
    "flatnonzero",
    "float64",
    "frombuffer",
    "fromiter",
    "full",
    "full_like",
    "iinfo",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "intersect1d",
    "isfinite",
    "isin",
    "lexsort",
    "max",
    "maximum",
    "minimum",
    "moveaxis",
    "ndarray",
    "ones",
    "repeat",
    "rint",
    "searchsorted",
    "sort",
    "split",
    "stack",
    "take_along_axis",
    "tri",
    "uint8",
    "uint16",
    "uint32",
    "unique",
    "where",
    "zeros",
    "zeros_like",
]  # fmt: skip

inf = math.inf


def rint(values: Any) -> Any:
    """Return values rounded to the nearest integer, halves to the even one."""
    if not isinstance(values, ndarray):
        return float(round(values))
    return ndarray([float(round(one)) for one in values.flat], float64, values.shape)


def isfinite(values: ndarray) -> ndarray:
    """Return which values are neither infinite nor undefined."""
    return ndarray(list(map(math.isfinite, values.flat)), bool_, values.shape)


# --- making arrays ---


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


def frombuffer(data: bytes, kind: Any) -> ndarray:
    """Return an array of the values in some bytes."""
    wanted = dtype_of(kind)
    found = packed(CODES[f"{wanted.kind}{wanted.itemsize}"])
    found.frombytes(data)
    return ndarray(found.tolist(), wanted)


def tri(size: int, dtype: Any = float) -> ndarray:
    """Return a square array with ones at and below the diagonal."""
    kind = dtype_of(dtype)
    return ndarray([kind(column <= row) for row in range(size) for column in range(size)], kind, (size, size))


@final
class iinfo:  # noqa: N801
    """The limits of integers of a kind."""

    def __init__(self, kind: Any) -> None:
        bits = 8 * (found := dtype_of(kind)).itemsize - (found.kind == "i")
        self.min, self.max = (-(2**bits) if found.kind == "i" else 0), 2**bits - 1


# --- putting arrays together ---


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


def delete(values: ndarray, places: Any) -> ndarray:
    """Return an array without some places."""
    gone = set(asarray(places).flat)
    return ndarray([one for place, one in enumerate(values.flat) if place not in gone], values.dtype)


def broadcast_to(values: Any, shape: tuple[int, ...]) -> ndarray:
    """Return an array repeated to a shape."""
    given = asarray(values)
    return ndarray(list(spread(given, shape)), given.dtype, shape)


# --- choosing, ordering, counting ---


def where(chosen: Any, yes: Any, no: Any) -> ndarray:
    """Return elements of one array where something is true, else of another."""
    given = [asarray(one) for one in (chosen, yes, no)]
    shape = shape_of(*(one.shape for one in given))
    kind = joined(given[1].dtype, given[2].dtype)
    parts = (spread(one, shape) for one in given)
    return ndarray(
        [kind.cast(one if is_chosen else other) for is_chosen, one, other in zip(*parts, strict=True)], kind, shape
    )


def count_nonzero(values: Any) -> int:
    """Return how many are not zero."""
    return sum(map(bool, asarray(values).flat))


def any(values: Any, axis: int | None = None) -> Any:  # noqa: A001
    """Return whether any is true."""
    return asarray(values).any(axis)


def max(values: Any, axis: int | None = None, initial: Any = None) -> Any:  # noqa: A001
    """Return the largest."""
    return asarray(values).max(axis, initial)


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


def intersect1d(one: ndarray, other: ndarray, return_indices: bool = False) -> Any:
    """Return what two arrays have in common, in order; beside it where it is first in each."""
    places, others = ({value: place for place, value in reversed(list(enumerate(each.flat)))} for each in (one, other))
    common = sorted(places.keys() & others.keys())
    found = ndarray(common, one.dtype)
    if not return_indices:
        return found
    return found, *(ndarray([each[value] for value in common], int64) for each in (places, others))


def isin(values: ndarray, others: Any) -> ndarray:
    """Return which elements are among others."""
    known = set(asarray(others).flat)
    return ndarray([one in known for one in values.flat], bool_, values.shape)


def bincount(places: ndarray, weights: ndarray | None = None, minlength: int = 0) -> ndarray:
    """Return how often each number occurs, or the sum of its weights."""
    size = (builtins.max(places.flat) + 1) if places.size else 0
    found = [0 if weights is None else 0.0] * (size if size > minlength else minlength)
    for place, weight in zip(places.flat, itertools.repeat(1) if weights is None else weights.flat, strict=False):
        found[place] += weight
    return ndarray(found, int64 if weights is None else float64)


def take_along_axis(values: ndarray, places: ndarray, axis: int) -> ndarray:
    """Return, of each line along an axis, the elements at its places."""
    lines, rest = values.lines(axis)
    wanted, _ = places.lines(axis)
    found = [line[place] for line, chosen in zip(lines, wanted, strict=True) for place in chosen]
    return moveaxis(ndarray(found, values.dtype, (*rest, places.shape[axis])), -1, axis)


def install() -> None:
    """Put this module in the place of NumPy, where there is none."""
    if importlib.util.find_spec("numpy") is None:
        typing = types.ModuleType("numpy.typing")
        typing.NDArray = ndarray  # type: ignore[attr-defined]
        sys.modules.update({"numpy": sys.modules[__name__], "numpy.typing": typing})


def is_installed() -> bool:
    """Return whether this module stands in the place of NumPy."""
    return sys.modules.get("numpy") is sys.modules[__name__]
