"""Tensors of which a rank has a part: the algebra of tensor, sequence, context and expert parallelism.

Along each of its axes a tensor is whole, a shard or a partial sum, as DTensor names them:

- `shards`: storage of a weight, its gradient and state (ZeRO). A shard must be gathered before it computes.
- `parts` of a layer: some heads, columns and rows, vocabulary rows, or experts. A part computes. What it makes of an
  input is a partial sum, which counts once all parts are added.
- `sequence.shards`: what a rank takes through the whole network of each sample. Gradients of weights are partial sums
  over them, and so is an attention over the `keys` that queries have seen, or the `queries` that have seen keys.
- `sequence.pieces` of these: shards between layers in parts. Gradients of what all parts hold (norms, biases) are
  partial sums over them.
- `samples`: gradients of weights are partial sums over them.

So Megatron's figure (Shoeybi et al. 2019, figure 3) reads:

    out = model.forward(layer, x, weight_part)                  # parts {0} of 4
    x = await model.all_reduce(out, layer, group=tp)            # an Activation

An activation may be cut along the sequence between such layers (Korthikanti et al. 2022, figure 5): `reduce_scatter`
makes pieces of partial sums, and `all_gather` puts them together.

With context parallelism (Liu et al. 2023; Llama 3, section 3.3.2) a rank has some tokens of each sample, and all
weights. Tokens need one another in attention alone, where the queries of a rank attend the keys and values of all.
What they got from different keys adds, by the log-sum-exp that each carries, and so does the gradient of queries; that
of keys and values adds over queries. So the ring of the paper's figure reads:

    attended = attended + model.attend(layer, x, keys_values)      # of this block, while the next one is received

A rank's shards need not be neighbours: the causal mask leaves equal work where rank i of n has shards i and 2n - 1 - i
of 2n.

A layer whose experts are divided is two pieces (GShard, figure 3): the *router* piece, which every rank holds (norm,
router, shared experts), and a part of the *experts*. Their gradients are summed over other ranks each. A router makes
copies of tokens. `all_to_all` takes them to the parts that they are for, and what experts made of them back:

    tokens = model.route(layer, x, router, num_parts)                   # my samples, all parts
    tokens = await model.all_to_all(tokens, layer, group=parts)         # the samples of all, my part
    outputs = model.forward(layer, tokens, experts)
    outputs = await model.all_to_all(outputs, layer, group=parts)       # my samples, all parts
    y = model.combine(layer, x, outputs, router)

What collectives do along these axes is in `minitrain.operations.collectives`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, TypeVar

from minitrain.errors import LawError
from minitrain.tensors.expert_load import ExpertLoad
from minitrain.tensors.index_sets import WHOLE_SEQUENCE, SequencePart, ranges, singleton
from minitrain.tensors.kinds import (
    Activation,
    ActivationGrad,
    OptState,
    Weight,
    WeightGrad,
    altered,
    combined,
    fields_beside,
    passage_of,
    require_disjoint,
    require_same,
    shard_fault,
    sharded,
    summed,
)

T = TypeVar("T")

_ALL = frozenset([0])
_ONE_PART = ExpertLoad(1)


# The axes along which tensors are cut. A kind has the fields of its axes after those of the five kinds; slots are its
# own, since two bases with slots cannot be put together.


@dataclass
class _OfParts:
    """What is of a part of a layer.

    Args:
        parts: which parts; of a weight, its gradient and its state, a set of one.
        num_parts: number of parts that the layer is divided into.
    """

    __slots__ = ()

    parts: frozenset[int] = _ALL
    num_parts: int = 1


@dataclass
class _OfSequence:
    """What is of a part of each sequence.

    Args:
        sequence: which part.
    """

    __slots__ = ()

    sequence: SequencePart = WHOLE_SEQUENCE


@dataclass
class _Partial(_OfSequence, _OfParts):
    """A sum that lacks parts, or may."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        """Return the sum: what it is a part of if it has all parts; the parts must differ."""
        return _sum_of_parts(self, other)


@dataclass
class _Shard(_OfSequence):
    """What goes from layer to layer for a part of each sequence."""

    __slots__ = ()

    def combine(self, other: Any) -> Any:
        """Return what holds the pieces of both: the whole that they are cut from if it has all."""
        return _union_of_pieces(self, other)


@dataclass
class _OfHeads(_OfParts, _OfSequence):
    """What an attention makes in steps, for some shards of the sequence and the heads of a part.

    Attributes:
        arrays: how many as large as an activation it is.
    """

    __slots__ = ()

    arrays = 1

    def memory(self) -> int:
        """Return the size in elements: the heads' share of the activation's."""
        whole: int = super().memory()  # type: ignore[misc]  # of the kind that is cut
        return self.arrays * whole // self.num_parts


@dataclass
class _OverSome(_OfHeads):
    """What adds over keys, or over queries, where these differ; see `SUMMED_OVER`."""

    __slots__ = ()

    def __add__(self: T, other: T) -> T:
        """Return the sum over those of both."""
        return _merged(self, other, SUMMED_OVER[type(self)])


@dataclass
class _Copies(_OfParts):
    """Copies of tokens for the experts of a layer, or what came of them; parts are those of the experts they are for.

    Args:
        own: the samples that this rank's router has sent, which return to it.
        load: how copies fall on the parts.
        sequence: the part of each sample's sequence whose tokens these are.
        own_sequence: the part that this rank's router has sent.
    """

    __slots__ = ()

    own: frozenset[int] = frozenset()
    load: ExpertLoad = _ONE_PART
    sequence: SequencePart = WHOLE_SEQUENCE
    own_sequence: SequencePart = WHOLE_SEQUENCE


@dataclass(slots=True)
class TableGrad(WeightGrad):
    """The gradient of a table that embedding and head share; its layer is the embedding's.

    Each of the two layers has a copy of the table, and of its gradient the share of its own use, which are summed.

    Args:
        uses: whose share is in it: 0 the embedding's, 1 the head's.
        parts: whose rows of the vocabulary it has, as a set of one.
        num_parts: number of parts that the vocabulary is divided into.
        sequence: the shards of the sequence that it covers.
    """

    uses: frozenset[int] = frozenset()
    parts: frozenset[int] = frozenset([0])
    num_parts: int = 1
    sequence: SequencePart = WHOLE_SEQUENCE

    def __add__(self, other: WeightGrad) -> WeightGrad:
        """Return the sum of both uses.

        Raises:
            LawError: it is no such gradient, or a use is in both.
        """
        require_same("gradients that add", self, other, *fields_beside(TableGrad, "uses"))
        total = altered(self, uses=self.uses | other.uses)  # type: ignore[attr-defined]  # it is of the same kind
        if hasattr(self, "_units"):
            total._units = self._units  # type: ignore[misc]  # a slot of the base
        return summed(total, self, other)


@dataclass(slots=True)
class WeightPart(_OfParts, Weight):
    """One part of a layer's weight, whole or in shards."""


@dataclass(slots=True)
class OptStatePart(_OfParts, OptState):
    """The optimizer state of one part of a layer's weight."""


@dataclass(slots=True)
class WeightGradPart(_OfSequence, _OfParts, WeightGrad):
    """The gradient of one part of a layer's weight, or over a part of each sequence.

    It covers the shards of the sequence for all of its samples, and of these the pieces that the gradients of what all
    parts hold cover.
    """

    @property
    def has_share_of_common(self) -> bool:
        """Whether the gradient of what all parts hold, such as norms, is one share of a sum over the parts."""
        return len(self.sequence.pieces) < self.sequence.num_pieces

    def whole_sequences(self) -> WeightGrad:
        """Return the same, as of sequences that were never cut; itself where it does not cover all shards of them."""
        if len(self.sequence.shards) < self.sequence.num_shards:
            return self
        if self.num_parts == 1 and len(self.sequence.pieces) == self.sequence.num_pieces:
            return WeightGrad(self.layer, self.layers, self.samples, self.total_samples, self.shards, self.num_shards)
        if self.sequence.num_shards == 1:
            return self
        return altered(self, sequence=SequencePart(pieces=self.sequence.pieces, num_pieces=self.sequence.num_pieces))


@dataclass(slots=True)
class PartialActivation(_Partial, Activation):
    """What some parts of a layer have made of its input: it counts once all parts are added."""


@dataclass(slots=True)
class PartialActivationGrad(_Partial, ActivationGrad):
    """The gradient of a layer's input as some parts of it have made it."""


@dataclass(slots=True)
class ActivationShard(_Shard, Activation):
    """The input of a layer for a part of each sequence."""


@dataclass(slots=True)
class ActivationGradShard(_Shard, ActivationGrad):
    """The gradient of a layer's output for a part of each sequence."""


@dataclass(slots=True)
class KeysValues(_OfHeads, Activation):
    """The keys and values of one attention: keys as large as the input, and values as large."""

    arrays = 2


@dataclass(slots=True)
class Attended(_OverSome, Activation):
    """What some queries have got from the values of some keys, and the log-sum-exp of their scores.

    Args:
        keys: the shards whose keys the queries have seen.
    """

    keys: frozenset[int] = _ALL


@dataclass(slots=True)
class AttendedGrad(_OfHeads, ActivationGrad):
    """The gradient of what queries have got from all keys."""


@dataclass(slots=True)
class QueriesGrad(_OverSome, ActivationGrad):
    """The gradient of some queries, summed over some keys, as of `Attended`."""

    keys: frozenset[int] = _ALL


@dataclass(slots=True)
class KeysValuesGrad(_OverSome, ActivationGrad):
    """The gradient of some keys and values, summed over some queries.

    Args:
        queries: the shards whose queries are summed into it.
    """

    arrays = 2

    queries: frozenset[int] = _ALL


@dataclass(slots=True)
class RouterWeight(Weight):
    """What every rank holds of a layer with experts: norm, router and shared experts, whole or in shards."""


@dataclass(slots=True)
class RouterOptState(OptState):
    """The optimizer state of a `RouterWeight`."""


@dataclass(slots=True)
class RouterGrad(_OfSequence, WeightGrad):
    """The gradient of a `RouterWeight`, summed over some samples, and the part of each sequence."""


@dataclass(slots=True)
class ExpertWeight(_OfParts, Weight):
    """The weights of one part of a layer's experts, whole or in shards."""


@dataclass(slots=True)
class ExpertOptState(_OfParts, OptState):
    """The optimizer state of an `ExpertWeight`."""


@dataclass(slots=True)
class ExpertGrad(_OfSequence, _OfParts, WeightGrad):
    """The gradient of an `ExpertWeight`: samples and sequences are those of all ranks whose tokens came to the part."""


@dataclass(slots=True)
class RoutedTokens(_Copies, Activation):
    """Copies of tokens for the experts of a layer."""


@dataclass(slots=True)
class ExpertOutputs(_Copies, Activation):
    """What experts have made of copies of tokens."""


@dataclass(slots=True)
class ExpertOutputsGrad(_Copies, ActivationGrad):
    """The gradient of `ExpertOutputs`."""


@dataclass(slots=True)
class RoutedTokensGrad(_Copies, ActivationGrad):
    """The gradient of `RoutedTokens`."""


PARTIAL = (PartialActivation, PartialActivationGrad)
"""Sums that lack parts, or may."""

SHARDS = (ActivationShard, ActivationGradShard)
"""The kinds that go from layer to layer for a part of each sequence."""

WEIGHT_PARTS = (WeightPart, OptStatePart, WeightGradPart)
"""The kinds of tensor that a rank holds of one part of a layer."""

OF_ATTENTION = (KeysValues, Attended, AttendedGrad, QueriesGrad, KeysValuesGrad)
"""The kinds of tensor within an attention that is computed in steps."""

ROUTER_PIECES = (RouterWeight, RouterOptState, RouterGrad)
EXPERT_PIECES = (ExpertWeight, ExpertOptState, ExpertGrad)
PIECES = frozenset((*ROUTER_PIECES, *EXPERT_PIECES))
"""The kinds of tensor that a rank holds of a layer with experts: of the router piece, or of a part of the experts."""

_COPIES_IN_ORDER = (RoutedTokens, ExpertOutputs, ExpertOutputsGrad, RoutedTokensGrad)
COPIES: frozenset[type[Any]] = frozenset(_COPIES_IN_ORDER)
"""Copies of tokens, on their way to experts and back, and their gradients."""

PLACED_KINDS: tuple[type[Any], ...] = (
    *(*WEIGHT_PARTS, *PARTIAL, *SHARDS, *OF_ATTENTION),
    *(*ROUTER_PIECES, *EXPERT_PIECES, *_COPIES_IN_ORDER),
)
"""The kinds of tensor beside the five, each a kind of one of them."""

SUMMED_OVER: Mapping[type[Any], str] = MappingProxyType(
    {**dict.fromkeys(PARTIAL, "parts"), Attended: "keys", QueriesGrad: "keys", KeysValuesGrad: "queries"}
)
"""The field in which tensors of a kind differ that add, and that their sum has all of."""

_WHOLE_KIND: Mapping[type[Any], type[Any]] = {
    PartialActivation: Activation,
    ActivationShard: Activation,
    PartialActivationGrad: ActivationGrad,
    ActivationGradShard: ActivationGrad,
}
_SHARD_KIND: Mapping[type[Any], type[Any]] = {Activation: ActivationShard, ActivationGrad: ActivationGradShard}


def in_context(value: Any) -> bool:
    """Return whether a tensor goes from layer to layer for some whole shards of the sequence."""
    return isinstance(value, SHARDS) and value.sequence.num_pieces == 1


def in_pieces(value: Any) -> bool:
    """Return whether a tensor lies between layers in parts, as pieces of the sequence or of shards of it."""
    return isinstance(value, SHARDS) and value.sequence.num_pieces > 1


def of_sequence(value: Any, sequence: SequencePart) -> Any:
    """Return an activation, or a gradient of one, of another part of its sequences."""
    kind = _WHOLE_KIND.get(type(value), type(value))
    fields = value.layer, value.layers, value.samples, value.total_samples
    return kind(*fields) if sequence.cut == WHOLE_SEQUENCE.cut else _SHARD_KIND[kind](*fields, sequence)


def piece_of(value: Activation | ActivationGrad, piece: Any, num_pieces: int) -> Any:
    """Return one of `num_pieces` pieces of an activation or of its gradient, along the sequence.

    Raises:
        LawError: it is no complete one, or there is no such piece.
    """
    if type(value) not in _SHARD_KIND and not in_context(value):
        raise LawError(f"only a complete activation or gradient is cut along the sequence, got {value!r}", value=value)
    if fault := shard_fault(piece, num_pieces):
        raise LawError(fault, layer=value.layer)
    return of_sequence(value, value.sequence.with_pieces(singleton(piece), num_pieces))


def share_of_sequence(value: Activation | ActivationGrad, shard: int, num_shards: int) -> Any:
    """Return one of `num_shards` pieces of an activation that a rank has whole, to be sent in its place.

    Raises:
        LawError: as for `piece_of`.
    """
    return sharded(piece_of(value, shard, num_shards), value, shard, num_shards)


def with_parts(value: Any, parts: Any) -> Any:
    """Return a partial sum of other parts, and the sum itself where these are all."""
    return of_sequence(value, value.sequence) if len(parts) == value.num_parts else altered(value, parts=parts)


def with_pieces(value: Any, pieces: Any) -> Any:
    """Return other pieces of the same shards of the sequence, and what they are cut from where these are all."""
    is_whole = len(pieces) == value.sequence.num_pieces
    return of_sequence(value, value.sequence.with_pieces(*((_ALL, 1) if is_whole else (pieces,))))


def _sum_of_parts(left: Any, right: Any) -> Any:
    """Return the sum of two partial sums.

    Raises:
        LawError: they are of different kinds, layers, samples or divisions, or a part is in both.
    """
    require_same("partial sums that add", left, right, *fields_beside(type(left), "parts"))
    twice = left.parts & right.parts
    if twice:
        rule = (
            f"partial sums that add: part {ranges(twice)} of {left.num_parts} is in both (layer {left.layer}); add "
            "each part once"
        )
        raise LawError(rule, left=left, right=right, layer=left.layer)
    return summed(with_parts(left, left.parts | right.parts), left, right)


def _union_of_pieces(left: Any, right: Any) -> Any:
    """Return what holds the pieces of both.

    Raises:
        LawError: they are of different kinds, layers, samples or cuts.
    """
    require_same("shards of a sequence that combine", left, right, "layer", "samples")
    pieces = left.sequence.pieces | right.sequence.pieces
    if right.sequence.with_pieces(pieces) != left.sequence.with_pieces(pieces):
        rule = (
            f"shards of a sequence that combine must be cut alike, got {left.sequence} and {right.sequence} (layer "
            f"{left.layer})"
        )
        raise LawError(rule, left=left, right=right, layer=left.layer)
    return combined(with_pieces(left, pieces), left, right)


def _merged(left: T, right: Any, over: str) -> T:
    """Return the sum of two tensors within an attention over keys, or over queries.

    Raises:
        LawError: they are of different kinds, layers, samples, shards or heads, or something is in both.
    """
    require_same(f"sums over {over}", left, right, *fields_beside(type(left), over))
    require_disjoint(left, left, right, over, over)
    total: Any = altered(left, **{over: getattr(left, over) | getattr(right, over)})
    if hasattr(left, "_units"):
        total._units = left._units
    merged: T = summed(total, left, right)
    return merged


def kept_whole(value: Any) -> Any:
    """Return an activation that was gathered, as one that stays whole: the shard is not what its layer keeps."""
    if hasattr(value, "_passage"):
        value._passage.gathered_from = None
    return value


def remember(result: Any, value: Any) -> Any:
    """Pass on how the layer before went forward, from a value to the result: see `engine/placed_passes.py`."""
    passage = getattr(value, "_passage", None)
    if passage is not None and passage.made_in is not None:  # gradients have none
        passage_of(result).made_in = passage.made_in
    return result


def gathered(result: Any, shard: Any) -> Any:
    """Give a gathered activation the member's own shard, which stands for what its layer keeps."""
    if isinstance(result, Activation):
        passage_of(result).gathered_from = shard
    return remember(result, shard)


def sums_what_all_hold(total: Any, summand: Any) -> bool:
    """Return whether a sum of gradients is that of what all parts hold, over the pieces that each of them has seen."""
    return total.__class__ is WeightGradPart and bool(total.sequence.pieces != summand.sequence.pieces)


def num_summed(value: Any) -> int | Fraction:
    """Return how many things a tensor sums: samples, in parts of the sequence or by uses; or keys, or queries.

    Where two tensors have nothing in common, the number of their sum is the sum of their numbers.
    """
    over = SUMMED_OVER.get(value.__class__)
    if over in ("keys", "queries"):
        return len(getattr(value, over))
    if isinstance(value, TableGrad):
        return len(value.samples) * len(value.uses)
    if isinstance(value, WeightGrad):
        sequence = getattr(value, "sequence", WHOLE_SEQUENCE)
        if value.__class__ is WeightGradPart:
            return len(value.samples) * Fraction(len(sequence.shards), sequence.num_shards)
        return len(value.samples) * sequence.share
    return len(value.samples) * (value.sequence.share if value.__class__ in COPIES else 1)


def moved(copies: Any, samples: Any, parts: Any, sequence: SequencePart) -> Any:
    """Return the copies of tokens of other samples, parts of experts, and parts of sequences."""
    return altered(copies, samples=samples, parts=parts, sequence=sequence)


def turned_into(kind: type[T], copies: Any) -> T:
    """Return copies of the same tokens as another kind: what experts make of them, or a gradient."""
    return kind(*[getattr(copies, name) for name in copies.__dataclass_fields__])
