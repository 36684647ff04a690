"""Formulas for one machine or for many: numbers that may be columns of a number a machine.

Every formula of this room is written once. Where a config holds a float, it may hold an array instead, a float for each
of several machines that are alike but for numbers; what is computed from it is then such an array. Each element goes
through the operations of a single machine's float, in their order, so that it is the same float.

Only what Python asks of a float and refuses to ask of an array is here: the larger of two numbers, rounding, a choice.
Arrays have two elements or more.

`columns_of` makes one config of many that differ in numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from operator import attrgetter
from types import MappingProxyType
from typing import Any

_EXACT: Mapping[str, tuple[str, ...]] = {
    "Network": ("size", "processor_usage", "torus", "nics"),
    "TransferCurve": ("latency_per_rank",),
}
"""Numbers on which it depends what is computed, and of which there are therefore no columns."""


def larger(first: Any, second: Any) -> Any:
    """Return the larger of two numbers, the first if they are equal."""
    try:
        return second if second > first else first
    except ValueError:  # arrays
        import numpy as np  # noqa: PLC0415  (a single machine needs none)

        return np.maximum(first, second)


def least(numbers: Iterable[Any]) -> Any:
    """Return the least of some numbers."""
    listed = list(numbers)
    try:
        return min(listed)
    except ValueError:
        if not listed:
            raise
        import numpy as np  # noqa: PLC0415

        return reduce(np.minimum, listed)


def ceiling(number: Any) -> Any:
    """Return the next whole number."""
    if is_number(number):
        return math.ceil(number)
    import numpy as np  # noqa: PLC0415

    return np.ceil(number)


def whole(number: Any) -> Any:
    """Return a number that is not negative without its fraction."""
    return int(number) if is_number(number) else number.astype(int)


def power(base: Any, exponent: Any) -> Any:
    """Return a power; that of every machine is taken by itself, as numpy rounds powers of arrays otherwise."""
    if is_number(base) and is_number(exponent):
        return base**exponent
    import numpy as np  # noqa: PLC0415

    pairs = zip(*(column.tolist() for column in np.broadcast_arrays(base, exponent)), strict=True)
    return np.array([one**other for one, other in pairs])


def chosen(condition: Any, first: Any, second: Any) -> Any:
    """Return the first number where a condition holds, else the second one."""
    if isinstance(condition, bool):
        return first if condition else second
    import numpy as np  # noqa: PLC0415

    return np.where(condition, first, second)


def is_number(value: Any) -> bool:
    """Return whether a value is a single number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class UnlikeError(Exception):
    """Values differ in more than numbers.

    Args:
        labels: what tells them apart, one a value.
    """

    def __init__(self, labels: Sequence[Hashable]) -> None:
        super().__init__("values differ in more than numbers")
        self.labels = labels


def columns_of(values: Sequence[Any]) -> Any:
    """Return values that differ in numbers alone as one, with an array where numbers differ.

    Args:
        values: numbers, texts, rows, or dataclasses, tuples and mappings of them.

    Raises:
        UnlikeError: they differ in more.

    >>> columns_of([{"a": 1.0, "b": 3}, {"a": 2.0, "b": 3}])["a"]
    array([1., 2.])
    """
    first = values[0]
    if values[-1] is first and all([value is first for value in values]):  # noqa: C419  (quicker for many)
        return first
    kind = type(first)
    if kind is float or kind is int:
        return _column(values)
    if len(set(map(type, values))) > 1:
        raise UnlikeError(list(map(type, values)))
    if is_dataclass(first):
        exact = _EXACT.get(kind.__name__, ())
        names = [one.name for one in fields(first)]
        columns = {name: list(map(attrgetter(name), values)) for name in names}
        changes = {name: _same(each) if name in exact else columns_of(each) for name, each in columns.items()}
        return replace(first, **changes)  # type: ignore[type-var]  # an object, not its class
    if isinstance(first, Mapping):
        if values.count(first) == len(values):
            return first
        keys = _same(list(map(tuple, values)))
        return MappingProxyType({key: columns_of([value[key] for value in values]) for key in keys})
    if isinstance(first, tuple) and first and is_dataclass(first[0]):
        _same([len(value) for value in values])
        return tuple(columns_of(each) for each in zip(*values, strict=True))
    return _same(values)


def _column(numbers: Sequence[Any]) -> Any:
    """Return an array of numbers, or the one number that all are."""
    if not set(map(type, numbers)) <= {float, int} and not all(map(is_number, numbers)):
        raise UnlikeError([is_number(number) for number in numbers])
    if numbers.count(numbers[0]) == len(numbers):
        return numbers[0]
    import numpy as np  # noqa: PLC0415

    return np.array(numbers, dtype=float)


def _same(values: Sequence[Any]) -> Any:
    """Return what all values are.

    Raises:
        UnlikeError: they are not the same.
    """
    first = values[0]
    if [value for value in values if value is not first and value != first]:
        raise UnlikeError(values)
    return first
