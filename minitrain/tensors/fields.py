"""The fields of tensors, and copies of them.

A copy of a tensor in the host's memory: what `offload` gives and `fetch` takes.

It is no tensor to compute with. It says what was copied, so that `fetch` can make it again on the device. Its size is
that of all that the tensor stood for: of an activation, what its layer keeps for backward.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar

from minitrain.tensors import compressed, kinds, placed
from minitrain.tensors.kinds import Tensor, passage_of

T = TypeVar("T")


def _kinds_of(*modules: ModuleType) -> Iterator[Any]:
    """Yield the kinds of tensor that some files define."""
    for found in [found for module in modules for found in vars(module).values()]:
        if isinstance(found, type) and issubclass(found, Tensor) and "__dataclass_fields__" in vars(found):
            yield found


FIELDS: Mapping[type[Any], Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*kind.__dataclass_fields__) for kind in _kinds_of(kinds, placed, compressed)
}
"""What returns the values of all fields of a tensor in order, by kind."""


def fields_of(tensor: Any) -> tuple[Any, ...]:
    """Return the values of all fields of a tensor in order."""
    kind = tensor.__class__
    read = FIELDS.get(kind) or attrgetter(*kind.__dataclass_fields__)  # a subclass of a user's
    return read(tensor)


def clone(value: T) -> T:
    """Return an equal tensor, an object of its own; anything else as it is."""
    kind = value.__class__
    try:
        return kind(*FIELDS[kind](value))
    except KeyError:  # a subclass, or no tensor
        return copy.copy(value) if isinstance(value, Tensor) else value


@dataclass(slots=True, eq=False, repr=False)
class OnHost(Tensor):
    """A tensor that lies in the memory of a rank's host.

    Args:
        kind: class of the tensor.
        fields: values of its fields.
        passed: how an activation was made and used (mode, made_in, logits); None for others.
    """

    kind: type[Any]
    fields: tuple[Any, ...]
    passed: tuple[Any, Any, int] | None

    @property
    def layer(self) -> int:
        """Which layer the tensor is of."""
        layer: int = self.fields[0]  # every kind begins with it
        return layer

    def take_step(self) -> None:
        """Be the weight or the state of one step on."""
        place = [*self.kind.__dataclass_fields__].index("step")
        self.fields = (*self.fields[:place], self.fields[place] + 1, *self.fields[place + 1 :])

    def __repr__(self) -> str:
        return f"OnHost({self.kind.__name__} of layer {self.layer}, in host memory: fetch it to use it)"

    def _repr_html_(self) -> str:
        """Say in a notebook what it is."""
        return escape(repr(self))


def copy_to_host(tensor: Any) -> OnHost:
    """Return what stands for a copy of a tensor in the host's memory."""
    passed = None
    if hasattr(tensor, "_passage"):
        passage = tensor._passage
        passed = passage.mode, passage.made_in, passage.logits
    kept = OnHost(tensor.__class__, FIELDS[tensor.__class__](tensor), passed)
    kept._units = tensor._units  # type: ignore[misc]  # a slot of the base
    return kept


def copy_to_device(kept: OnHost) -> Any:
    """Return the tensor that was copied."""
    tensor = kept.kind(*kept.fields)
    tensor._units = kept._units
    if kept.passed is not None:
        passage = passage_of(tensor)
        passage.mode, passage.made_in, passage.logits = kept.passed
    return tensor
