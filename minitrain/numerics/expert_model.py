"""Expert parallelism on a rank whose tensors carry arrays: the operations before and after the experts compute.

The router's own choice decides which tokens go where, and which an expert with a capacity does not take; prices stay
those of `imbalance`, so that the log is that of a run without numbers. `copies_by_expert` says what the router has
chosen, which can be given as `imbalance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minitrain.numerics.arithmetic import Array
from minitrain.numerics.arrays import Flat
from minitrain.numerics.divided_experts import DividedExperts
from minitrain.numerics.sequence_model import NumericSequences, carry
from minitrain.numerics.transformer_problem import TransformerProblem
from minitrain.numerics.unit_weights import Part
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight
from minitrain.tensors.placed import (
    ExpertOptState,
    ExpertOutputsGrad,
    ExpertWeight,
    RoutedTokens,
    RouterGrad,
    RouterOptState,
    RouterWeight,
)


class NumericExperts(NumericSequences):
    """The operations around experts of a rank that computes; see `minitrain.numerics.model.NumericModel`."""

    @property
    def copies_by_expert(self) -> Mapping[int, Array]:
        """The copies of tokens that each expert of a layer was sent by this rank's router, by layer."""
        return dict(self._divided.copies_by_expert) if isinstance(self.problem, TransformerProblem) else {}

    @property
    def _divided(self) -> DividedExperts:
        """What this rank computes of layers whose experts are divided among ranks."""
        found: DividedExperts = self._layers.divided_experts
        return found

    def _exchange(self, values: Sequence[Any], results: Sequence[Any]) -> None:
        """Give the results of an exchange of copies their numbers."""
        self._contents("all_to_all", *values)
        for result, content in zip(results, self._divided.exchanged(values, results), strict=True):
            carry(result, content)

    def load_router(self, layer: int, shard: int = 0, num_shards: int = 1) -> tuple[RouterWeight, RouterOptState]:
        """Load the initial weights of the router piece."""
        loaded = super().load_router(layer, shard, num_shards)
        self._carry_initial(loaded, layer, Part(piece="router"), shard, num_shards)
        return loaded

    def load_experts(
        self, layer: int, shard: int = 0, num_shards: int = 1, *, part: int = 0, num_parts: int = 1
    ) -> tuple[ExpertWeight, ExpertOptState]:
        """Load the initial weights of a part of the experts."""
        loaded = super().load_experts(layer, shard, num_shards, part=part, num_parts=num_parts)
        which = Part(expert_index=part, num_expert_parts=num_parts, piece="experts")
        self._carry_initial(loaded, layer, which, shard, num_shards)
        return loaded

    def _carry_initial(
        self, loaded: tuple[Weight, OptState], layer: int, part: Part, shard: int, num_shards: int
    ) -> None:
        """Let a loaded piece carry its initial weights, and its optimizer's state zeros."""
        content = self._divided.load(layer, part)
        moments = np.zeros((self.problem.optimizer.num_moments, content.values.size))
        carry(loaded[0], content.shard(shard, num_shards))
        carry(loaded[1], Flat(moments, part).shard(shard, num_shards))

    def route(self, layer: int, inp: Activation, weight: Weight, num_parts: int, **how: Any) -> RoutedTokens:
        """Send tokens where the router says."""
        x, w = self._contents("route", inp, weight)
        dropped = self.dropped_copies
        tokens = super().route(layer, inp, weight, num_parts, **how)
        self._divided.require_capacity(how.get("capacity_factor"))
        copies, num_dropped = self._divided.route(layer, inp.samples, tokens.sequence, x, w)
        self.dropped_copies = dropped + num_dropped
        carry(tokens, copies)
        return tokens

    def combine(self, layer: int, inp: Activation, outputs: Activation, weight: Weight) -> Activation:
        """Add up what experts made."""
        _, made, _ = self._contents("combine", inp, outputs, weight)
        out = super().combine(layer, inp, outputs, weight)
        carry(out, self._divided.combine(layer, inp.samples, made))
        return out

    def backward_combine(
        self, layer: int, inp: Activation, outputs: Activation, grad: ActivationGrad
    ) -> ExpertOutputsGrad:
        """Take a gradient back to what experts made."""
        _, made, g = self._contents("backward_combine", inp, outputs, grad)
        result = super().backward_combine(layer, inp, outputs, grad)
        carry(result, self._divided.backward_combine(layer, inp.samples, made, g))
        return result

    def backward_route(
        self, layer: int, inp: Activation, grad: ActivationGrad, tokens_grad: ActivationGrad, weight: Weight
    ) -> tuple[RouterGrad, ActivationGrad]:
        """Take gradients back through shared experts, router and norm."""
        _, g, of_copies, w = self._contents("backward_route", inp, grad, tokens_grad, weight)
        results = super().backward_route(layer, inp, grad, tokens_grad, weight)
        contents = self._divided.backward_route(layer, inp.samples, g, of_copies, w)
        for result, content in zip(results, contents, strict=True):
            carry(result, content)
        return results
