"""Faults of the fields of a description, in words: rule, value found, remedy, and all of them in one error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minitrain.errors import UsageError

_MOST_TOLD = 20
"""Faults of one object: more than anybody mends at once."""


def refuse(subject: str, faults: Sequence[str], **facts: Any) -> UsageError:
    """Return the one error that lists the first faults (fact: `faults`, which has all).

    Args:
        subject: what has the faults, as a sentence begins with it: "the transformer".
        faults: one sentence each.
        facts: more for programs to read.
    """
    if len(faults) == 1:
        return UsageError(f"{subject}: {faults[0]}", faults=tuple(faults), **facts)
    lines = "".join(f"\n- {fault}" for fault in faults[:_MOST_TOLD])
    lines += f"\n... and {len(faults) - _MOST_TOLD} more" if len(faults) > _MOST_TOLD else ""
    return UsageError(f"{subject} has {len(faults)} faults:{lines}", faults=tuple(faults), **facts)


_MOST = 10**12  # of anything that a model has


def is_count(value: Any, least: int = 1) -> bool:
    """Return whether a value is an int of at least `least`; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def count_fault(name: str, value: Any, least: int, example: str) -> str | None:
    """Return what is wrong with a count, or None."""
    if is_count(value, least):
        return None if value <= _MOST else f"{name} must be at most 10^12, got {shown(value)}; is a unit wrong?"
    return f"{name} must be an integer of at least {least}, got {shown(value)}; write {example}"


def choice_fault(name: str, value: Any, choices: Sequence[str]) -> str | None:
    """Return what is wrong with a choice, or None."""
    if isinstance(value, str) and value in choices:
        return None
    listed = " or ".join(f'"{choice}"' for choice in choices)
    return f"{name} must be {listed}, got {shown(value)}; {closest(value, choices) or 'use one of them'}"


def closest(value: Any, known: Iterable[str]) -> str:
    """Return "did you mean ...?" with the known name that is most like the value, or nothing.

    >>> closest("lama3-8b", ["llama3-8b", "gpt2"])
    'did you mean "llama3-8b"?'
    """
    from difflib import get_close_matches  # noqa: PLC0415 - needed only for messages

    close = get_close_matches(value.lower(), list(known), n=1, cutoff=0.5) if isinstance(value, str) else []
    return f'did you mean "{close[0]}"?' if close else ""


def shown(value: Any) -> str:
    """Return a value as messages print it: in at most 60 characters."""
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
