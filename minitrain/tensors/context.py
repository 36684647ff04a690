"""Shards of a sequence that a rank takes through the whole network, and the attention between them.

With context parallelism (Liu et al. 2023, "Ring Attention with Blockwise Transformers"; Llama 3, section 3.3.2) a rank
has some tokens of each sample, and all weights. Tokens need one another in attention alone, where the queries of a rank
*attend* the keys and values of all. `Attended` says which keys its queries have seen; what they got from different keys
adds, by the log-sum-exp that each carries. So the ring of the paper's figure reads:

    attended = attended + model.attend(layer, x, keys_values)      # of this block, while the next one is received

Gradients mirror that. The gradient of queries adds over the keys, that of keys and values over the queries, and that of
a weight covers some shards of the sequence until it is summed over the ranks.

A rank's shards need not be neighbours: the causal mask leaves equal work where rank i of n has shards i and 2n - 1 - i
of 2n.

Between layers that are divided into parts, a rank's shards may be cut once more, into pieces of equal length among the
ranks of the parts (sequence parallelism within context parallelism). What all parts hold then has a gradient that
covers some pieces of the shards, until it is summed over these ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from minitrain.tensors.annotations import summed
from minitrain.tensors.attention import OF_ATTENTION, SUMMED_OVER, merged, share_of_size
from minitrain.tensors.index_sets import union
from minitrain.tensors.kinds import Activation, ActivationGrad, WeightGrad, require_same
from minitrain.tensors.parts import (
    ActivationGradShard,
    ActivationShard,
    PartialActivation,
    PartialActivationGrad,
    WeightGradPart,
)

_ALL = frozenset([0])
_FIELDS_OF_A_SUM: tuple[str, ...] = (*PartialActivation._must_agree, "shards", "num_shards")


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
        return share_of_size(self, Activation.memory(self))

    def piece(self, pieces: frozenset[int], num_pieces: int) -> ContextPiece:
        """Return some pieces of these shards."""
        fields = self.layer, self.layers, self.samples, self.total_samples
        return ContextPiece(*fields, pieces, num_pieces, self.shards, self.num_shards)


@dataclass(slots=True)
class ContextGradShard(ActivationGrad):
    """The gradient of a layer's output for some shards of the sequence; its fields are those of `ContextShard`."""

    shards: frozenset[int] = _ALL
    num_shards: int = 1

    def memory(self) -> int:
        """Return the size in elements: the shards' share of the gradient's."""
        return share_of_size(self, ActivationGrad.memory(self))

    def piece(self, pieces: frozenset[int], num_pieces: int) -> ContextGradPiece:
        """Return some pieces of these shards."""
        fields = self.layer, self.layers, self.samples, self.total_samples
        return ContextGradPiece(*fields, pieces, num_pieces, self.shards, self.num_shards)


@dataclass(slots=True)
class ContextPiece(ActivationShard):
    """Some pieces of the shards of the sequence that several ranks share; `shards` says which of `num_shards` pieces.

    Args:
        context: the shards of the sequence that were cut.
        num_context: number of shards that the sequence is cut into.
    """

    context: frozenset[int] = _ALL
    num_context: int = 1

    def whole(self) -> ContextShard:
        """Return the shards that the pieces are cut from."""
        fields = self.layer, self.layers, self.samples, self.total_samples
        return ContextShard(*fields, self.context, self.num_context)


@dataclass(slots=True)
class ContextGradPiece(ActivationGradShard):
    """The gradient of a layer's output for some pieces of shards; its fields are those of `ContextPiece`."""

    context: frozenset[int] = _ALL
    num_context: int = 1

    def whole(self) -> ContextGradShard:
        """Return the shards that the pieces are cut from."""
        fields = self.layer, self.layers, self.samples, self.total_samples
        return ContextGradShard(*fields, self.context, self.num_context)


@dataclass(slots=True)
class PartialContextShard(PartialActivation):
    """What some parts of a layer have made of some shards of the sequence; only sums over all parts go on."""

    shards: frozenset[int] = _ALL
    num_shards: int = 1

    _must_agree = _FIELDS_OF_A_SUM

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

    _must_agree = _FIELDS_OF_A_SUM

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
class ContextWeightGrad(WeightGradPart):
    """The gradient of a layer's weight, or of a part of it, that covers some shards of the sequence.

    Its fields are those of `WeightGradPart`; `sequence_shards` are those that all of it covers. It covers each of its
    samples in each of these shards.

    Args:
        pieces: the pieces of these shards that the gradients of what all parts hold cover.
        num_pieces: number of pieces; 1 where each part has seen all of its shards.
    """

    pieces: frozenset[int] = _ALL
    num_pieces: int = 1

    _must_agree = (*WeightGradPart._must_agree, "pieces", "num_pieces")  # type: ignore[assignment]  # more names

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
            self.pieces,
            self.num_pieces,
        )

    def with_pieces(self, pieces: frozenset[int]) -> ContextWeightGrad:
        """Return the same gradient, in which what all parts hold covers other pieces."""
        return replace(self, pieces=pieces)

    def covers_sequence(self) -> bool:
        """Return whether all of it covers the whole sequence."""
        return len(self.sequence_shards) == self.num_sequence_shards and len(self.pieces) == self.num_pieces

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
"""The kinds of tensor that go from layer to layer for some shards of the sequence."""

PIECES_OF_CONTEXT = (ContextPiece, ContextGradPiece)
"""The kinds of tensor that lie between layers in parts, for some pieces of shards of the sequence."""

CONTEXT_KINDS: tuple[type[Any], ...] = (
    *IN_CONTEXT,
    *PIECES_OF_CONTEXT,
    PartialContextShard,
    PartialContextGradShard,
    *OF_ATTENTION,
    ContextWeightGrad,
)
"""The kinds of tensor that are of some shards of the sequence, each a kind of one of the five."""


def sums_what_all_hold(total: Any, summand: Any) -> bool:
    """Return whether a sum of gradients is that of what all parts hold, over what each of them has seen."""
    if total.__class__ is ContextWeightGrad:
        return bool(total.pieces != summand.pieces)
    return total.__class__ is WeightGradPart and total.sequence_shards != summand.sequence_shards


def num_summed(value: Any) -> int:
    """Return how many things a tensor sums: samples, or shards of the sequence, or each sample in each shard.

    Where two tensors have nothing in common, the number of their sum is the sum of their numbers.
    """
    kind = value.__class__
    if kind is WeightGrad:
        return len(value.samples)
    if kind is ContextWeightGrad:
        return len(value.samples) * len(value.sequence_shards)
    if hasattr(value, "sequence"):  # of a piece of a layer with experts
        num_pieces: int = value.sequence.count
        return len(value.samples) * num_pieces
    over = SUMMED_OVER.get(kind)
    return len(value.samples) if over is None else len(getattr(value, over))
