"""Rules for the values of a run file, and the faults that were found in one, by line and key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from minitrain.errors import UsageError
from minitrain.hardware.config_faults import first_faults, key_path, shown

SMALLEST, LARGEST = 1e-100, 1e100  # outside these magnitudes products of fields overflow or vanish, as in configs
LONGEST_S = 1e200  # a sum of times
NUMBERS: frozenset[Any] = frozenset({int, float})  # true and false are neither

_MOST_KEPT, _MOST_FOUND = 20, 1000

Place = tuple[int | str, ...]


class Rule(NamedTuple):
    """What a value must be.

    Args:
        expected: in words.
        accepts: whether a value is one.
    """

    expected: str
    accepts: Callable[[Any], bool]

    def or_null(self) -> Rule:
        """Return the rule that accepts null too."""
        return Rule(f"{self.expected}, or null", lambda value: value is None or self.accepts(value))


def whole(least: int, most: int) -> Rule:
    """Return the rule for a whole number within bounds."""
    return Rule(f"a whole number in {least}..{most}", lambda value: value.__class__ is int and least <= value <= most)


def is_number(value: Any) -> bool:
    """Return whether a value is a number of sensible magnitude."""
    return value.__class__ in NUMBERS and -LARGEST <= value <= LARGEST


NUMBER = Rule("a number in -1e100..1e100", is_number)
AT_LEAST_0 = Rule(
    "0 or a number in 1e-100..1e100", lambda value: is_number(value) and (value >= SMALLEST or value == 0)
)
TIME = Rule(
    "0 or a time in 1e-100..1e200 s",
    lambda value: value.__class__ in NUMBERS and (SMALLEST <= value <= LONGEST_S or value == 0),
)
ABOVE_0 = Rule("a number in 1e-100..1e100", lambda value: is_number(value) and value >= SMALLEST)
FLAG = Rule("true or false", lambda value: value.__class__ is bool)
TEXT = Rule("text", lambda value: value.__class__ is str)
LIST = Rule("a list", lambda value: value.__class__ is list)
OBJECT = Rule("an object", lambda value: isinstance(value, dict))
PLAIN = Rule(
    "null, true, false, a number or text",
    lambda value: value is None or value.__class__ in (bool, str) or is_number(value),
)


def one_of(names: Collection[str]) -> Rule:
    """Return the rule for one of some names."""
    return Rule(f"one of {', '.join(names)}", lambda value: value.__class__ is str and value in names)


class Faults:
    """The faults of a file: all are counted, and the first ones kept in words.

    Args:
        label: what messages call the file.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.kept: list[str] = []
        self.number = 0

    def add(self, line: int, fault: str, place: Place = ()) -> None:
        """Keep a fault.

        Raises:
            UsageError: there are so many that nobody would read on.
        """
        self.number += 1
        if self.number <= _MOST_KEPT:
            self.kept.append(f"line {line}, {key_path(place)}: {fault}" if place else f"line {line}: {fault}")
        if self.number >= _MOST_FOUND:
            raise self.error()

    def judge(self, line: int, place: Place, value: Any, rule: Rule) -> bool:
        """Return whether a value is as it must be; keep the fault if it is not."""
        good = rule.accepts(value)
        if not good:
            self.add(line, f"expected {rule.expected}, found {shown(value)}", place)
        return good

    def judge_keys(self, line: int, place: Place, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> bool:
        """Return whether an object holds what it must; keep each fault."""
        before = self.number
        for key, rule in rules.items():
            if key in values:
                self.judge(line, (*place, key), values[key], rule)
            else:
                self.add(line, f"expected {rule.expected}, found nothing", (*place, key))
        return self.number == before

    def error(self) -> UsageError:
        """Return the error that names the first faults (facts: `path`, and `faults`, which has some more)."""
        begin, remedy = f"{self.label} is not a minitrain-run file, or it is damaged", "write it with run.save()"
        facts = {"path": self.label, "faults": tuple(self.kept)}
        if self.number == 1:
            return UsageError(f"{begin}: {self.kept[0]}; {remedy}", **facts)
        return UsageError(
            "\n".join(first_faults(f"{begin}: {self.number} faults; {remedy}", self.kept, self.number)), **facts
        )
