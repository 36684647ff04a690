"""Expert parallelism where ranks fold: each rank of a class loads its own part, and all parts get as many tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minitrain.engine.model import Model
from minitrain.run.folding.attempt import FoldAttempt
from minitrain.run.folding.per_rank_values import PerRankInt
from minitrain.tensors import Activation, OptState, Weight
from minitrain.tensors.placed import ExpertOptState, ExpertWeight, RoutedTokens, RouterOptState, RouterWeight


class FoldedExperts(Model):
    """The operations of a class of ranks on layers with experts; see `minitrain.run.folding.model.FoldedModel`."""

    attempt: FoldAttempt

    def load_router(self, layer: int, shard: Any = 0, num_shards: int = 1) -> tuple[RouterWeight, RouterOptState]:
        """Load one shard of what all ranks hold of a layer with experts, each rank its own."""
        return self._each_its_own(super().load_router, layer, {"shard": shard}, num_shards=num_shards)  # type: ignore[return-value]  # a router piece

    def load_experts(
        self, layer: int, shard: Any = 0, num_shards: int = 1, *, part: Any = 0, num_parts: int = 1
    ) -> tuple[ExpertWeight, ExpertOptState]:
        """Load one part of a layer's experts, or a shard of it, each rank its own."""
        counts = {"num_shards": num_shards, "num_parts": num_parts}
        return self._each_its_own(super().load_experts, layer, {"shard": shard, "part": part}, **counts)  # type: ignore[return-value]  # a part of experts

    def _each_its_own(self, load: Any, layer: int, which: Mapping[str, Any], **counts: int) -> tuple[Weight, OptState]:
        """Load what is of another shard or part on each rank; the laws see the last of them too if it is none."""
        if PerRankInt in map(type, (layer, *counts.values())):
            self._diverge_by({"layer": layer, **counts})
        if PerRankInt not in map(type, which.values()):
            return load(layer, **which, **counts)  # type: ignore[no-any-return]  # weight and state
        differing = {name: value for name, value in which.items() if isinstance(value, PerRankInt)}
        first = {**which, **{name: value.const for name, value in differing.items()}}
        for name, value in differing.items():
            low, high = value.bounds()
            if low < 0 or high >= counts[f"num_{name}s"]:
                load(layer, **{**first, name: min(low, 0) or high}, **counts)  # raises
        weight, state = load(layer, **first, **counts)
        for name, value in differing.items():
            own = value.singleton()
            noted = () if self._entry is None else (self._entry.loaded[-1],)
            for loaded in (weight, state, *noted):
                setattr(loaded, f"{name}s", own)
        return weight, state

    def _diverge_by(self, counts: Mapping[str, Any]) -> None:
        """End the attempt for numbers that must be the same on all ranks."""
        for name, count in counts.items():
            if isinstance(count, PerRankInt):
                what = "a layer" if name == "layer" else f"a number of {name.removeprefix('num_')}"
                self.attempt.diverge(f"{what} that differs between ranks", count.slopes)

    def route(self, layer: int, inp: Activation, weight: Weight, num_parts: int, **how: Any) -> RoutedTokens:
        """Return copies of tokens, of which each part of the experts gets as many."""
        tokens = super().route(layer, inp, weight, num_parts, **how)
        if tokens.load.shares:
            self.attempt.diverge("experts of which some get more tokens than others")
        return tokens
