"""The leaves of the config file format: validators of single values, which say in words what was expected.

Import it only when a config is validated: pydantic is heavy.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from numbers import Real
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import AfterValidator, PlainValidator
from pydantic_core import PydanticCustomError

_Value = TypeVar("_Value")
Leaf = Callable[[Any], _Value]

# Outside these magnitudes products of fields overflow or vanish: a time would be inf or a division by zero.
_SMALLEST, _LARGEST = 1e-100, 1e100

_WHOLE = "a whole number >= 1"
_FLAG = "true or false"


def refuse_leaf(expected: str, **found: str) -> NoReturn:
    """Say that a value is not what was expected; `found` replaces how it is shown."""
    raise PydanticCustomError("expected", "expected {expected}", {"expected": expected, **found})


def number_leaf(value: Any, expected: str) -> float:
    """Return a finite number of sensible magnitude; true and false are no numbers."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        refuse_leaf(expected)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        refuse_leaf(expected)
    if number and not _SMALLEST <= abs(number) <= _LARGEST:
        refuse_leaf(f"{expected}, between {_SMALLEST} and {_LARGEST} in magnitude")
    return number


def in_range(expected: str, accept: Callable[[float], bool]) -> Leaf[float]:
    """Make the validator of a number within a range."""

    def validate(value: Any) -> float:
        number = number_leaf(value, expected)
        if not accept(number):
            refuse_leaf(expected)
        return number

    return validate


def _whole(value: Any) -> int:
    number = number_leaf(value, _WHOLE)
    if number < 1 or number != int(number):
        refuse_leaf(_WHOLE)
    return int(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        refuse_leaf(_FLAG)
    return value


def one_of(*allowed: str) -> Leaf[str]:
    """Make the validator of a text that must be one of a few."""
    quoted = [f'"{value}"' for value in allowed]
    expected = " or ".join([", ".join(quoted[:-1]), quoted[-1]])

    def validate(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            refuse_leaf(expected)
        return value

    return validate


def _offset(value: Any) -> float | None:
    if value is None:
        return None
    number = number_leaf(value, "a number or null")
    if number < -2:
        refuse_leaf("a number >= -2 or null (a lower one makes the time of 2 ranks negative)")
    return number


def _descending(rows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Check what holds between rows."""
    bounds = [bound for bound, _ in rows]
    if not bounds or bounds[-1] != 0 or any(before <= after for before, after in pairwise(bounds)):
        found = f"bounds {', '.join(f'{bound:g}' for bound in bounds)}" if bounds else "no rows"
        refuse_leaf("rows with strictly descending lower bounds, the last one 0", found=found)
    return rows


def filled(rates: dict[str, Any]) -> dict[str, Any]:
    """Require at least one datatype."""
    if not rates:
        refuse_leaf("an object with at least one datatype")
    return rates


Positive = Annotated[float, PlainValidator(in_range("a number > 0", lambda number: number > 0))]
Seconds = Annotated[float, PlainValidator(in_range("a number of seconds in [0, 1]", lambda number: 0 <= number <= 1))]
NonNegative = Annotated[float, PlainValidator(in_range("a number >= 0", lambda number: number >= 0))]
Efficiency = Annotated[float, PlainValidator(in_range("a number in (0, 1]", lambda number: 0 < number <= 1))]
Usage = Annotated[float, PlainValidator(in_range("a number in [0, 1)", lambda number: 0 <= number < 1))]
Whole = Annotated[int, PlainValidator(_whole)]
Flag = Annotated[bool, PlainValidator(_flag)]
Mode = Annotated[str, PlainValidator(one_of("roofline", "no_overlap"))]
Offset = Annotated[float | None, PlainValidator(_offset)]
RowList = Annotated[list[tuple[NonNegative, Efficiency]], AfterValidator(_descending)]
BandwidthRows = Annotated[list[tuple[NonNegative, Positive]], AfterValidator(_descending)]
OpRow = tuple[Positive, Offset]
