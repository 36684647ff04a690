"""What a rank begins a step of a longer run with: in later steps the weights that it ended the one before with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minitrain.errors import LawError
from minitrain.operations.collectives import describe
from minitrain.tensors.placed import ExpertWeight

if TYPE_CHECKING:
    from minitrain.engine.final_weights import TrainedRank
    from minitrain.tensors import Weight


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
        for weight in _missing(model):
            finals = model.final_experts if isinstance(weight, ExpertWeight) else model.final_weights
            handed = finals.get(weight.layer)
            instead = "none of it" if handed is None else describe(handed)
            raise LawError(
                f"rank {rank} begins a step with {describe(weight)} and ends it with {instead}; the next step "
                f"begins with what set_final_weight({weight.layer}, ...) was given, so hand in all that a rank loads",
                rank=rank,
                layer=weight.layer,
            )


def _missing(model: TrainedRank) -> Iterator[Weight]:
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
