"""The tensors within an attention that is computed in steps: keys and values, what queries got, and their gradients.

Queries may see one block of keys and values after the other (see `minitrain.rank.attention`). `Attended` says which
keys its queries have seen. What they got from different keys adds, by the log-sum-exp that each carries; so does the
gradient of queries. The gradient of keys and values adds over the queries that have seen them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from minitrain.errors import LawError
from minitrain.tensors.annotations import summed
from minitrain.tensors.index_sets import ranges
from minitrain.tensors.kinds import Activation, ActivationGrad, require_same

_ALL = frozenset([0])
_FIELDS_OF_HEADS: tuple[str, ...] = ("layer", "samples", "num_shards", "parts", "num_parts")
_FIELDS_OF_SHARDS_AND_HEADS: tuple[str, ...] = (*_FIELDS_OF_HEADS, "shards")


def share_of_size(tensor: Any, size: int) -> int:
    """Return the share of a size that a tensor's shards of the sequence and its part of the heads have."""
    found: int = size * len(tensor.shards) // tensor.num_shards // getattr(tensor, "num_parts", 1)
    return found


def _num_cut(tensor: Any) -> int:
    """Return the number of shards that a tensor's sequence is cut into."""
    found: int = getattr(tensor, "num_sequence_shards", None) or tensor.num_shards
    return found


def merged(left: Any, right: Any, over: str, of: str) -> Any:
    """Return the sum of two tensors over one of their sets.

    Args:
        left: a tensor.
        right: another one.
        over: the set that must differ between the two.
        of: what the members of that set are, for messages.

    Raises:
        LawError: they are of different kinds, layers, samples or shards, or something is in both.
    """
    require_same(f"sums over {of}", left, right, *(name for name in left._must_agree if name != over))
    mine, others = getattr(left, over), getattr(right, over)
    twice = mine & others
    if twice:
        raise LawError(
            f"sums over {of}: shard {ranges(twice)} of {_num_cut(left)} is in both (layer {left.layer}); add what "
            "comes of each shard once",
            left=left,
            right=right,
            layer=left.layer,
        )
    fields = {name: getattr(left, name) for name in left.__dataclass_fields__}
    total = type(left)(**fields | {over: mine | others})
    if hasattr(left, "_units"):
        total._units = left._units
    return summed(total, left, right)


@dataclass(slots=True)
class KeysValues(Activation):
    """The keys and values of one attention for some shards of the sequence.

    Args:
        shards: indices of the shards.
        num_shards: number of shards that the sequence is cut into.
        parts: whose heads these are, as a set of one; part 0 of 1 has all heads.
        num_parts: number of parts that the heads are divided into.
    """

    shards: frozenset[int] = _ALL
    num_shards: int = 1
    parts: frozenset[int] = _ALL
    num_parts: int = 1

    _must_agree = _FIELDS_OF_HEADS

    def with_shards(self, shards: frozenset[int]) -> KeysValues:
        """Return the keys and values of other shards."""
        fields = self.layer, self.layers, self.samples, self.total_samples
        return KeysValues(*fields, shards, self.num_shards, self.parts, self.num_parts)

    def memory(self) -> int:
        """Return the size in elements: keys as large as the input, and values as large."""
        return share_of_size(self, 2 * Activation.memory(self))


@dataclass(slots=True)
class Attended(Activation):
    """What some queries have got from the values of some keys, and the log-sum-exp of their scores.

    Args:
        shards: the queries.
        num_shards: number of shards that the sequence is cut into.
        parts: whose heads these are, as a set of one.
        num_parts: number of parts that the heads are divided into.
        keys: the shards whose keys the queries have seen.
    """

    shards: frozenset[int] = _ALL
    num_shards: int = 1
    parts: frozenset[int] = _ALL
    num_parts: int = 1
    keys: frozenset[int] = _ALL

    _must_agree = _FIELDS_OF_SHARDS_AND_HEADS

    def __add__(self, other: Attended) -> Attended:
        """Return what the queries have got from the keys of both, which must differ."""
        total: Attended = merged(self, other, "keys", "keys")
        return total

    def memory(self) -> int:
        """Return the size in elements: the shards' share of the activation's."""
        return share_of_size(self, Activation.memory(self))


@dataclass(slots=True)
class AttendedGrad(ActivationGrad):
    """The gradient of what queries have got from all keys; its fields are those of `KeysValues`."""

    shards: frozenset[int] = _ALL
    num_shards: int = 1
    parts: frozenset[int] = _ALL
    num_parts: int = 1

    def memory(self) -> int:
        """Return the size in elements: the shards' share of the gradient's."""
        return share_of_size(self, ActivationGrad.memory(self))


@dataclass(slots=True)
class QueriesGrad(ActivationGrad):
    """The gradient of some queries, summed over some keys; its fields are those of `Attended`."""

    shards: frozenset[int] = _ALL
    num_shards: int = 1
    parts: frozenset[int] = _ALL
    num_parts: int = 1
    keys: frozenset[int] = _ALL

    _must_agree = _FIELDS_OF_SHARDS_AND_HEADS

    def __add__(self, other: QueriesGrad) -> QueriesGrad:
        """Return the sum over the keys of both, which must differ."""
        total: QueriesGrad = merged(self, other, "keys", "keys")
        return total

    def memory(self) -> int:
        """Return the size in elements: the shards' share of the gradient's."""
        return share_of_size(self, ActivationGrad.memory(self))


@dataclass(slots=True)
class KeysValuesGrad(ActivationGrad):
    """The gradient of some keys and values, summed over some queries.

    Args:
        shards: the keys and values.
        num_shards: number of shards that the sequence is cut into.
        parts: whose heads these are, as a set of one.
        num_parts: number of parts that the heads are divided into.
        queries: the shards whose queries are summed into it.
    """

    shards: frozenset[int] = _ALL
    num_shards: int = 1
    parts: frozenset[int] = _ALL
    num_parts: int = 1
    queries: frozenset[int] = _ALL

    _must_agree = _FIELDS_OF_SHARDS_AND_HEADS

    def __add__(self, other: KeysValuesGrad) -> KeysValuesGrad:
        """Return the sum over the queries of both, which must differ."""
        total: KeysValuesGrad = merged(self, other, "queries", "queries")
        return total

    def with_sums(self, shards: frozenset[int], queries: frozenset[int]) -> KeysValuesGrad:
        """Return the gradient of other keys and values, summed over other queries."""
        fields = self.layer, self.layers, self.samples, self.total_samples
        return KeysValuesGrad(*fields, shards, self.num_shards, self.parts, self.num_parts, queries)

    def memory(self) -> int:
        """Return the size in elements: that of the keys and values."""
        return share_of_size(self, 2 * ActivationGrad.memory(self))


OF_ATTENTION = (KeysValues, Attended, AttendedGrad, QueriesGrad, KeysValuesGrad)
"""The kinds of tensor within an attention that is computed in steps."""

SUMMED_OVER: Mapping[type[Any], str] = MappingProxyType(
    {Attended: "keys", QueriesGrad: "keys", KeysValuesGrad: "queries"}
)
"""The set of shards over which tensors of a kind add."""
