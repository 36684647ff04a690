"""What a rank holds of its layers: loaded, gathered for use, summed with the ranks that hold the same, and updated.

The ZeRO stage (Rajbhandari et al. 2020) says what these ranks share: 1 optimizer states, 2 gradients, 3 weights. They
may share within groups of `shard_size` and sum over the others, as HSDP does. Gradients are summed at the end of the
step (stages 0 and 1), after each microbatch (2 and 3), or, with `overlap_replicas`, as soon as the last microbatch has
made them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

from minitrain.errors import StrategyError
from minitrain.rank.model import Model
from minitrain.rank.operations import Launched
from minitrain.schedules.division import Division
from minitrain.source_lines import count_as_strategy
from minitrain.tensors import Weight
from minitrain.transport.groups import Group

count_as_strategy(__file__)

ZERO_STAGES = (0, 1, 2, 3)

Steps = Generator[Any, Any, Any]
"""What a rank does; it yields each communication that it waits for, and is sent the result."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A layer, or a piece of one with experts.

    Args:
        layer: which layer.
        sharing: the ranks that share its states.
        others: one rank of each group that does.
        load: loads a shard of it.
        covers_sequence: whether each part's gradient of norms and biases has seen the whole sequence.
    """

    layer: int
    sharing: Group | None
    others: Group | None
    load: Callable[[int, int], tuple[Any, Any]]
    covers_sequence: bool = True


class HeldLayers:
    """What a rank holds.

    Args:
        model: the rank.
        division: how ranks divide layers.
        zero: the ZeRO stage.
        num_microbatches: how many gradients are added to one.
        strategy: name of the strategy, for errors.
        overlap_replicas: whether a gradient is summed under what follows the last microbatch's backward, and weights
            that were updated in shards are gathered under the first forward.
    """

    def __init__(
        self,
        model: Model,
        division: Division,
        zero: int,
        num_microbatches: int,
        strategy: str,
        *,
        overlap_replicas: bool = False,
    ) -> None:
        if isinstance(zero, bool) or zero not in ZERO_STAGES:
            raise StrategyError(f"zero must be a ZeRO stage, 0 to 3, for {strategy}, got {zero!r}")
        self._model, self._division, self._zero = model, division, zero
        self._overlaps = overlap_replicas
        self._num_microbatches = num_microbatches
        self._held: dict[Any, _Held] = {}
        self._collected: dict[Any, int] = {}  # gradients that were added, by key
        self._gathers: dict[Any, Launched[Any]] = {}
        self._reductions: dict[Any, Launched[Any]] = {}
        self._reduction: tuple[Any, Launched[Any]] | None = None

    def load(self, layers: Iterable[int]) -> None:
        """Load layers: of those whose experts are divided, what all ranks hold and this rank's experts."""
        for layer in layers:
            for key, held in self._pieces(layer):
                self._held[key] = held
                self._load(key, held)
        for key, held in self._held.items() if self._overlaps else ():
            if self._zero_of(held):  # the step begins with what the one before has updated
                gathering = self._model.all_gather(self._model.weights[key], held.layer, group=held.sharing)
                self._gathers[key] = self._model.launch(gathering)

    def _pieces(self, layer: int) -> list[tuple[Any, _Held]]:
        """Return what there is of a layer, by key of the stores."""
        model, division = self._model, self._division
        experts, parts = division.experts, division.parts
        if experts is not None and model.has_experts(layer):
            router = _Held(layer, *division.sharing("router"), lambda *shard: model.load_router(layer, *shard))
            part = {"part": experts.index, "num_parts": experts.size}
            own = _Held(layer, *division.sharing("experts"), lambda *shard: model.load_experts(layer, *shard, **part))
            return [(layer, router), (("experts", layer), own)]
        part = {"part": parts.index, "num_parts": parts.size}
        covers = not division.shards_sequence or layer == 0
        return [
            (
                layer,
                _Held(
                    layer, *division.sharing("layer"), lambda *shard: model.load_weights(layer, *shard, **part), covers
                ),
            )
        ]

    def _zero_of(self, held: _Held) -> int:
        """Return the ZeRO stage of what a rank may hold alone."""
        return self._zero if held.sharing is not None else 0

    def _load(self, key: Any, held: _Held) -> None:
        """Load a piece, in shards where its ranks share it."""
        model, zero, sharing = self._model, self._zero_of(held), held.sharing
        shard = (0, 1) if sharing is None else (sharing.index, sharing.size)
        model.weights[key], model.opt_states[key] = held.load(*(shard if zero == 3 else (0, 1)))
        if zero in (1, 2):
            model.opt_states[key] = model.opt_states[key].shard(*shard)
            if self._overlaps:
                model.weights[key] = model.weights[key].shard(*shard)

    def whole(self, key: Any) -> Generator[Any, Any, Weight]:
        """Return a whole weight, gathered where it is in shards; `drop_whole` frees what was gathered for one pass."""
        model = self._model
        if key in self._gathers:
            model.weights[key] = yield self._gathers.pop(key)
        held = self._held[key]
        if self._zero_of(held) < 3:
            return model.weights[key]
        model.weights["whole", key] = yield model.all_gather(model.weights[key], held.layer, group=held.sharing)
        return model.weights["whole", key]

    def drop_whole(self, key: Any) -> None:
        """Free a gathered weight."""
        self._model.weights.pop(("whole", key), None)

    def add(self, key: Any) -> None:
        """Add the new gradient to its total in place, unless its sum over ranks comes first (`reduce`)."""
        self._collected[key] = self._collected.get(key, 0) + 1
        if self._zero_of(self._held[key]) < 2:
            self._accumulate(key, self._model.grad_weights.pop("new"))

    def reduce(self, key: Any) -> Steps:
        """Begin to sum a gradient over the ranks that hold the same, if it is time for it."""
        model, held = self._model, self._held[key]
        if self._zero_of(held) >= 2:
            yield from self._cover("new", held)
            yield from self.finish_reduction()
            operation = model.reduce_scatter(model.grad_weights.pop("new"), held.layer, group=held.sharing)
            self._reduction = key, model.launch(operation)
        elif self._overlaps and held.sharing is not None and self._collected[key] == self._num_microbatches:
            yield from self._cover(key, held)
            self._reductions[key] = model.launch(self._sum_over_replicas(key, held))

    def finish_reduction(self) -> Steps:
        """Add the shard of the gradient that is being reduced, if there is one."""
        if self._reduction is not None:
            (key, launched), self._reduction = self._reduction, None
            self._accumulate(key, (yield launched))

    def _accumulate(self, key: Any, grad: Any) -> None:
        """Add a gradient to a total in place: the first one becomes the total."""
        total = self._model.grad_weights.get(key)
        self._model.grad_weights[key] = grad if total is None else total + grad

    def _cover(self, key: Any, held: _Held) -> Steps:
        """Complete a gradient: for norms and biases, a rank has seen a shard of the sequence."""
        if not held.covers_sequence:
            grads, parts = self._model.grad_weights, self._division.parts
            grads[key] = yield self._model.all_reduce(grads[key], held.layer, group=parts)

    def _sum_over_replicas(self, key: Any, held: _Held) -> Any:
        """Return the operation that sums a gradient over the ranks that share, in shards with ZeRO."""
        reduce = self._model.reduce_scatter if self._zero_of(held) else self._model.all_reduce
        return reduce(self._model.grad_weights.pop(key), held.layer, group=held.sharing)

    def update(self) -> Steps:
        """Take the optimizer's step on all that the rank holds."""
        yield from self.finish_reduction()
        for key, held in self._held.items():
            yield from self._total(key, held)
            yield from self._update(key, held)

    def _total(self, key: Any, held: _Held) -> Steps:
        """Complete the sum of a gradient over all ranks that hold the same."""
        model, grads = self._model, self._model.grad_weights
        if key in self._reductions:
            grads[key] = yield self._reductions.pop(key)
        elif self._zero_of(held) < 2:
            yield from self._cover(key, held)
            if held.sharing is not None:
                grads[key] = yield self._sum_over_replicas(key, held)
        if held.others is not None:
            grads[key] = yield model.all_reduce(grads[key], held.layer, group=held.others)

    def _update(self, key: Any, held: _Held) -> Steps:
        """Update a piece, or the shard of it that the rank holds states of."""
        model, zero, layer = self._model, self._zero_of(held), held.layer
        weight = model.weights[key]
        if zero in (1, 2) and held.sharing is not None:
            weight = weight.shard(held.sharing.index, held.sharing.size)
        model.weights[key], model.opt_states[key] = model.update(
            layer, model.grad_weights[key], weight, model.opt_states[key]
        )
        del model.grad_weights[key], weight
        if zero in (1, 2) and not self._overlaps:
            model.weights[key] = yield model.all_gather(model.weights[key], layer, group=held.sharing)
        model.set_final_weight(layer, model.weights[key])
