"""Whether tensors are genuine: that they came out of operations of their rank, unaltered, and still hold what they did.

The operations of a strict run ask this by an expression of their own, which every honest tensor that shares its buffer
with no other passes; where it does not hold, they ask here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from minitrain.errors import LawError
from minitrain.tensors import FIELDS, KINDS, Activation, Weight, WeightGrad
from minitrain.transport.collectives import describe

if TYPE_CHECKING:
    from minitrain.accounting.strict.ledger import Ledger

SAMPLED = FIELDS[Activation]
STEPPED = FIELDS[Weight]
SUMMED = FIELDS[WeightGrad]


def is_usual(ledger: Ledger, value: Any) -> bool:
    """Return whether a tensor is surely genuine, of a rank: the expression for one of any kind."""
    try:
        origin = value._origin
        return origin.usable_by is ledger and origin.fields == FIELDS[value.__class__](value)
    except (AttributeError, KeyError):
        return False


def require_genuine(ledger: Ledger, op: str, values: Iterable[Any], *, whatever_version: bool = False) -> None:
    """Require that tensors came out of operations of this rank, unaltered, and were not overwritten since.

    What is no tensor at all is left to the operation itself to refuse.
    """
    for value in values:
        fields_of = FIELDS.get(value.__class__)
        origin = getattr(value, "_origin", None)
        if fields_of is not None and origin is not None:
            if origin.is_genuine(ledger, fields_of(value), whatever_version):
                continue
            fault = origin.fault(ledger, value)
        else:
            fault = (
                "did not come out of an operation of this run: it was made before the run, or came through the "
                "transport behind the model's back; use the model's operations alone"
            )
        if isinstance(value, KINDS):
            raise LawError(
                f"{op} on rank {ledger.rank}: {describe(value)} {fault}",
                op=op,
                rank=ledger.rank,
                layer=value.layer,
                value=value,
            )


def alteration(value: Any, fields: tuple[Any, ...], line: object) -> str:
    """Return in words which fields of a tensor are not what they were when it was made."""
    present = FIELDS[type(value)](value)
    names = [name for name, _ in zip(type(value).__dataclass_fields__, present, strict=True)]
    changed = [
        f"{name} was {_brief(before)} when it was made at {line} and is {_brief(now)} now"
        for name, before, now in zip(names, fields, present, strict=True)
        if before != now
    ]
    return f"was altered: {', '.join(changed)}; tensors are made by operations alone"


def _brief(value: Any) -> str:
    """Return a field's value in words."""
    return str(sorted(value)[:8]) if isinstance(value, frozenset) else repr(value)
