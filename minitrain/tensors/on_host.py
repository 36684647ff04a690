"""A copy of a tensor in the host's memory: what `offload` gives and `fetch` takes.

It is no tensor to compute with. It says what was copied, so that `fetch` can make it again on the device. Its size is
that of all that the tensor stood for: of an activation, what its layer keeps for backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any, final

from minitrain.tensors.fields import FIELDS
from minitrain.tensors.kinds import Tensor, passage_of


@final
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
