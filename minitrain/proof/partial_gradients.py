"""What the gradients of one part of a unit carry until the parts are summed.

A part takes the gradient back to the border after the norm (see `units`): what it has there is its share of a sum. The
all_reduce or reduce_scatter over the parts makes the sum, and each rank then takes it through its own norm, which gives
the gradients of norm, router and other weights that all parts hold. So the gradient of a part's weights is incomplete
when it is returned. It may be added to others, and can be used only once the sum was made.

Where the rank had gathered its input from shards of the sequence, these gradients cover its own shard alone.

Split backward: what the first half, `backward_input`, leaves on its rank for the second, `backward_weight`.

A pipeline may do the second half much later, as in zero-bubble schedules (Qi et al. 2023). Each half that is kept is
taken once.

Expert parallelism in numbers: what route, the experts, combine and their backwards compute on one rank.

The arithmetic is that of `experts`; here it is taken apart where tokens travel. Copies of tokens are rows by
sample and expert, so that an exchange is nothing but another choice of samples and experts. An expert adds the bias of
its last matrix itself, before its output is weighted.

What the router has decided stays on the rank until `backward_route`, and so does the gradient of its logits, which
`backward_combine` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from minitrain.engine.observers import Computed
from minitrain.errors import LawError, UsageError
from minitrain.proof import units
from minitrain.proof.arithmetic import Array, gradients
from minitrain.proof.attention_core import Positions, Tokens
from minitrain.proof.experts import Moe, Routing, routing_of
from minitrain.proof.problem import Flat, TransformerProblem, held
from minitrain.tensors.index_sets import SequencePart
from minitrain.workloads.unit import Unit


@dataclass(slots=True, eq=False)
class Border:
    """The border that a rank's backward of a unit has reached, and what is needed on its other side.

    Args:
        unit: which unit.
        arithmetic: its arithmetic.
        weights: the rank's part of its weights, flat.
        part: which part.
        x: its input.
        grad: the gradient of its output.
        own: the positions that the gradients of what all parts hold are to cover.
        common: these gradients, flat, once the sum has crossed.
    """

    unit: Unit
    arithmetic: units.UnitArithmetic
    weights: Array
    part: units.Part
    x: Tokens
    grad: Tokens
    own: Positions
    common: Array | None = None

    def cross(self, total: Tokens) -> Tokens:
        """Take the sum over all parts back to the unit's input, for the tokens that it is of."""
        of_input, of_weights = self._through(total)
        if total.has(self.own):
            if not np.array_equal(self.own, total.positions):
                _, of_weights = self._through(total.at(self.own))
            self.common = of_weights
        return of_input.at(total.positions)

    def _through(self, total: Tokens) -> tuple[Tokens, Array]:
        """Return the gradients of the input, and of what all parts hold, for some tokens.

        The border gets the whole sequence, with zero gradients of other tokens: which of them an expert takes depends
        on all.
        """
        grad = self.grad.at(total.positions).spread(self.x.positions)
        of_weights, (of_input,) = units.gradients(
            lambda weights, values: self.arithmetic.border(weights, self.x.with_values(values)),
            self.weights,
            self.unit,
            self.part,
            [self.x.values],
            total.spread(self.x.positions),
            grad,
        )
        return self.x.with_values(of_input), of_weights


@dataclass(frozen=True, slots=True, eq=False)
class PartialGrad:
    """The share that some parts of a unit have in the gradient at the border.

    Args:
        inner: the share.
        parts: which parts.
        num_parts: of how many.
        borders: those of the backwards on this rank that it came from.
    """

    inner: Tokens
    parts: frozenset[int]
    num_parts: int
    borders: tuple[Border, ...]

    def add(self, other: PartialGrad) -> PartialGrad | Tokens:
        """Return the sum on one rank: the gradient of the input if it has all parts."""
        return self.plus(other).finished()

    def plus(self, other: PartialGrad) -> PartialGrad:
        """Return the sum, however many parts it has."""
        borders = self.borders + other.borders
        return PartialGrad(self.inner.add(other.inner), self.parts | other.parts, self.num_parts, borders)

    def mine(self, total: PartialGrad) -> PartialGrad:
        """Return the sum over ranks on this rank, with its own borders to cross."""
        return replace(total, borders=self.borders)

    def shard(self, shard: int, num_shards: int) -> PartialGrad:
        """Return a piece along the sequence."""
        return replace(self, inner=self.inner.shard(shard, num_shards))

    def finished(self) -> PartialGrad | Tokens:
        """Return the gradient of the unit's input if all parts are there."""
        if len(self.parts) < self.num_parts:
            return self
        crossed = [border.cross(self.inner) for border in self.borders]
        return crossed[0]


def not_summed(layer: str) -> LawError:
    """Return the error of who uses the gradient of a part before what all parts hold is known."""
    return LawError(
        f"the gradient of what all parts of {layer} hold (norms, router, biases) is not known before the gradient of "
        "its input is summed over the parts; all_reduce that over the ranks that hold the parts first (or "
        "reduce_scatter it, if its input was gathered from shards of the sequence)"
    )


def no_first_half(layer: str) -> LawError:
    """Return the error of a `backward_weight` without what it goes on from."""
    return LawError(
        f"backward_weight of layer {layer} needs what backward_input made of the same gradient for the same samples on "
        "the same rank; call backward_input first, and backward_weight once after it"
    )


@dataclass(frozen=True, eq=False)
class PartGrad:
    """The gradient of the weights of one part, or of several in the middle of a sum over parts.

    Args:
        own: one flat array, with zeros where the gradient is not known yet.
        unit: whose weights.
        part: which part; None in the sum over several parts, of which only what all hold means anything.
        awaited: the borders on whose other side the rest is computed.
    """

    own: Array
    unit: Unit
    part: units.Part | None
    awaited: tuple[Border, ...] = field(default=())

    @cached_property
    def values(self) -> Array:
        """Return the gradient.

        Raises:
            LawError: the gradient of the unit's input was not summed over the parts.
        """
        total = self.own
        for border in self.awaited:
            if border.common is None:
                raise not_summed(border.unit.name)
            total = total + border.common
        return total

    def add(self, other: PartGrad) -> PartGrad:
        """Return the sum of gradients, of one part or of several."""
        part = self.part if self.part == other.part else None
        return replace(self, own=self.own + other.own, part=part, awaited=self.awaited + other.awaited)

    def mine(self, total: PartGrad) -> PartGrad:
        """Return the sum over ranks on this rank: of several parts, it takes what all hold."""
        if total.part is not None or self.part is None:
            return total
        common = units.held_by_all(self.unit, self.part)
        return replace(self, own=np.where(common, total.values, self.values), awaited=())

    def shard(self, shard: int, num_shards: int) -> PartGrad:
        """Return one of `num_shards` shards; all other elements become NaN."""
        here: NDArray[np.bool_] = held([shard], num_shards, self.own.size)
        return replace(self, own=np.where(here, self.values, np.nan), awaited=())

    def combine(self, other: PartGrad) -> PartGrad:
        """Return the elements of both."""
        values = np.where(np.isnan(self.values), other.values, self.values)
        return replace(self, own=values, awaited=())


T = TypeVar("T")


class PendingHalves(Generic[T]):
    """The second halves that one rank still has to do, by layer and samples.

    Args:
        problem: what is trained.
    """

    def __init__(self, problem: TransformerProblem) -> None:
        self._problem = problem
        self._kept: dict[tuple[int, frozenset[int]], T] = {}

    def keep(self, layer: int, samples: frozenset[int], half: T) -> None:
        """Keep what the first half has made."""
        self._kept[layer, samples] = half

    def take(self, layer: int, samples: frozenset[int], is_right: Callable[[T], bool]) -> T:
        """Return what is kept, once.

        Args:
            layer: which layer.
            samples: of the gradient.
            is_right: whether a half was made of the gradient that the second half is given.

        Raises:
            LawError: there is none on this rank for these samples and this gradient.
        """
        half = self._kept.pop((layer, samples), None)
        if half is None or not is_right(half):
            raise no_first_half(f"{layer} ({self._problem.units[layer].name})")
        return half


Origin = tuple[int, int, int]
"""Where copies come from: a sample, the first of a rank's shards of its sequence, and the piece of these shards."""


@dataclass(slots=True, eq=False)
class OfOrigins:
    """Copies of tokens, or what experts made of them, or their gradients, whatever the library of their arrays.

    Args:
        rows: copies x hidden_size, by origin and expert.
    """

    rows: Mapping[Origin, Mapping[int, Any]]

    @classmethod
    def routed(cls, done: Computed, tokens: Any, taken: Any, num_experts: int) -> Self:
        """Return the copies that a router makes of some samples.

        Args:
            done: the routing.
            tokens: samples x positions x hidden_size.
            taken: samples x positions x experts: which experts take a token.
            num_experts: of the layer.
        """
        sequence = done.made.sequence
        first, (piece,) = min(sequence.shards), sequence.pieces
        rows = {
            (sample, first, piece): {expert: tokens[place][taken[place, :, expert]] for expert in range(num_experts)}
            for place, sample in enumerate(sorted(done.inp.samples))
        }
        return cls(rows)

    def add(self, other: OfOrigins) -> Self:
        """Return the copies of both, of other samples or other experts."""
        origins = sorted({*self.rows, *other.rows})
        rows = {origin: {**self.rows.get(origin, {}), **other.rows.get(origin, {})} for origin in origins}
        return type(self)(rows)


class Copies(OfOrigins):
    """Copies of tokens in arrays."""

    __slots__ = ()

    def of(self, samples: Set[int], sequence: SequencePart, experts: range) -> Copies:
        """Return the copies of some samples, and a part of their sequences, for some experts."""
        wanted = (
            origin
            for origin in sorted(self.rows)
            if origin[0] in samples and origin[1] in sequence.shards and origin[2] in sequence.pieces
        )
        return Copies({origin: {expert: self.rows[origin][expert] for expert in experts} for origin in wanted})

    def by_expert(self) -> dict[int, Array]:
        """Return the copies for each expert, in order of the samples."""
        each = list(self.rows.values())
        return {expert: np.concatenate([rows[expert] for rows in each]) for expert in sorted(each[0])}

    def split_alike(self, by_expert: Mapping[int, Array]) -> Copies:
        """Return other rows by origin and expert: as many as here, given for all origins one after another."""
        found: dict[Origin, dict[int, Array]] = {origin: {} for origin in self.rows}
        for expert, rows in by_expert.items():
            counts = [len(of_origin[expert]) for of_origin in self.rows.values()]
            pieces = np.split(rows, np.cumsum(counts)[:-1])
            for origin, piece in zip(found, pieces, strict=True):
                found[origin][expert] = piece
        return Copies(found)


@dataclass(slots=True, eq=False)
class _Routed:
    """What the router made of some samples, until they have gone back.

    Args:
        x: the layer's input.
        logits: of the router.
        bias: that counts in the choice alone.
        rest: what is added to the sum of the experts' outputs.
        of_logits: the gradient of the logits, once it is known.
    """

    x: Tokens
    logits: Array
    bias: Array | None
    rest: Array
    of_logits: Array | None = None


class DividedExperts:
    """What one rank computes of units whose experts are divided among ranks.

    Args:
        problem: what is trained.
        moe: the arithmetic of a whole unit with experts.

    Attributes:
        copies_by_expert: how many copies of tokens each expert was sent by this rank's router, by layer.
    """

    def __init__(self, problem: TransformerProblem, moe: Moe) -> None:
        self.problem = problem
        self.copies_by_expert: dict[int, Array] = {}
        self._moe = moe
        self._halves = PendingHalves[tuple[Copies, Flat]](problem)
        self._routed: dict[tuple[int, frozenset[int]], _Routed] = {}
        self._num_dropped = 0

    def experts_of(self, parts: Iterable[int], num_parts: int) -> range:
        """Return the experts of neighbouring parts: of one, or of all."""
        size = self.problem.model.num_experts // num_parts
        found = sorted(parts)
        return range(found[0] * size, (found[-1] + 1) * size)

    def exchanged(self, values: Sequence[Any], results: Sequence[Any]) -> list[Copies]:
        """Return what the members of an exchange get."""
        contents: list[Copies] = [value._content for value in values]
        everything = reduce(Copies.add, contents)
        return [
            everything.of(result.samples, result.sequence, self.experts_of(result.parts, result.num_parts))
            for result in results
        ]

    def route(self, done: Computed, x: Tokens, weight: Flat) -> Copies:
        """Return the copies of tokens that the router makes, and tell the model how many it drops."""
        require_capacity(done, self.problem.capacity_factor)
        layer = done.layer
        weights = units.by_name(weight.values, self.problem.units[layer], _part_of(weight))
        inner, rest = self._moe.routed(weights, x)
        tokens, logits = self._moe.split(inner)
        found = self._routed[layer, done.inp.samples] = _Routed(x, logits, weights.arrays.get("router.bias"), rest)
        routing = self._routing(found)
        counts = routing.counts()
        self.copies_by_expert[layer] = self.copies_by_expert.get(layer, np.zeros_like(counts)) + counts
        self._num_dropped += routing.num_dropped
        done.model._dropped_copies = self._num_dropped
        return Copies.routed(done, tokens, routing.taken, self.problem.model.num_experts)

    def _routing(self, routed: _Routed, logits: Any = None) -> Routing:
        """Return where tokens are sent, of the router's logits."""
        return routing_of(routed.logits if logits is None else logits, routed.bias, self._moe.rule)

    def forward(self, layer: int, copies: Copies, weight: Flat) -> Copies:
        """Return what experts make of copies of tokens."""
        rows = copies.by_expert()
        weights = units.by_name(weight.values, self.problem.units[layer], _part_of(weight))
        made = self._fed(weights, *rows.values())
        return copies.split_alike(dict(zip(rows, made, strict=True)))

    def _fed(self, weights: units.UnitWeights, *rows: Any) -> tuple[Any, ...]:
        """Return what the experts of a part make of the rows for each, one after the other."""
        bias = weights.arrays.get("experts.down.bias")
        made = [self._moe.expert(place)(weights, each) for place, each in enumerate(rows)]
        return tuple(made if bias is None else [each + bias[place] for place, each in enumerate(made)])

    def backward(self, layer: int, copies: Copies, grad: Copies, weight: Flat) -> tuple[Flat, Copies]:
        """Return the gradients of the experts' weights, and those of the copies."""
        rows, part = copies.by_expert(), _part_of(weight)
        of_weights, of_rows = units.gradients(
            self._fed, weight.values, self.problem.units[layer], part, [*rows.values()], *grad.by_expert().values()
        )
        return Flat(of_weights, part), copies.split_alike(dict(zip(rows, of_rows, strict=True)))

    def backward_input(self, layer: int, samples: frozenset[int], copies: Copies, grad: Copies, weight: Flat) -> Copies:
        """Return the gradients of the copies, and keep those of the weights."""
        weight_grad, of_copies = self.backward(layer, copies, grad, weight)
        self._halves.keep(layer, samples, (grad, weight_grad))
        return of_copies

    def backward_weight(self, layer: int, samples: frozenset[int], grad: Copies) -> Flat:
        """Return the gradients of the experts' weights, once for each `backward_input`.

        Raises:
            LawError: there was none on this rank, for these samples and this gradient.
        """
        _, weight_grad = self._halves.take(layer, samples, lambda half: half[0] is grad)
        return weight_grad

    def combine(self, done: Computed, _x: Any, outputs: Copies, _weight: Any) -> Tokens:
        """Return the weighted sum, with shared experts and residual."""
        routed = self._find(done)
        return routed.x.with_values(routed.rest + self._routing(routed).combine(outputs.by_expert()))

    def backward_combine(self, done: Computed, _: Any, outputs: Copies, grad: Tokens) -> Copies:
        """Return the gradients of what the experts made, and keep that of the logits."""
        routed, rows = self._find(done), outputs.by_expert()

        def combine(logits: Any, *of_experts: Any) -> Any:
            return self._routing(routed, logits).combine(dict(zip(rows, of_experts, strict=True)))

        routed.of_logits, *of_rows = gradients(combine, [routed.logits, *rows.values()], grad.values)
        return outputs.split_alike(dict(zip(rows, of_rows, strict=True)))

    def backward_route(
        self, done: Computed, _: Any, grad: Tokens, of_copies: Copies, weight: Flat
    ) -> tuple[Flat, Tokens]:
        """Return the gradients of the router piece and of the unit's input."""
        routed = self._find(done)
        del self._routed[done.layer, done.inp.samples]
        taken, of_tokens = self._routing(routed).taken, np.zeros_like(grad.values)
        for expert, rows in of_copies.by_expert().items():
            of_tokens[taken[..., expert]] += rows
        of_weights, (of_input,) = units.gradients(
            lambda weights, values: self._moe.routed(weights, routed.x.with_values(values)),
            weight.values,
            self.problem.units[done.layer],
            _part_of(weight),
            [routed.x.values],
            np.concatenate([of_tokens, routed.of_logits], axis=-1),
            grad.values,
        )
        return Flat(of_weights, _part_of(weight)), routed.x.with_values(of_input)

    def _find(self, done: Computed) -> _Routed:
        """Return what the router decided for some samples.

        Raises:
            LawError: it was not on this rank, or has been taken back already.
        """
        layer, name = done.layer, self.problem.units[done.layer].name
        found = self._routed.get((layer, done.inp.samples))
        if found is None or (done.op == "backward_route" and found.of_logits is None):
            raise LawError(
                f"{done.op} of layer {layer} ({name}) needs what was made of the same samples on "
                "the same rank before: route, combine, backward_combine and backward_route go in this order, once each"
            )
        return found


def require_capacity(done: Computed, trained: float | None) -> None:
    """Require of a routing the capacity of experts that is trained with.

    Raises:
        UsageError: it is another one.
    """
    given = done.named.get("capacity_factor")
    if given != trained:
        raise UsageError(
            f"capacity_factor ({given}) of the strategy must be that of what is trained ({trained}), where tokens "
            f"carry numbers; give numerics=TransformerProblem(model, capacity_factor={given})"
        )


def _part_of(weight: Flat) -> units.Part:
    """Return which piece a weight is."""
    part: units.Part = weight.part
    return part
