"""Expert parallelism in numbers: what route, the experts, combine and their backwards compute on one rank.

The arithmetic is that of `moe` and `experts`; here it is taken apart where tokens travel. Copies of tokens are rows by
sample and expert, so that an exchange is nothing but another choice of samples and experts. An expert adds the bias of
its last matrix itself, before its output is weighted.

What the router has decided stays on the rank until `backward_route`, and so does the gradient of its logits, which
`backward_combine` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, cast, final

import numpy as np

from minitrain.errors import LawError, UsageError
from minitrain.numerics.arithmetic import Array
from minitrain.numerics.arrays import Flat
from minitrain.numerics.elementary import over_tokens
from minitrain.numerics.experts import Routing
from minitrain.numerics.moe import Moe
from minitrain.numerics.placing import placed
from minitrain.numerics.split_backward import PendingHalves
from minitrain.numerics.tokens import Tokens
from minitrain.numerics.transformer_problem import TransformerProblem
from minitrain.numerics.unit_weights import Part, UnitWeights, by_name, flattened, taken
from minitrain.numerics.units import bias_gradient
from minitrain.tensors.sequence_parts import SequencePart

Origin = tuple[int, int, int]
"""Where copies come from: a sample, the first of a rank's shards of its sequence, and the piece of these shards."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """The numbers of copies of tokens, or of what experts made of them.

    Args:
        rows: copies x hidden_size, by origin and expert.
    """

    rows: Mapping[Origin, Mapping[int, Array]]

    def add(self, other: Copies) -> Copies:
        """Return the copies of both, of other samples or other experts."""
        origins = sorted({*self.rows, *other.rows})
        return Copies({origin: {**self.rows.get(origin, {}), **other.rows.get(origin, {})} for origin in origins})

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


@final
@dataclass(slots=True, eq=False)
class _Routed:
    """What the router made of some samples, until they have gone back.

    Args:
        weights: the router piece.
        x: the layer's input.
        tokens: the same, normed.
        routing: where tokens are sent.
        of_logits: the gradient of the logits, once it is known.
    """

    weights: UnitWeights
    x: Tokens
    tokens: Array
    routing: Routing
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

    def load(self, layer: int, part: Part) -> Flat:
        """Return the initial weights of a piece."""
        values = taken(self.problem.initial_weight(layer), self.problem.units[layer], part)
        return Flat(placed(values, self.problem), part)

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

    def require_capacity(self, capacity_factor: float | None) -> None:
        """Require the capacity that one device is computed with.

        Raises:
            UsageError: it is another one.
        """
        if capacity_factor != self.problem.capacity_factor:
            raise UsageError(
                f"capacity_factor ({capacity_factor}) of the strategy must be that of what is trained "
                f"({self.problem.capacity_factor}), where tokens carry numbers; give "
                f"numerics=TransformerProblem(model, capacity_factor={capacity_factor})",
                capacity_factor=capacity_factor,
            )

    def route(
        self, layer: int, samples: frozenset[int], sequence: SequencePart, x: Tokens, weight: Flat
    ) -> tuple[Copies, int]:
        """Return the copies of tokens that the router makes, and how many it drops."""
        weights = by_name(weight.values, self.problem.units[layer], _part_of(weight))
        inner = self._moe.before(weights, x)
        tokens, routing = self._moe.split(inner.values)[0], self._moe.routing(weights, inner)
        self._routed[layer, samples] = _Routed(weights, x, tokens, routing)
        counts = routing.counts()
        self.copies_by_expert[layer] = self.copies_by_expert.get(layer, np.zeros_like(counts)) + counts
        everybody = range(self.problem.model.num_experts)
        first, (piece,) = min(sequence.shards), sequence.pieces
        rows = {
            (sample, first, piece): {expert: tokens[place][routing.taken[place, :, expert]] for expert in everybody}
            for place, sample in enumerate(sorted(samples))
        }
        return Copies(rows), routing.num_dropped

    def forward(self, layer: int, copies: Copies, weight: Flat) -> Copies:
        """Return what experts make of copies of tokens."""
        weights, first = self._experts(layer, weight)
        return copies.split_alike(
            {
                expert: self._moe.expert(expert - first)(weights, rows) + _own_bias(weights, expert - first)
                for expert, rows in copies.by_expert().items()
            }
        )

    def backward(self, layer: int, copies: Copies, grad: Copies, weight: Flat) -> tuple[Flat, Copies]:
        """Return the gradients of the experts' weights, and those of the copies."""
        weights, first = self._experts(layer, weight)
        of_outputs, of_copies, found = grad.by_expert(), {}, []
        for expert, rows in copies.by_expert().items():
            through, grads = self._moe.expert(expert - first).backward(weights, rows, of_outputs[expert])
            if "experts.down.bias" in weights.arrays:
                grads["experts.down.bias"] = partial(over_tokens, of_outputs[expert])
            of_copies[expert] = through
            found.append(grads)
        stacked = {name: np.stack([grads[name]() for grads in found]) for name in found[0]}
        return self._flat(layer, stacked, weight), copies.split_alike(of_copies)

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

    def combine(self, layer: int, samples: frozenset[int], outputs: Copies) -> Tokens:
        """Return the weighted sum, with shared experts and residual."""
        routed = self._find("combine", layer, samples)
        total = routed.x.values + routed.routing.combine(outputs.by_expert())
        if self.problem.model.num_shared_experts:
            shared = self._moe.shared(routed.weights, routed.tokens)
            total = total + shared + routed.weights.bias("shared.down.bias")
        return routed.x.with_values(total)

    def backward_combine(self, layer: int, samples: frozenset[int], outputs: Copies, grad: Tokens) -> Copies:
        """Return the gradients of what the experts made, and keep that of the logits."""
        routed = self._find("backward_combine", layer, samples)
        of_rows, routed.of_logits = routed.routing.combine_backward(grad.values, outputs.by_expert())
        return outputs.split_alike(of_rows)

    def backward_route(
        self, layer: int, samples: frozenset[int], grad: Tokens, of_copies: Copies, weight: Flat
    ) -> tuple[Flat, Tokens]:
        """Return the gradients of the router piece and of the unit's input."""
        routed = self._find("backward_route", layer, samples)
        del self._routed[layer, samples]
        weights, x, tokens, routing = routed.weights, routed.x, routed.tokens, routed.routing
        gradients = dict[str, Callable[[], Array]]()
        of_tokens = np.zeros_like(tokens)
        for expert, rows in of_copies.by_expert().items():
            of_tokens[routing.taken[..., expert]] += rows
        if self.problem.model.num_shared_experts:
            through, gradients = self._moe.shared.backward(weights, tokens, grad.values)
            of_tokens += through
            gradients |= bias_gradient(weights, "shared.down.bias", grad.values)
        of_inner = np.concatenate([of_tokens, routed.of_logits], axis=-1)
        of_input, before = self._moe.before_backward(weights, x, of_inner)
        found = {name: gradient() for name, gradient in {**gradients, **before}.items()}
        return self._flat(layer, found, weight), x.with_values(of_input + grad.values)

    def _find(self, op: str, layer: int, samples: frozenset[int]) -> _Routed:
        """Return what the router decided for some samples.

        Raises:
            LawError: it was not on this rank, or has been taken back already.
        """
        found = self._routed.get((layer, samples))
        if found is None or (op == "backward_route" and found.of_logits is None):
            raise LawError(
                f"{op} of layer {layer} ({self.problem.units[layer].name}) needs what was made of the same samples on "
                "the same rank before: route, combine, backward_combine and backward_route go in this order, once each"
            )
        return found

    def _experts(self, layer: int, weight: Flat) -> tuple[UnitWeights, int]:
        """Return a part of the experts by name, and which expert is its first."""
        part = _part_of(weight)
        size = self.problem.model.num_experts // part.num_expert_parts
        return by_name(weight.values, self.problem.units[layer], part), part.expert_index * size

    def _flat(self, layer: int, arrays: Mapping[str, Array], weight: Flat) -> Flat:
        """Return gradients of a piece as one array."""
        part = _part_of(weight)
        return Flat(flattened(arrays, self.problem.units[layer], part), part)


def _part_of(weight: Flat) -> Part:
    """Return which piece a weight is."""
    part: Part = weight.part
    return part


def _own_bias(weights: UnitWeights, place: int) -> Array | float:
    """Return an expert's bias of the last matrix, if there is one."""
    biases = weights.bias("experts.down.bias")
    return biases if isinstance(biases, float) else cast("Array", biases[place])
