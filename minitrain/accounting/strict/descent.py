"""What comes of tensors where a strategy itself makes one of others: by `+`, `combine` and `shard`."""

from __future__ import annotations

import sys
from typing import Any

from minitrain.accounting.strict.genuine import is_usual, require_genuine
from minitrain.errors import LawError
from minitrain.tensors import FIELDS
from minitrain.transport.collectives import describe

_frame = sys._getframe

# Frames from `descend` out to the strategy, past what calls in between.
_FRAMES = {"+": 4, "combine": 5, "shard": 5}


def descend(origin: Any, result: Any, how: str, parent: Any, other: Any) -> None:
    """Let a tensor made of a parent by `+`, `combine` or `shard` be genuine too.

    Args:
        origin: the parent's `Origin` or `Alias`.
        result: the tensor.
        how: which of them.
        parent: the first tensor.
        other: the second one, or None.

    Raises:
        LawError: a parent is not genuine, or they must not be added.
    """
    buffer = origin.buffer
    ledger = buffer.ledger
    fields = FIELDS[result.__class__](result)
    if how == "shard":
        if not is_usual(ledger, parent):
            (shard,) = result.shards
            written = buffer.written
            spared = written is not None and written.spares(shard, result.num_shards, origin.version)
            require_genuine(ledger, how, (parent,), whatever_version=spared)
        buffer.cut(result, fields, origin.step, ledger.line(_frame(_FRAMES[how])))
        return
    if not (is_usual(ledger, parent) and is_usual(ledger, other)):
        require_genuine(ledger, how, (parent, other))
    if other._origin.step != origin.step:
        raise _other_step(ledger.rank, how, parent, other)
    if how == "combine":
        buffer.bear(result, fields, origin.step, ledger.line(_frame(_FRAMES[how])))
        return
    if len(result.samples) != len(parent.samples) + len(other.samples):
        raise _counted_twice(ledger.rank, parent, other)
    origin.share(parent, result, fields)


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
