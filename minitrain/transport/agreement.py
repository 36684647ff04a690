"""The check that members of a collective bring tensors of one kind that agree in some fields.

It is a file of its own, since `partial_sums`, `context_sums` and `expert_exchange` all use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

Mismatch = Callable[[str, Sequence[Any], Sequence[int], str], Exception]
"""Makes the error from the operation, what the members brought, their ranks, and what they must bring."""


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
        Exception: they do not; `mismatch` makes it.
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
