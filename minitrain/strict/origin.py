"""What is remembered of a tensor, in a hidden slot: where it came from, and what it was then.

A genuine tensor has an `Origin`. Anything else in the slot says what the tensor is instead, for the error where it is
used. None of them refers to the tensor, so that they die with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from minitrain.collectives import describe
from minitrain.errors import LawError
from minitrain.strict.ledger import Buffer, Ledger, Line
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad

_frame = sys._getframe
_SAMPLED = attrgetter("layer", "layers", "samples", "total_samples")
_STEPPED = attrgetter("layer", "layers", "step", "shards", "num_shards")
FIELDS = {
    Weight: _STEPPED,
    OptState: _STEPPED,
    Activation: _SAMPLED,
    ActivationGrad: _SAMPLED,
    WeightGrad: attrgetter("layer", "layers", "samples", "total_samples", "shards", "num_shards"),
}
_KINDS: tuple[type[Any], ...] = tuple(FIELDS)


class Origin:
    """The origin of a genuine tensor of a rank.

    Args:
        buffer: what it occupies.
        fields: the values of its fields.
        step: the step of the weights that it was computed with; None for a weight, a state and an input.
    """

    __slots__ = ("buffer", "fields", "step", "written")

    def __init__(self, buffer: Buffer, fields: tuple[Any, ...], step: int | None = None) -> None:
        self.buffer = buffer
        self.fields = fields
        self.step = step
        self.written = buffer.written

    def descend(self, result: Any, how: str, parent: Any, other: Any) -> None:
        """Let a tensor made of this one by `+`, `combine` or `shard` be genuine too.

        Raises:
            LawError: a parent is not genuine, or they must not be added.
        """
        buffer = self.buffer
        ledger = buffer.ledger
        line = ledger.line(_frame(3))  # past what calls here from `+`
        if how == "shard":
            (shard,) = result.shards
            written = buffer.written
            spared = written is not None and written.before is self.written and written.spares(shard, result.num_shards)
            require_genuine(ledger, how, (parent,), whatever_version=spared)
            buffer = buffer.view(size(ledger, result), shard, result.num_shards, line)
        else:
            require_genuine(ledger, how, (parent, other))
            if other._origin.step != self.step:
                raise _other_step(ledger.rank, how, parent, other)
            if how == "combine":
                adopt(ledger, result, line, self.step)
                return
            if len(result.samples) != len(parent.samples) + len(other.samples):
                raise _counted_twice(ledger.rank, parent, other)
        result._origin = Origin(buffer, FIELDS[result.__class__](result), self.step)


class Stranger:
    """What stands in the slot of a tensor that did not come out of an operation.

    Args:
        what: what it is, in words.
    """

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def descend(self, result: Any, how: str, parent: Any, other: Any) -> None:  # noqa: ARG002  (as an Origin's)
        """Let a tensor made of this one be a stranger too."""
        result._origin = self


class Message(Stranger):
    """What stands in the slot of a copy on its way to another rank.

    Args:
        origin: that of the tensor that was sent.
    """

    __slots__ = ("fields", "step")

    def __init__(self, origin: Origin) -> None:
        super().__init__("is a message on its way; receive it")
        self.fields = origin.fields
        self.step = origin.step


class Final(Stranger):
    """What stands in the slot of a final weight that was handed in: a copy that occupies nothing.

    Args:
        origin: that of the weight.
    """

    __slots__ = ("fields", "ledger", "line")

    def __init__(self, origin: Origin) -> None:
        super().__init__("was handed in as the final weight and is no longer held; keep it in a store")
        self.fields = origin.fields
        self.ledger = origin.buffer.ledger
        self.line = origin.buffer.line


def adopt(ledger: Ledger, tensor: Any, line: Line, step: int | None = None) -> None:
    """Give a tensor that has just come out of an operation a buffer of its own, counted from now on."""
    try:
        units = tensor._units
    except AttributeError:
        units = size(ledger, tensor)
    tensor._origin = Origin(Buffer(ledger, units, line), FIELDS[tensor.__class__](tensor), step)
    ledger.units = total = ledger.units + units
    if total > ledger.peak_units:
        ledger.peak_units = total
        if total > ledger.limit_units:
            ledger.overflow()


def succeed(tensor: Any, buffer: Buffer, step: int | None = None) -> None:
    """Let a tensor that has just come out of an operation take the place of another one."""
    tensor._origin = Origin(buffer, FIELDS[tensor.__class__](tensor), step)


def size(ledger: Ledger, tensor: Any) -> int:
    """Return the size of a tensor in units; shards of one kind are measured once."""
    try:
        return tensor._units  # type: ignore[no-any-return]
    except AttributeError:
        pass
    if not hasattr(tensor, "num_shards"):
        return ledger.size(tensor)
    key = tensor.__class__, len(tensor.shards), tensor.num_shards
    units = ledger.sizes.get(key)
    if units is None:
        units = ledger.sizes[key] = ledger.size(tensor)
    tensor._units = units
    return units


def require_genuine(ledger: Ledger, op: str, values: Iterable[Any], *, whatever_version: bool = False) -> None:
    """Require that tensors came out of operations of this rank, unaltered, and were not overwritten since.

    What is no tensor at all is left to the operation itself to refuse.
    """
    for value in values:
        try:
            origin = value._origin
            buffer = origin.buffer
            if (
                buffer.ledger is ledger
                and (origin.written is buffer.written or whatever_version)
                and origin.fields == FIELDS[value.__class__](value)
            ):
                continue
        except (AttributeError, KeyError):
            pass
        if isinstance(value, _KINDS):
            raise LawError(
                f"{op} on rank {ledger.rank}: {describe(value)} {_what_is_wrong(ledger, value)}",
                op=op,
                rank=ledger.rank,
                layer=value.layer,
                value=value,
            )


def _what_is_wrong(ledger: Ledger, value: Any) -> str:
    """Return what a tensor is that is not genuine, and the remedy."""
    origin = getattr(value, "_origin", None)
    if origin is None or type(value) not in FIELDS:
        return (
            "did not come out of an operation of this run: it was made before the run, or came through the transport "
            "behind the model's back; use the model's operations alone"
        )
    if isinstance(origin, Stranger):
        return origin.what
    line = origin.buffer.line
    if origin.buffer.ledger is not ledger:
        return (
            f"belongs to rank {origin.buffer.ledger.rank}, which made it at {line}; send and receive it, or use a "
            "collective"
        )
    present = FIELDS[type(value)](value)
    if origin.fields != present:
        names = [name for name, _ in zip(type(value).__dataclass_fields__, present, strict=True)]
        changed = [
            f"{name} was {_brief(before)} when it was made at {line} and is {_brief(now)} now"
            for name, before, now in zip(names, origin.fields, present, strict=True)
            if before != now
        ]
        return f"was altered: {', '.join(changed)}; tensors are made by operations alone"
    return f"(made at {line}) was overwritten by {origin.buffer.written}, which works in place; use its result"


def _brief(value: Any) -> str:
    """Return a field's value in words."""
    return str(sorted(value)[:8]) if isinstance(value, frozenset) else repr(value)


def _other_step(rank: int, op: str, first: Any, second: Any) -> LawError:
    """Return the error for two tensors that were computed with weights of different steps."""
    return LawError(
        f"{op} on rank {rank}: both must stem from weights of the same step, got {describe(first)} of step "
        f"{first._origin.step} and {describe(second)} of step {second._origin.step}",
        op=op,
        rank=rank,
        layer=first.layer,
    )


def _counted_twice(rank: int, first: Any, second: Any) -> LawError:
    """Return the error for a sum of two gradients that counts samples twice."""
    twice = first.samples & second.samples
    shown = ", ".join(map(str, sorted(twice)[:8])) + (", ..." if len(twice) > 8 else "")
    return LawError(
        f"+ on rank {rank}: {f'sample {shown} is' if len(twice) == 1 else f'samples {shown} are'} counted twice in "
        f"the gradient of layer {first.layer}, got {describe(first)} and {describe(second)}; add each sample's "
        "gradient once",
        op="+",
        rank=rank,
        layer=first.layer,
        samples=twice,
    )
