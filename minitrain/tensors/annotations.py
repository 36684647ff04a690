"""What tensors carry for whoever follows them, and how it is passed on to tensors that are made of others.

A tensor has two slots for it: `_content`, what takes part in all that the tensor itself can do (numbers, in
`minitrain.numerics`), and `_origin`, where it came from (in `minitrain.accounting.strict`). Both are unset where nobody
follows.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_is_followed = False


def follow() -> None:
    """Pass on what tensors carry, for the rest of the process: whoever sets one of the slots calls this before.

    To look for it takes as long as to make a tensor, since a slot that is unset raises an error; so that is left out
    until somebody follows tensors.
    """
    global _is_followed  # noqa: PLW0603  (what is followed may outlive the run)
    _is_followed = True


class Content(Protocol):
    """What a tensor carries in `_content`."""

    __slots__ = ()

    def add(self, other: Any) -> Content:
        """Return the content of the sum."""
        ...

    def shard(self, shard: int, num_shards: int) -> Content:
        """Return the content of one of `num_shards` parts."""
        ...

    def combine(self, other: Any) -> Content:
        """Return the content of the combination."""
        ...


def summed(result: T, left: Any, right: Any) -> T:
    """Return the sum of two tensors, with their content if both have any."""
    if not _is_followed:
        return result
    if hasattr(left, "_content") and hasattr(right, "_content"):
        result._content = left._content.add(right._content)  # type: ignore[attr-defined]  # a slot of tensors
    return _derived(result, "+", left, right)


def combined(result: T, left: Any, right: Any) -> T:
    """Return the combination of two tensors, with their content if both have any."""
    if not _is_followed:
        return result
    if hasattr(left, "_content") and hasattr(right, "_content"):
        result._content = left._content.combine(right._content)  # type: ignore[attr-defined]  # a slot of tensors
    return _derived(result, "combine", left, right)


def sharded(result: T, whole: Any, shard: int, num_shards: int) -> T:
    """Return a shard of a tensor, with its part of the content if there is any."""
    if not _is_followed:
        return result
    if hasattr(whole, "_content"):
        result._content = whole._content.shard(shard, num_shards)  # type: ignore[attr-defined]  # a slot of tensors
    return _derived(result, "shard", whole)


def _derived(result: T, how: str, parent: Any, other: Any = None) -> T:
    """Return a tensor that was made of others, with its origin if the first of them has one."""
    if hasattr(parent, "_origin"):
        parent._origin.derive(result, how, parent, other)
    return result
