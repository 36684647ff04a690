"""Annotations of tensors, and how sums, shards and combinations of tensors get theirs.

A tensor has a slot for each of two annotations. `_content` is set by `minitrain.proof`: the numbers that the tensor
stands for. `_origin` is set by `minitrain.run.accounting.strict`: which operation made the tensor. Both are unset in
other runs.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_enabled = False


def enable_annotations() -> None:
    """Let new tensors get their annotations, for the rest of the process; to be called before any annotation is set.

    Until then, sums and shards do not look for annotations. Looking for one that is unset raises an error inside
    Python, which takes as long as making a tensor.
    """
    global _enabled  # noqa: PLW0603  (tensors may outlive the run that annotates them)
    _enabled = True


class Content(Protocol):
    """What a tensor holds in `_content`: it must be able to do what a tensor can do."""

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
    """Annotate the sum of two tensors, with their content if both have some, and return it."""
    if not _enabled:
        return result
    if hasattr(left, "_content") and hasattr(right, "_content"):
        result._content = left._content.add(right._content)  # type: ignore[attr-defined]  # a slot of tensors
    return _derived(result, "+", left, right)


def combined(result: T, left: Any, right: Any) -> T:
    """Annotate the combination of two tensors, with their content if both have some, and return it."""
    if not _enabled:
        return result
    if hasattr(left, "_content") and hasattr(right, "_content"):
        result._content = left._content.combine(right._content)  # type: ignore[attr-defined]  # a slot of tensors
    return _derived(result, "combine", left, right)


def sharded(result: T, whole: Any, shard: int, num_shards: int) -> T:
    """Annotate a shard of a tensor, with its part of the content if there is some, and return it."""
    if not _enabled:
        return result
    if hasattr(whole, "_content"):
        result._content = whole._content.shard(shard, num_shards)  # type: ignore[attr-defined]  # a slot of tensors
    return _derived(result, "shard", whole)


def _derived(result: T, how: str, parent: Any, other: Any = None) -> T:
    """Return a tensor that was made of others, with its origin if the first of them has one."""
    if hasattr(parent, "_origin"):
        parent._origin.derive(result, how, parent, other)
    return result
