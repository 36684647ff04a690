"""Shards of a sequence that a rank takes through the whole network, and the attention between them.

With context parallelism (Liu et al. 2023, "Ring Attention with Blockwise Transformers"; Llama 3, section 3.3.2) a rank
has some tokens of each sample, and all weights. Tokens need one another in attention alone, where the queries of a rank
*attend* the keys and values of all. `Attended` says which keys its queries have seen; what they got from different keys
adds, by the log-sum-exp that each carries. So the ring of the paper's figure reads:

    attended = attended + model.attend(layer, x, keys_values)      # the block that is here; the next one is on its way

Gradients mirror that. The gradient of queries adds over the keys, that of keys and values over the queries, and that of
a weight covers some shards of the sequence until it is summed over the ranks.

A rank's shards need not be neighbours: the causal mask leaves equal work where rank i of n has shards i and 2n - 1 - i
of 2n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minitrain.errors import LawError
from minitrain.tensors.annotations import summed
from minitrain.tensors.index_sets import ranges, union
from minitrain.tensors.kinds import Activation, ActivationGrad, WeightGrad, require_same
from minitrain.tensors.parts import PartialActivation, PartialActivationGrad, WeightGradPart

_ALL = frozenset([0])
_OF_A_SUM: tuple[str, ...] = (*PartialActivation._must_agree, "shards", "num_shards")
_OF_HEADS: tuple[str, ...] = ("layer", "samples", "num_shards", "parts", "num_parts")
_OF_SHARDS_AND_HEADS: tuple[str, ...] = (*_OF_HEADS, "shards")


def _share(tensor: Any, size: int) -> int:
    """Return what a tensor's shards of the sequence have of a size."""
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
        of: what it is a set of, for messages.

    Raises:
        LawError: they are of different kinds, layers, samples or shards, or something is in both.
    """
    require_same(f"sums over {of}", left, right, *left._must_agree)
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
class ContextShard(Activation):
    """The input of a layer for some shards of the sequence.

    Args:
        shards: indices of the shards.
        num_shards: number of shards that the sequence is cut into.
    """

    shards: frozenset[int] = _ALL
    num_shards: int = 1

    def memory(self) -> int:
        """Return the size in elements: the shards' share of the activation's."""
        return _share(self, Activation.memory(self))


@dataclass(slots=True)
class ContextGradShard(ActivationGrad):
    """The gradient of a layer's output for some shards of the sequence; its fields are those of `ContextShard`."""

    shards: frozenset[int] = _ALL
    num_shards: int = 1

    def memory(self) -> int:
        """Return the size in elements: the shards' share of the gradient's."""
        return _share(self, ActivationGrad.memory(self))


@dataclass(slots=True)
class PartialContextShard(PartialActivation):
    """What some parts of a layer have made of some shards of the sequence; only sums over all parts go on."""

    shards: frozenset[int] = _ALL
    num_shards: int = 1

    _must_agree = _OF_A_SUM

    def whole(self) -> ContextShard:
        """Return the sum over all parts."""
        return ContextShard(self.layer, self.layers, self.samples, self.total_samples, self.shards, self.num_shards)

    def with_parts(self, parts: frozenset[int]) -> PartialContextShard:
        """Return the same sum over other parts."""
        fields = self.layer, self.layers, self.samples, self.total_samples
        return PartialContextShard(*fields, parts, self.num_parts, self.shards, self.num_shards)

    def memory(self) -> int:
        """Return the size in elements: that of the sum."""
        return self.whole().memory()


@dataclass(slots=True)
class PartialContextGradShard(PartialActivationGrad):
    """The gradient of a layer's input for some shards of the sequence, as some parts of the layer have made it."""

    shards: frozenset[int] = _ALL
    num_shards: int = 1

    _must_agree = _OF_A_SUM

    def whole(self) -> ContextGradShard:
        """Return the sum over all parts."""
        return ContextGradShard(self.layer, self.layers, self.samples, self.total_samples, self.shards, self.num_shards)

    def with_parts(self, parts: frozenset[int]) -> PartialContextGradShard:
        """Return the same sum over other parts."""
        fields = self.layer, self.layers, self.samples, self.total_samples
        return PartialContextGradShard(*fields, parts, self.num_parts, self.shards, self.num_shards)

    def memory(self) -> int:
        """Return the size in elements: that of the sum."""
        return self.whole().memory()


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

    _must_agree = _OF_HEADS

    def with_shards(self, shards: frozenset[int]) -> KeysValues:
        """Return the keys and values of other shards."""
        fields = self.layer, self.layers, self.samples, self.total_samples
        return KeysValues(*fields, shards, self.num_shards, self.parts, self.num_parts)

    def memory(self) -> int:
        """Return the size in elements: keys as large as the input, and values as large."""
        return _share(self, 2 * Activation.memory(self))


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

    _must_agree = _OF_SHARDS_AND_HEADS

    def __add__(self, other: Attended) -> Attended:
        """Return what the queries have got from the keys of both, which must differ."""
        total: Attended = merged(self, other, "keys", "keys")
        return total

    def memory(self) -> int:
        """Return the size in elements: the shards' share of the activation's."""
        return _share(self, Activation.memory(self))


@dataclass(slots=True)
class AttendedGrad(ActivationGrad):
    """The gradient of what queries have got from all keys; its fields are those of `KeysValues`."""

    shards: frozenset[int] = _ALL
    num_shards: int = 1
    parts: frozenset[int] = _ALL
    num_parts: int = 1

    def memory(self) -> int:
        """Return the size in elements: the shards' share of the gradient's."""
        return _share(self, ActivationGrad.memory(self))


@dataclass(slots=True)
class QueriesGrad(ActivationGrad):
    """The gradient of some queries, summed over some keys; its fields are those of `Attended`."""

    shards: frozenset[int] = _ALL
    num_shards: int = 1
    parts: frozenset[int] = _ALL
    num_parts: int = 1
    keys: frozenset[int] = _ALL

    _must_agree = _OF_SHARDS_AND_HEADS

    def __add__(self, other: QueriesGrad) -> QueriesGrad:
        """Return the sum over the keys of both, which must differ."""
        total: QueriesGrad = merged(self, other, "keys", "keys")
        return total

    def memory(self) -> int:
        """Return the size in elements: the shards' share of the gradient's."""
        return _share(self, ActivationGrad.memory(self))


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

    _must_agree = _OF_SHARDS_AND_HEADS

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
        return _share(self, 2 * ActivationGrad.memory(self))


@dataclass(slots=True)
class ContextWeightGrad(WeightGradPart):
    """The gradient of a layer's weight, or of a part of it, that covers some shards of the sequence.

    Its fields are those of `WeightGradPart`; `sequence_shards` are those that all of it covers. It covers each of its
    samples in each of these shards.
    """

    def with_sums(
        self,
        samples: frozenset[int],
        sequence_shards: frozenset[int],
        shards: frozenset[int] | None = None,
        num_shards: int | None = None,
    ) -> ContextWeightGrad:
        """Return a gradient of the same weight that covers other samples or other shards of the sequence."""
        return ContextWeightGrad(
            self.layer,
            self.layers,
            samples,
            self.total_samples,
            self.shards if shards is None else shards,
            num_shards or self.num_shards,
            self.parts,
            self.num_parts,
            sequence_shards,
            self.num_sequence_shards,
        )

    def __add__(self, other: WeightGrad) -> ContextWeightGrad:
        """Return the sum, which covers the samples of both, or the shards of the sequence of both; the others agree."""
        names = (name for name in self._must_agree if name not in ("samples", "sequence_shards"))
        require_same("gradients that add", self, other, *names, "shards")
        assert isinstance(other, ContextWeightGrad)  # of one kind
        if self.samples == other.samples:
            total: ContextWeightGrad = merged(self, other, "sequence_shards", "the sequence")
            return total
        require_same("gradients that add", self, other, "sequence_shards")
        total = self.with_sums(union(self.samples, other.samples), self.sequence_shards)
        if hasattr(self, "_units"):
            total._units = self._units  # type: ignore[misc]  # a slot of the base
        return summed(total, self, other)


IN_CONTEXT = (ContextShard, ContextGradShard)
"""What goes from layer to layer for some shards of the sequence."""

OF_ATTENTION = (KeysValues, Attended, AttendedGrad, QueriesGrad, KeysValuesGrad)
"""What lies within an attention that is taken in steps."""

CONTEXT_KINDS: tuple[type[Any], ...] = (
    *IN_CONTEXT,
    PartialContextShard,
    PartialContextGradShard,
    *OF_ATTENTION,
    ContextWeightGrad,
)
"""The kinds of tensor that are of some shards of the sequence, each a kind of one of the five."""

_SUMMED_OVER = {Attended: "keys", QueriesGrad: "keys", KeysValuesGrad: "queries"}


def num_summed(value: Any) -> int:
    """Return of how many things a tensor is the sum: samples, or shards of the sequence, or each sample in each shard.

    Where two tensors have nothing in common, that of their sum is the sum of theirs.
    """
    kind = value.__class__
    if kind is WeightGrad:
        return len(value.samples)
    if kind is ContextWeightGrad:
        return len(value.samples) * len(value.sequence_shards)
    over = _SUMMED_OVER.get(kind)
    return len(value.samples) if over is None else len(getattr(value, over))
