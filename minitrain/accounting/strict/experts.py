"""What a rank of a strict run does with layers whose experts are divided: it follows copies of tokens and pieces.

`forward`, `backward` and `update` are those of `minitrain.accounting.strict.computation`, which take whatever tensors
the engine's operations take. Here are the operations before the experts and after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minitrain.accounting.strict.computation import StrictComputation
from minitrain.accounting.strict.laws import require_step, require_valid
from minitrain.accounting.strict.ledger import Line
from minitrain.accounting.strict.provenance import new_origin
from minitrain.accounting.strict.unusable_tensors import HANDMADE_DETECTION
from minitrain.events import STRIDE
from minitrain.tensors import FIELDS, Activation, ActivationGrad, Weight
from minitrain.tensors.placed import (
    ExpertOptState,
    ExpertOutputsGrad,
    ExpertWeight,
    RoutedTokens,
    RouterGrad,
    RouterOptState,
    RouterWeight,
)
from minitrain.workloads.expert_layers import ROUTER, Piece


@contextmanager
def _by_the_engine() -> Iterator[None]:
    """Let the engine make tensors meanwhile."""
    HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_operations
    try:
        yield
    finally:
        HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_strategies


class StrictExperts(StrictComputation):
    """The operations around experts; each adds what those of `StrictComputation` add."""

    def load_router(self, layer: int, shard: int = 0, num_shards: int = 1) -> tuple[RouterWeight, RouterOptState]:
        """Load what every rank holds of a layer with experts; see `Model.load_router`."""
        self._sample()
        with _by_the_engine():
            loaded = super().load_router(layer, shard, num_shards)
        self._shard_counts[len(self._rows) - STRIDE] = 1, num_shards, ROUTER
        self._originate(loaded, None, self._ledger.line())
        return loaded

    def load_experts(
        self, layer: int, shard: int = 0, num_shards: int = 1, *, part: int = 0, num_parts: int = 1
    ) -> tuple[ExpertWeight, ExpertOptState]:
        """Load a part of a layer's experts; see `Model.load_experts`."""
        self._sample()
        with _by_the_engine():
            loaded = super().load_experts(layer, shard, num_shards, part=part, num_parts=num_parts)
        self._shard_counts[len(self._rows) - STRIDE] = 1, num_shards, Piece("experts", num_parts)
        self._originate(loaded, None, self._ledger.line())
        return loaded

    def route(self, layer: int, inp: Activation, weight: Weight, num_parts: int, **how: Any) -> RoutedTokens:
        """Return copies of tokens for the experts; see `Model.route`."""
        self._require("route", weight, inp)
        with _by_the_engine():
            tokens = super().route(layer, inp, weight, num_parts, **how)
        self._originate((tokens,), weight.step, self._ledger.line())
        return tokens

    def combine(self, layer: int, inp: Activation, outputs: Activation, weight: Weight) -> Activation:
        """Add up what experts have made; see `Model.combine`."""
        self._require("combine", weight, inp, outputs)
        with _by_the_engine():
            out = super().combine(layer, inp, outputs, weight)
        self._originate((out,), weight.step, self._ledger.line())
        return out

    def backward_combine(
        self, layer: int, inp: Activation, outputs: Activation, grad: ActivationGrad
    ) -> ExpertOutputsGrad:
        """Take a gradient back to what experts have made; see `Model.backward_combine`."""
        require_valid(self._ledger, "backward_combine", (inp, outputs, grad))
        self._sample()
        with _by_the_engine():
            made = super().backward_combine(layer, inp, outputs, grad)
        self._originate((made,), grad._origin.step, self._ledger.line())
        return made

    def backward_route(
        self, layer: int, inp: Activation, grad: ActivationGrad, tokens_grad: ActivationGrad, weight: Weight
    ) -> tuple[RouterGrad, ActivationGrad]:
        """Take gradients back through shared experts, router and norm; see `Model.backward_route`."""
        self._require("backward_route", weight, inp, grad, tokens_grad)
        with _by_the_engine():
            grads = super().backward_route(layer, inp, grad, tokens_grad, weight)
        self._originate(grads, weight.step, self._ledger.line())
        return grads

    def _require(self, op: str, weight: Any, *values: Any) -> None:
        """Require valid tensors of the weight's step, and note what is held outside the stores."""
        require_valid(self._ledger, op, (*values, weight))
        for value in values:
            if value.__class__ in FIELDS and weight.__class__ in FIELDS:  # the operation refuses what is no tensor
                require_step(self._ledger, op, "what is given", value, weight.step)
        self._sample()

    def _sample(self) -> None:
        """Note what is held outside the stores while an operation begins, if it was never more."""
        ledger = self._ledger
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))

    def _originate(self, made: Sequence[Any], step: int | None, line: Line) -> None:
        """Give what an operation has made its origin."""
        for tensor in made:
            fields = FIELDS[tensor.__class__](tensor)
            tensor._origin = new_origin(self._ledger, tensor._units, fields, step, line)
