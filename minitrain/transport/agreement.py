"""What members of a collective must have in common: the kind of their tensors, and some of its fields.

It is a file of its own, since sums of parts, of the context and of experts ask for it alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

Mismatch = Callable[[str, Sequence[Any], Sequence[int], str], Exception]
"""Makes an error of an operation, what members brought, their ranks, and what they must bring."""


def require_alike(
    op: str, values: Sequence[Any], ranks: Sequence[int], mismatch: Mismatch, names: Sequence[str]
) -> None:
    """Require values of one kind that agree in some fields.

    Args:
        op: the operation.
        values: what each member brings.
        ranks: the members.
        mismatch: makes the error.
        names: the fields.

    Raises:
        Exception: the one of `mismatch`, where they do not.
    """
    first, fields_of = values[0], attrgetter(*names)
    kind, fields = first.__class__, fields_of(first)
    if any(value.__class__ is not kind or fields_of(value) != fields for value in values):
        raise mismatch(op, values, ranks, f"must bring the same kind of tensor with the same {', '.join(names)}")


def union_of(values: Sequence[Any], name: str) -> frozenset[int]:
    """Return the union of a field of all values."""
    numbers_of = attrgetter(name)
    found: frozenset[int] = numbers_of(values[0]).union(*map(numbers_of, values[1:]))
    return found
