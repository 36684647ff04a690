"""Expert parallelism in the tensors' algebra: the pieces of a layer, and copies of tokens (GShard, figure 3).

A layer is two pieces where its experts are divided. The *router* piece is what every rank holds: norm,
router and shared experts. The *experts* are divided into parts, one a rank. So each piece has weights, gradients and
optimizer states of its own, whose gradients are summed over other ranks: those of the router over all ranks that see
other samples, those of a part of the experts over the ranks that hold the same part.

A router makes `experts_per_token` copies of each token. `all_to_all` takes them to the parts that they are for, and
what the experts made of them back; gradients go the same ways:

    tokens = model.route(layer, x, router, num_parts)                   # my samples, all parts
    tokens = await model.all_to_all(tokens, layer, group=parts)         # the samples of all, my part
    outputs = model.forward(layer, tokens, experts)
    outputs = await model.all_to_all(outputs, layer, group=parts)       # my samples, all parts
    y = model.combine(layer, x, outputs, router)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar, final

from minitrain.errors import UsageError
from minitrain.tensors.annotations import summed
from minitrain.tensors.index_sets import union
from minitrain.tensors.kinds import Activation, ActivationGrad, OptState, Weight, WeightGrad, require_same
from minitrain.tensors.sequence_parts import WHOLE_SEQUENCE, SequencePart

P = TypeVar("P")

_ALL = frozenset([0])


@final
@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """Which shares of all copies of tokens go to the parts of a layer's experts.

    Args:
        num_parts: parts that the experts are divided into.
        shares: the share that each part gets; () where all get the same.
        dropped: the share that no expert takes.
    """

    num_parts: int
    shares: tuple[Fraction, ...] = ()
    dropped: Fraction = Fraction(0)

    def share(self, parts: frozenset[int]) -> Fraction:
        """Return the share that some parts get together."""
        if not self.shares:
            return (1 - self.dropped) * Fraction(len(parts), self.num_parts)
        return sum((self.shares[part] for part in parts), Fraction(0))

    @property
    def busiest(self) -> Fraction:
        """The share of the part that gets most."""
        return max(self.shares) if self.shares else (1 - self.dropped) / self.num_parts


@lru_cache(maxsize=256)
def expert_load(
    num_experts: int, num_parts: int, imbalance: float | tuple[float, ...] = 1, capacity_factor: float | None = None
) -> ExpertLoad:
    """Return how copies of tokens fall on parts of experts, each of which has `num_experts` / `num_parts` neighbours.

    Args:
        num_experts: experts of the layer.
        num_parts: parts, a divisor of them.
        imbalance: how many times the mean the busiest expert (the first one) gets, the others sharing the rest; or a
            number for each expert, to which its tokens are proportional.
        capacity_factor: how many times the mean an expert takes at most, the rest being dropped; None for all.

    Raises:
        UsageError: a number is outside its rule.

    >>> expert_load(4, 2, imbalance=2).shares
    (Fraction(2, 3), Fraction(1, 3))
    >>> expert_load(4, 2, imbalance=2, capacity_factor=1).dropped
    Fraction(1, 4)
    """
    sent = _by_expert(num_experts, imbalance)
    if capacity_factor is not None:
        taken = [min(share, _capacity(capacity_factor) / num_experts) for share in sent]
    else:
        taken = sent
    size = num_experts // num_parts
    shares = tuple(sum(taken[part * size : (part + 1) * size], Fraction(0)) for part in range(num_parts))
    return ExpertLoad(num_parts, shares if len(set(shares)) > 1 else (), 1 - sum(shares, Fraction(0)))


def _by_expert(num_experts: int, imbalance: Any) -> list[Fraction]:
    """Return the share of all copies that each expert is sent."""
    if isinstance(imbalance, tuple):
        if len(imbalance) != num_experts or not all(map(_is_amount, imbalance)) or not sum(imbalance):
            raise UsageError(
                f"imbalance must be a factor, or a number of at least 0 for each of the {num_experts} experts, got "
                f"{imbalance!r:.80}",
                imbalance=imbalance,
            )
        amounts = [_exactly(amount) for amount in imbalance]
        return [amount / sum(amounts) for amount in amounts]
    if not _is_amount(imbalance) or not 1 <= imbalance <= num_experts:
        raise UsageError(
            f"imbalance must lie in 1..{num_experts}, the number of experts, since the busiest expert gets so many "
            f"times the mean; got {imbalance!r:.80}",
            imbalance=imbalance,
        )
    first = _exactly(imbalance) / num_experts
    return [first, *[(1 - first) / max(num_experts - 1, 1)] * (num_experts - 1)]


def _capacity(factor: Any) -> Fraction:
    """Return a capacity factor, once it is one."""
    if not _is_amount(factor) or not factor:
        raise UsageError(
            f"capacity_factor must be a number above 0, or None for experts that take all tokens, got {factor!r:.80}; "
            "use 1.25",
            capacity_factor=factor,
        )
    return _exactly(factor)


def _is_amount(value: Any) -> bool:
    """Return whether a value is a finite number of at least 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _exactly(value: float) -> Fraction:
    """Return the number that a float shows: 1.3 as 13/10."""
    return Fraction(str(value))


def _with_shards(piece: P, shards: frozenset[int], num_shards: int) -> P:
    """Return the same piece of other shards."""
    return replace(piece, shards=shards, num_shards=num_shards)  # type: ignore[type-var]  # a dataclass


@dataclass(slots=True)
class RouterWeight(Weight):
    """What every rank holds of a layer with experts: norm, router and shared experts, whole or in shards."""

    with_shards = _with_shards


@dataclass(slots=True)
class RouterOptState(OptState):
    """The optimizer state of a `RouterWeight`."""

    with_shards = _with_shards


@dataclass(slots=True)
class RouterGrad(WeightGrad):
    """The gradient of a `RouterWeight`, summed over some samples.

    Args:
        sequence: the part of each sample's sequence that is summed into it.
    """

    sequence: SequencePart = WHOLE_SEQUENCE

    with_shards = _with_shards

    def __add__(self, other: WeightGrad) -> RouterGrad:
        """Return the sum, which covers the samples of both; layer, shards and part of the sequence must agree."""
        return _sum(self, other, "layer", "shards", "num_shards", "sequence")


@dataclass(slots=True)
class ExpertWeight(Weight):
    """The weights of one part of a layer's experts, whole or in shards.

    Args:
        parts: which part, as a set of one.
        num_parts: number of parts that the experts are divided into.
    """

    parts: frozenset[int] = _ALL
    num_parts: int = 1

    _must_agree = (*Weight._must_agree, "parts", "num_parts")  # type: ignore[assignment]  # more names than those of the whole
    with_shards = _with_shards


@dataclass(slots=True)
class ExpertOptState(OptState):
    """The optimizer state of an `ExpertWeight`, whose fields it has."""

    parts: frozenset[int] = _ALL
    num_parts: int = 1

    _must_agree = (*OptState._must_agree, "parts", "num_parts")  # type: ignore[assignment]  # the same
    with_shards = _with_shards


@dataclass(slots=True)
class ExpertGrad(WeightGrad):
    """The gradient of an `ExpertWeight`: samples and sequences are those of all ranks whose tokens came to the part."""

    parts: frozenset[int] = _ALL
    num_parts: int = 1
    sequence: SequencePart = WHOLE_SEQUENCE

    _must_agree = (*WeightGrad._must_agree, "parts", "num_parts")  # type: ignore[assignment]  # the same
    with_shards = _with_shards

    def __add__(self, other: WeightGrad) -> ExpertGrad:
        """Return the sum, which covers the samples of both; layer, part and shards must agree."""
        return _sum(self, other, "layer", "parts", "num_parts", "shards", "num_shards", "sequence")


def _sum(left: P, right: Any, *names: str) -> P:
    """Return the sum of two gradients that agree in some fields."""
    one: Any = left
    require_same("gradients that add", one, right, *names)
    total: Any = replace(one, samples=union(one.samples, right.samples))
    if hasattr(one, "_units"):
        total._units = one._units
    result: P = summed(total, one, right)
    return result


@dataclass(slots=True)
class RoutedTokens(Activation):
    """Copies of tokens for the experts of a layer.

    Args:
        parts: the parts of the experts that they are for.
        num_parts: number of parts that the experts are divided into.
        own: the samples that this rank's router has sent, which return to it.
        load: how copies fall on the parts.
        sequence: the part of each sample's sequence whose tokens these are.
        own_sequence: the part that this rank's router has sent.
    """

    parts: frozenset[int] = _ALL
    num_parts: int = 1
    own: frozenset[int] = frozenset()
    load: ExpertLoad = ExpertLoad(1)
    sequence: SequencePart = WHOLE_SEQUENCE
    own_sequence: SequencePart = WHOLE_SEQUENCE


@dataclass(slots=True)
class ExpertOutputs(Activation):
    """What experts have made of copies of tokens; its fields are as those of `RoutedTokens`."""

    parts: frozenset[int] = _ALL
    num_parts: int = 1
    own: frozenset[int] = frozenset()
    load: ExpertLoad = ExpertLoad(1)
    sequence: SequencePart = WHOLE_SEQUENCE
    own_sequence: SequencePart = WHOLE_SEQUENCE


@dataclass(slots=True)
class ExpertOutputsGrad(ActivationGrad):
    """The gradient of `ExpertOutputs`, whose fields it has."""

    parts: frozenset[int] = _ALL
    num_parts: int = 1
    own: frozenset[int] = frozenset()
    load: ExpertLoad = ExpertLoad(1)
    sequence: SequencePart = WHOLE_SEQUENCE
    own_sequence: SequencePart = WHOLE_SEQUENCE


@dataclass(slots=True)
class RoutedTokensGrad(ActivationGrad):
    """The gradient of `RoutedTokens`, whose fields it has."""

    parts: frozenset[int] = _ALL
    num_parts: int = 1
    own: frozenset[int] = frozenset()
    load: ExpertLoad = ExpertLoad(1)
    sequence: SequencePart = WHOLE_SEQUENCE
    own_sequence: SequencePart = WHOLE_SEQUENCE


ROUTER_PIECES = (RouterWeight, RouterOptState, RouterGrad)
EXPERT_PIECES = (ExpertWeight, ExpertOptState, ExpertGrad)
PIECES = frozenset((*ROUTER_PIECES, *EXPERT_PIECES))
"""The kinds of tensor that a rank holds of a layer with experts: of the router piece, or of a part of the experts."""

_COPIES_IN_ORDER = (RoutedTokens, ExpertOutputs, ExpertOutputsGrad, RoutedTokensGrad)
COPIES: frozenset[type[Any]] = frozenset(_COPIES_IN_ORDER)
"""Copies of tokens, on their way to experts and back, and their gradients."""

KINDS_OF_EXPERTS: tuple[type[Any], ...] = (*ROUTER_PIECES, *EXPERT_PIECES, *_COPIES_IN_ORDER)
"""The kinds of tensor that know experts, each a kind of one of the five."""


def moved(copies: Any, samples: frozenset[int], parts: frozenset[int], sequence: SequencePart) -> Any:
    """Return the copies of tokens of other samples, parts of experts, and parts of sequences."""
    found = turned_into(type(copies), copies)
    found.samples, found.parts, found.sequence = samples, parts, sequence
    return found


def turned_into(kind: type[P], copies: Any) -> P:
    """Return copies of the same tokens as another kind: what experts make of them, or a gradient."""
    return kind(
        copies.layer,
        copies.layers,
        copies.samples,
        copies.total_samples,
        copies.parts,
        copies.num_parts,
        copies.own,
        copies.load,
        copies.sequence,
        copies.own_sequence,
    )  # type: ignore[call-arg]  # one of `COPIES`


def as_imbalance(imbalance: float | Sequence[float]) -> float | tuple[float, ...]:
    """Return a factor as it is, and numbers of a sequence as a tuple, which is hashable."""
    return tuple(imbalance) if isinstance(imbalance, Sequence) and not isinstance(imbalance, str) else imbalance
