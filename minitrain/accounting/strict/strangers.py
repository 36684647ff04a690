"""What stands in the slot of a tensor that must not be used, and says why, for the error where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.accounting.strict.ledger import Ledger
    from minitrain.accounting.strict.origin import Alias, Origin


class Stranger:
    """What stands in the slot of a tensor that did not come out of an operation.

    Args:
        what: what it is, in words.
    """

    __slots__ = ("what",)

    usable_by = None
    buffer = None

    def __init__(self, what: str) -> None:
        self.what = what

    def is_genuine(self, ledger: Ledger, fields: tuple[Any, ...], whatever_version: bool) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def fault(self, ledger: Ledger, value: Any) -> str:  # noqa: ARG002
        """Return why the tensor cannot be used."""
        return self.what

    def descend(self, result: Any, how: str, parent: Any, other: Any) -> None:  # noqa: ARG002  (as an Origin's)
        """Let a tensor made of this one be a stranger too."""
        result._origin = self


class Message(Stranger):
    """What stands in the slot of a copy on its way to another rank.

    Args:
        step: the step of the tensor that was sent.
    """

    __slots__ = ("step",)

    def __init__(self, step: int | None) -> None:
        self.what = "is a message on its way; receive it"
        self.step = step


class Final(Stranger):
    """What stands in the slot of a final weight that was handed in: a copy that occupies nothing.

    Args:
        origin: that of the weight.
    """

    __slots__ = ("fields", "ledger", "line")

    def __init__(self, origin: Origin | Alias) -> None:
        self.what = "was handed in as the final weight and is no longer held; keep it in a store"
        self.fields = origin.fields
        buffer = origin.buffer
        self.ledger = buffer.ledger
        self.line = buffer.line
