"""What may stand in a hardware config: rules for values, and the format that dataclasses of such values make.

A field that is a key of config files carries its rule, and the unit if it counts something:

    tflops: Annotated[float, POSITIVE, "TFLOP/s"]

`Record` reads a file's object into such a dataclass, and finds every fault by its key path; key paths, units and the
values that may be varied follow from the same fields. A field with a default need not be in the file.

Keys that the format does not know are ignored, so that files written for other tools load unchanged; but one that is
spelt nearly as a known key is a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from inspect import Parameter, signature
from itertools import pairwise
from numbers import Real
from types import MappingProxyType
from typing import Any, get_type_hints

from minitrain.files import key_path, shown

Place = tuple[int | str, ...]
Check = Callable[[Any], None]

# Outside these magnitudes products of fields overflow or vanish: a time would be inf or a division by zero.
_SMALLEST, _LARGEST = 1e-100, 1e100
_ALIKE = 0.8  # ratio of `difflib`: a letter too many, too few, or another one
_LONGEST_TEXT = 200


class UnexpectedError(Exception):
    """A value is not what was expected.

    Args:
        expected: what was, in words.
        found: how messages show the value; as it is if None.
        key: the key within the value that is at fault.
    """

    def __init__(self, expected: str, found: str | None = None, key: str | None = None) -> None:
        super().__init__(expected)
        self.expected, self.found, self.key = expected, found, key


class Kind:
    """What may stand at a place of a config.

    Args:
        expected: what that is, in words.
        check: raises `UnexpectedError` for a value whose parts are well, but not together.
    """

    varies = True
    """Whether `minitrain.price` and others may try other values there."""

    def __init__(self, expected: str, check: Check | None = None) -> None:
        self._expected, self._check = expected, check

    @property
    def expected(self) -> str:
        """What may stand there, in words."""
        return self._expected

    def read(self, value: Any, place: Place, faults: list[str]) -> Any:
        """Return a value as loaded configs hold it; where something is wrong, say so in `faults`.

        Args:
            value: what the file has.
            place: where that is.
            faults: what is wrong so far, `path: expected ..., found ...`.
        """
        known = len(faults)
        try:
            found = self._read(value, place, faults)
            if self._check is not None and len(faults) == known:
                self._check(found)
        except UnexpectedError as error:
            where = key_path(place if error.key is None else (*place, error.key))
            faults.append(f"{where}: expected {error.expected}, found {error.found or shown(value)}")
            return None
        return found

    def _read(self, value: Any, place: Place, faults: list[str], /) -> Any:
        raise NotImplementedError

    def names(self, _value: Any, /) -> Iterable[str] | None:
        """Return the names of the parts of a value; None where it is one figure."""
        return None

    def inner(self, _name: str, /) -> Kind | None:
        """Return what may stand in a part."""
        return None

    def part(self, value: Any, name: str) -> Any:
        """Return a part of a value."""
        raise NotImplementedError

    def with_part(self, value: Any, name: str, part: Any) -> Any:
        """Return a value with another part."""
        raise NotImplementedError


class Leaf(Kind):
    """A single value.

    Args:
        expected: what may stand there, in words.
        read: returns the value, or raises `UnexpectedError`.
        is_range: whether all numbers between two right ones are right.
        is_column: whether formulas compute with it, so that there may be a column of it, for many machines at once.
        varies: whether other values may be tried.
    """

    def __init__(
        self,
        expected: str,
        read: Callable[[Any], Any],
        *,
        is_range: bool = False,
        is_column: bool = False,
        varies: bool = True,
    ) -> None:
        super().__init__(expected)
        self.is_range, self.is_column, self.varies = is_range, is_column, varies
        self._value = read

    def _read(self, value: Any, /, *_: Any) -> Any:
        return self._value(value)


class Row(Kind):
    """Two numbers of one row."""

    def __init__(self, expected: str, first: Leaf, second: Leaf) -> None:
        super().__init__(expected)
        self._leaves = (first, second)

    def _read(self, value: Any, place: Place, faults: list[str], /) -> Any:
        if not isinstance(value, list | tuple) or len(value) > 2:
            raise UnexpectedError(self.expected)
        if len(value) < 2:
            missing = "a second value" if value else "two values"
            faults.append(f"{key_path((*place, len(value)))}: expected {missing} in the row, found nothing")
            return None
        return tuple(leaf.read(value[at], (*place, at), faults) for at, leaf in enumerate(self._leaves))


class ListOf(Kind):
    """A list; a list of rows is one figure."""

    def __init__(self, of: Kind, expected: str, check: Check | None = None) -> None:
        super().__init__(expected, check)
        self._of = of

    def _read(self, value: Any, place: Place, faults: list[str], /) -> Any:
        if not isinstance(value, list | tuple):
            raise UnexpectedError(self.expected)
        return tuple(self._of.read(item, (*place, at), faults) for at, item in enumerate(value))

    def names(self, value: Any) -> Iterable[str] | None:
        """Return the places, as text."""
        return map(str, range(len(value))) if isinstance(self._of, Record) else None

    def inner(self, _name: str, /) -> Kind:
        """Return what every item is."""
        return self._of

    def part(self, value: Any, name: str) -> Any:
        """Return an item."""
        return value[int(name)]

    def with_part(self, value: Any, name: str, part: Any) -> Any:
        """Return the list with another item."""
        return (*value[: int(name)], part, *value[int(name) + 1 :])


class Entries(Kind):
    """An object whose keys the file chooses; `needed` are keys that it must have."""

    def __init__(self, of: Kind, expected: str, check: Check | None = None, needed: Sequence[str] = ()) -> None:
        super().__init__(expected, check)
        self._of, self._needed = of, needed

    def _read(self, value: Any, place: Place, faults: list[str], /) -> Any:
        if not isinstance(value, Mapping):
            raise UnexpectedError(self.expected)
        missing = [key_path((*place, key)) for key in self._needed if key not in value]
        faults += [f"{where}: expected {self._of.expected}, found nothing" for where in missing]
        for key in value:
            if not isinstance(key, str):
                faults.append(f"{key_path((*place, str(key)))}: expected a string as key, found {shown(key)}")
        return {key: self._of.read(item, (*place, str(key)), faults) for key, item in value.items()}

    def names(self, value: Any) -> Iterable[str]:
        """Return the keys."""
        return tuple(value)

    def inner(self, _name: str, /) -> Kind:
        """Return what stands under every key."""
        return self._of

    def part(self, value: Any, name: str) -> Any:
        """Return what stands under a key."""
        return value[name]

    def with_part(self, value: Any, name: str, part: Any) -> Any:
        """Return the object with something else under a key."""
        return {**value, name: part}


@dataclass(frozen=True, slots=True)
class Key:
    """What differs between a field, beside whose rule this stands, and its key.

    Args:
        name: of the key; that of the field if empty.
        scale: what the field holds, by what the file has.
        is_needed: whether files must have it although the field has a default.
    """

    name: str = ""
    scale: float = 1.0
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class _Field:
    """Where the value of a key is kept."""

    path: tuple[str, ...]
    kind: Kind
    unit: str
    scale: float
    is_needed: bool
    may_be_null: bool


class Record(Kind):
    """An object with known keys.

    Args:
        made: the dataclass or named tuple that it becomes.
        expected: in words; its needed keys if empty.
        check: as of every kind.
        is_flat: whether its keys are among those of the object around it.
        varies: whether figures within may be varied.
    """

    def __init__(
        self,
        made: Callable[..., Any],
        expected: str = "",
        check: Check | None = None,
        *,
        is_flat: bool = False,
        varies: bool = True,
    ) -> None:
        super().__init__(expected, check)
        self._made, self.is_flat, self.varies = made, is_flat, varies

    @property
    def expected(self) -> str:
        """What its keys are, in words."""
        *first, last = self.needed or self.fields
        return self._expected or f"an object with {', '.join(first)}{' and ' if first else ''}{last}"

    @property
    def needed(self) -> list[str]:
        """The keys that files must have."""
        return [key for key, field in self.fields.items() if field.is_needed]

    @cached_property
    def fields(self) -> Mapping[str, _Field]:
        """Where the value of each key is kept."""
        found: dict[str, _Field] = {}
        hints = get_type_hints(self._made, include_extras=True)
        for name, parameter in signature(self._made).parameters.items():
            notes = getattr(hints[name], "__metadata__", ())
            for kind in (note for note in notes if isinstance(note, Kind)):
                if isinstance(kind, Record) and kind.is_flat:
                    found |= {key: replace(field, path=(name, *field.path)) for key, field in kind.fields.items()}
                    continue
                key = next((note for note in notes if isinstance(note, Key)), Key())
                unit = next((note for note in notes if isinstance(note, str)), "")
                is_needed = key.is_needed or parameter.default is Parameter.empty
                found[key.name or name] = _Field(
                    (name,), kind, unit, key.scale, is_needed, may_be_null=parameter.default is None
                )
        return found

    @cached_property
    def _flat(self) -> Mapping[str, Record]:
        """The objects whose keys are among these, by the name of their field."""
        hints = get_type_hints(self._made, include_extras=True)
        notes = ((name, note) for name, hint in hints.items() for note in getattr(hint, "__metadata__", ()))
        return {name: note for name, note in notes if isinstance(note, Record) and note.is_flat}

    def _read(self, value: Any, place: Place, faults: list[str], /) -> Any:
        if not isinstance(value, Mapping):
            raise UnexpectedError(self.expected)
        known = len(faults)
        found: dict[tuple[str, ...], Any] = {}
        for key, field in self.fields.items():
            if key in value and not (field.may_be_null and value[key] is None):
                read = field.kind.read(value[key], (*place, key), faults)
                found[field.path] = read if field.scale == 1 or read is None else read * field.scale
            elif field.is_needed:
                faults.append(f"{key_path((*place, key))}: expected {field.kind.expected}, found nothing")
        faults += self._misspelt(value, place)
        return None if len(faults) > known else self._value(found)

    def _misspelt(self, value: Mapping[Any, Any], place: Place) -> Iterator[str]:
        """Yield a fault for each key that is nearly one of these."""
        in_small_letters = {field.lower(): field for field in self.fields}
        for key in value:
            if isinstance(key, str) and key not in self.fields:
                same = in_small_letters.get(key.lower())
                for close in [same] if same else get_close_matches(key, self.fields, 1, _ALIKE):
                    yield f"{key_path((*place, key))}: expected a key that is known; did you mean {close}?"

    def _value(self, found: Mapping[tuple[str, ...], Any]) -> Any:
        """Make the value of those of its fields, and of fields of flat ones."""
        own = {path[0]: value for path, value in found.items() if len(path) == 1}
        for name, flat in self._flat.items():
            own[name] = flat._value({path[1:]: value for path, value in found.items() if path[0] == name})
        return self._made(**own)

    def names(self, value: Any) -> Iterable[str]:
        """Return the keys of what can be varied."""
        return [
            key
            for key, field in self.fields.items()
            if (field.path[0] not in self._flat or self._flat[field.path[0]].varies)
            and self.part(value, key) is not None
        ]

    def inner(self, name: str) -> Kind | None:
        """Return what stands under a key; None where there is no such key."""
        return self.fields[name].kind if name in self.fields else None

    def part(self, value: Any, name: str) -> Any:
        """Return what stands under a key, as the file has it."""
        field = self.fields[name]
        for attribute in field.path:
            value = getattr(value, attribute)
        return value if field.scale == 1 else value / field.scale

    def with_part(self, value: Any, name: str, part: Any) -> Any:
        """Return the value with something else under a key, as the file would have it."""
        field = self.fields[name]
        return _replaced(value, field.path, part if field.scale == 1 else part * field.scale)

    def unit(self, name: str) -> str:
        """Return what stands under a key counts in."""
        return self.fields[name].unit if name in self.fields else ""


def _replaced(value: Any, path: Sequence[str], part: Any) -> Any:
    """Return a value with another attribute, which may be one of an attribute."""
    name, *rest = path
    changed = {name: _replaced(getattr(value, name), rest, part) if rest else part}
    replaced: Any = value._replace if hasattr(value, "_replace") else partial(replace, value)
    return replaced(**changed)


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """A frozen dataclass that keeps read-only copies of its mappings, so that it cannot be changed through them."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, dict):
                object.__setattr__(self, name, MappingProxyType(value.copy()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by the constructor's arguments (a mapping proxy cannot be pickled)."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
        return _made_again, (type(self), plain)


def _made_again(kind: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Make a value when it is unpickled."""
    return kind(**values)


def leaves(kind: Kind, value: Any, place: Place = (), keys: Sequence[str] | None = None) -> Iterator[tuple[Place, Any]]:
    """Yield place and value of every figure that can be varied, or of the one under some keys."""
    names = kind.names(value)
    if names is None and kind.varies and len(place) == (len(place) if keys is None else len(keys)):
        yield place, value
    for name in names or ():
        if keys is None or [name] == keys[len(place) : len(place) + 1]:
            inner: Any = kind.inner(name)
            at = int(name) if isinstance(kind, ListOf) else name
            yield from leaves(inner, kind.part(value, name), (*place, at), keys)


def kind_at(kind: Kind | None, keys: Iterable[str]) -> Kind | None:
    """Return what may stand under some keys; None where that is nothing."""
    for key in keys:
        kind = None if kind is None else kind.inner(key)
    return kind


def with_value(kind: Kind | None, value: Any, keys: Sequence[str], leaf: Any) -> Any:
    """Return a value with another leaf under some keys."""
    if not keys or kind is None:
        return leaf
    key, *rest = keys
    return kind.with_part(value, key, with_value(kind.inner(key), kind.part(value, key), rest, leaf))


def _number(value: Any, expected: str) -> float:
    """Return a finite number of sensible magnitude; true and false are no numbers."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        raise UnexpectedError(expected)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UnexpectedError(expected)
    if number and not _SMALLEST <= abs(number) <= _LARGEST:
        raise UnexpectedError(f"{expected}, between {_SMALLEST} and {_LARGEST} in magnitude")
    return number


def _range(expected: str, accept: Callable[[float], bool], *, is_column: bool = True) -> Leaf:
    """Return the rule of a number within a range."""

    def read(value: Any) -> float:
        number = _number(value, expected)
        if not accept(number):
            raise UnexpectedError(expected)
        return number

    return Leaf(expected, read, is_range=True, is_column=is_column)


def one_of(*allowed: str) -> Leaf:
    """Return the rule of a text that must be one of a few."""
    quoted = [f'"{value}"' for value in allowed]
    expected = f"{', '.join(quoted[:-1])} or {quoted[-1]}"

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise UnexpectedError(expected)
        return value

    return Leaf(expected, read, varies=False)


def some(expected: str) -> Check:
    """Return the check that something is in an object or a list."""

    def check(found: Any) -> None:
        if not found:
            raise UnexpectedError(expected)

    return check


def _whole(value: Any) -> int:
    number = _number(value, WHOLE.expected)
    if number < 1 or number != int(number):
        raise UnexpectedError(WHOLE.expected)
    return int(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UnexpectedError(FLAG.expected)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_TEXT:
        raise UnexpectedError(TEXT.expected)
    return value


def _feature(value: Any) -> bool | float | str | tuple[float, ...]:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return tuple(_number(item, FEATURE.expected) for item in value)
    return _number(value, FEATURE.expected)


def _offset(value: Any) -> float | None:
    if value is None:
        return None
    number = _number(value, "a number or null")
    if number < -2:
        raise UnexpectedError("a number >= -2 or null (a lower one makes the time of 2 ranks negative)")
    return number


def _descending(rows: Sequence[tuple[float, float]]) -> None:
    """Check what holds between rows."""
    bounds = [bound for bound, _ in rows]
    if not bounds or bounds[-1] != 0 or any(before <= after for before, after in pairwise(bounds)):
        found = f"bounds {', '.join(f'{bound:g}' for bound in bounds)}" if bounds else "no rows"
        raise UnexpectedError("rows with strictly descending lower bounds, the last one 0", found)


def _rows(second: str, rule: Leaf) -> ListOf:
    """Return the rule of rows by size."""
    row = f"[lower bound, {second}]"
    return ListOf(Row(f"a row {row}", NON_NEGATIVE, rule), f"a list of rows {row}", _descending)


POSITIVE = _range("a number > 0", lambda number: number > 0)
NON_NEGATIVE = _range("a number >= 0", lambda number: number >= 0)
SECONDS = _range("a number of seconds in [0, 1]", lambda number: 0 <= number <= 1)
SHARE = _range("a number in (0, 1]", lambda number: 0 < number <= 1)
USAGE = _range("a number in [0, 1)", lambda number: 0 <= number < 1, is_column=False)
WHOLE = Leaf("a whole number >= 1", _whole)
UNITS = Leaf(WHOLE.expected, _whole, is_column=True)
FLAG = Leaf("true or false", _flag, varies=False)
TEXT = Leaf(f"a text of 1 to {_LONGEST_TEXT} characters", _text, varies=False)
FEATURE = Leaf("true or false, a number, a text, or a list of numbers", _feature, varies=False)
SHARES = _rows("efficiency", SHARE)
BANDWIDTHS = _rows("GB/s", POSITIVE)
OP_ROW = Row("a row [scalar, offset]", POSITIVE, Leaf("a number or null", _offset))
