"""The fields of tensors, and copies of them.

It is a file of its own, since kinds and parts of tensors know nothing of one another's fields.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from minitrain.tensors.context import CONTEXT_KINDS
from minitrain.tensors.experts import KINDS_OF_EXPERTS
from minitrain.tensors.kinds import KINDS, Tensor
from minitrain.tensors.parts import PARTED_KINDS

T = TypeVar("T")

FIELDS: Mapping[type[Any], Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*kind.__dataclass_fields__) for kind in (*KINDS, *PARTED_KINDS, *CONTEXT_KINDS, *KINDS_OF_EXPERTS)
}
"""What returns the values of all fields of a tensor in order, by kind."""


def clone(value: T) -> T:
    """Return an equal tensor, an object of its own; anything else as it is."""
    kind = value.__class__
    try:
        return kind(*FIELDS[kind](value))
    except KeyError:  # a subclass, or no tensor
        return copy.copy(value) if isinstance(value, Tensor) else value
