"""The check that a run has trained the model: every layer's final weight, over all ranks, and whole checkpoints.

What a rank begins a step of a longer run with: in later steps the weights that it ended the one before with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from minitrain.errors import LawError
from minitrain.operations.collectives import describe
from minitrain.tensors import OptState, Weight
from minitrain.tensors.index_sets import ranges
from minitrain.tensors.placed import ExpertOptState, ExpertWeight, RouterWeight, WeightPart

IN_PARTS = frozenset({WeightPart, ExpertWeight})
"""The weights of which ranks hold parts: of whole layers, or of a layer's experts."""


class TrainedRank(Protocol):
    """The part of a rank's model that is read after the run."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def num_layers(self) -> int:
        """Layers of the trained model."""

    @property
    def final_weights(self) -> Mapping[int, Weight]:
        """Final weight by layer."""

    @property
    def final_experts(self) -> Mapping[int, Weight]:
        """Final weight of this rank's experts by layer."""

    @property
    def written(self) -> Sequence[Any]:
        """Copies of what this rank has written to the storage."""

    @property
    def _runtime_predictor(self) -> Any:
        """What knows the workload."""


def check_final_weights(models: Sequence[TrainedRank]) -> None:
    """Verify that every layer has a final weight: complete over all ranks, one step on, equal across replicas.

    Args:
        models: the model of each rank, after the run.

    Raises:
        LawError: a layer's final weight is missing, incomplete, not of step 1, or differs between the ranks.
    """
    weights, experts = _by_layer(models, "final_weights"), _by_layer(models, "final_experts")
    is_divided = any(_are_divided(model.final_weights) or model.final_experts for model in models)
    for layer in range(models[0].num_layers):
        found = weights[layer]
        if not found:
            raise LawError(
                f"layer {layer} has no final weight on any rank; call model.set_final_weight({layer}, weight) where "
                "its last update was",
                layer=layer,
            )
        if is_divided:
            _require_both_pieces(layer, found, experts[layer])
        for of_part in (*_by_part(layer, found), *_by_part(layer, experts[layer])) if is_divided else (found,):
            _check_layer(layer, of_part)
    if any(model.written for model in models):
        _check_checkpoints(models, weights, experts)


def _check_checkpoints(
    models: Sequence[TrainedRank],
    weights: Mapping[int, Sequence[tuple[int, Weight]]],
    experts: Mapping[int, Sequence[tuple[int, Weight]]],
) -> None:
    """Verify that what ranks have written of each step is whole: every weight that is trained, and its state."""
    found: defaultdict[tuple[int, bool, bool, int], list[tuple[int, Any]]] = defaultdict(list)
    for model in models:
        for tensor in model.written:
            if isinstance(tensor, Weight | OptState):
                is_expert = isinstance(tensor, ExpertWeight | ExpertOptState)
                found[tensor.step, isinstance(tensor, Weight), is_expert, tensor.layer].append((model.rank, tensor))
    trained = getattr(models[0]._runtime_predictor.workload, "trained_share", lambda _: 1.0)
    wanted = [
        (step, is_weight, is_expert, layer)
        for step in sorted({step for step, *_ in found})
        for is_expert, held in ((False, weights), (True, experts))
        for layer in sorted(held)
        if held[layer] and trained(held[layer][0][1])
        for is_weight in (True, False)
    ]
    for step, is_weight, is_expert, layer in wanted:
        what = f"the {'weight' if is_weight else 'optimizer state'} of {'the experts of ' * is_expert}layer {layer}"
        pieces = found.get((step, is_weight, is_expert, layer), [])
        missing = "all of it" if not pieces else _missing([tensor for _, tensor in pieces])
        if missing:
            raise LawError(
                f"the checkpoint of step {step} is incomplete: {what} lacks {missing}; a checkpoint has every weight "
                "and every optimizer state of one step, so that training can go on from it",
                layer=layer,
            )


def _missing(pieces: Sequence[Any]) -> str:
    """Return in words what some pieces of one tensor, of equal division, leave out."""
    parts: defaultdict[frozenset[int], set[int]] = defaultdict(set)
    for piece in pieces:
        parts[frozenset(getattr(piece, "parts", (0,)))] |= set(piece.shards)
    first, num_parts = pieces[0], getattr(pieces[0], "num_parts", 1)
    lost = set(range(num_parts)).difference(*parts)
    if lost:
        return f"part {ranges(lost)} of {num_parts}"
    shards = set.union(*(set(range(first.num_shards)) - held for held in parts.values()))
    return f"shard {ranges(shards)} of {first.num_shards}" if shards else ""


def _are_divided(weights: Mapping[int, Weight]) -> bool:
    """Return whether some weights are parts of layers, or pieces of layers with experts."""
    return not {WeightPart, RouterWeight}.isdisjoint(map(type, weights.values()))


def _by_layer(models: Sequence[TrainedRank], name: str) -> Mapping[int, list[tuple[int, Weight]]]:
    """Return ranks and their final weights by layer; each rank is asked once, not once a layer."""
    found: defaultdict[int, list[tuple[int, Weight]]] = defaultdict(list)
    for model in models:
        rank = model.rank
        for layer, weight in getattr(model, name).items():
            found[layer].append((rank, weight))
    return found


def _require_both_pieces(layer: int, found: Sequence[tuple[int, Weight]], experts: Sequence[object]) -> None:
    """Verify that a layer is whole on all ranks, or that there are experts beside what all ranks hold of it."""
    are_routers = {isinstance(weight, RouterWeight) for _, weight in found}
    if are_routers == {bool(experts)}:
        return
    if experts or len(are_routers) > 1:
        raise LawError(
            f"the final weights of layer {layer} must be whole on all ranks, or router pieces on all with experts "
            f"beside them; got {', '.join(sorted({describe(weight) for _, weight in found}))}"
            + (" and experts" if experts else ""),
            layer=layer,
        )
    raise LawError(
        f"the final weight of layer {layer} is incomplete: its experts are on no rank; call "
        f"model.set_final_weight({layer}, experts) too",
        layer=layer,
    )


def _by_part(layer: int, found: Sequence[tuple[int, Weight]]) -> Iterable[Sequence[tuple[int, Weight]]]:
    """Return the final weights of each part of a layer; all parts must be there, of one division."""
    if IN_PARTS.isdisjoint({type(weight) for _, weight in found}):
        return [found] if found else []
    first_rank, first = found[0]
    parts: defaultdict[frozenset[int], list[tuple[int, Weight]]] = defaultdict(list)
    for rank, weight in found:
        if getattr(weight, "num_parts", 1) != getattr(first, "num_parts", 1):
            raise LawError(
                f"the final weights of layer {layer} must be of parts of one division on all ranks, got "
                f"{describe(first)} on rank {first_rank} and {describe(weight)} on rank {rank}",
                layer=layer,
                rank=rank,
            )
        parts[weight.parts].append((rank, weight))
    missing = ranges(set(range(first.num_parts)).difference(*parts))
    if missing:
        raise LawError(
            f"the final weight of layer {layer} is incomplete: part {missing} of {first.num_parts} is on no rank",
            layer=layer,
        )
    return parts.values()


def _check_layer(layer: int, found: Sequence[tuple[int, Weight]]) -> None:
    """Verify the final weights of one layer."""
    first_rank, first = found[0]
    shards: set[int] = set()
    for rank, weight in found:
        if weight.step != 1:
            raise LawError(
                f"the final weight of layer {layer} on rank {rank} must have seen exactly one update, got "
                f"{describe(weight)}",
                layer=layer,
                rank=rank,
            )
        if weight.num_shards != first.num_shards:
            raise LawError(
                f"the final weights of layer {layer} must be cut alike on all ranks, got {describe(first)} on rank "
                f"{first_rank} and {describe(weight)} on rank {rank}",
                layer=layer,
                rank=rank,
            )
        if len(shards) < first.num_shards:  # a thousand replicas may hold a thousand shards each: one will do
            shards |= weight.shards
    if len(shards) != first.num_shards:
        missing = sorted(set(range(first.num_shards)) - shards)
        raise LawError(
            f"the final weight of layer {layer} is incomplete: shards {missing[:8]} of {first.num_shards} are on no "
            "rank",
            layer=layer,
            missing=missing,
        )


@dataclass(slots=True)
class Entry:
    """How a rank begins a step.

    Args:
        follows: whether another one was before it, so that loading finds the weights in memory.
        loaded: the weights that it has loaded in this step.
    """

    follows: bool
    loaded: list[Any] = field(default_factory=list)


def note_of(weight: Weight) -> Weight:
    """Return a copy of a weight that says what it is of, and that nobody counts."""
    kind: Any = weight.__class__
    copy: Weight = kind(*[getattr(weight, name) for name in kind.__dataclass_fields__])
    return copy


def require_handed_on(models: Sequence[TrainedRank]) -> None:
    """Require that each rank has handed in what it begins the next step with.

    Raises:
        LawError: it has not.
    """
    for model in models:
        rank = getattr(model, "_rank", model.rank)
        for weight in _not_loaded(model):
            finals = model.final_experts if isinstance(weight, ExpertWeight) else model.final_weights
            handed = finals.get(weight.layer)
            instead = "none of it" if handed is None else describe(handed)
            raise LawError(
                f"rank {rank} begins a step with {describe(weight)} and ends it with {instead}; the next step "
                f"begins with what set_final_weight({weight.layer}, ...) was given, so hand in all that a rank loads",
                rank=rank,
                layer=weight.layer,
            )


def _not_loaded(model: TrainedRank) -> Iterator[Weight]:
    """Yield the weights that a rank has loaded and not handed in."""
    entry: Entry | None = getattr(model, "_entry", None)
    for weight in () if entry is None else entry.loaded:
        finals = model.final_experts if isinstance(weight, ExpertWeight) else model.final_weights
        handed: Any = finals.get(weight.layer)
        are_of_one_part = handed.__class__ is weight.__class__ and (handed.parts, handed.num_parts) == (
            weight.parts,
            weight.num_parts,
        )
        if not are_of_one_part or not _has_shards(handed, weight):
            yield weight


def _has_shards(handed: Weight, weight: Weight) -> bool:
    """Return whether what was handed in has the shards of what was loaded."""
    if handed.is_complete():
        return True
    return handed.num_shards == weight.num_shards and handed.shards.issuperset(weight.shards)
