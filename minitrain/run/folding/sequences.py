"""Shards of a sequence where ranks fold: ranks with different shards are not folded together.

Such ranks do the same with other shards, and attention costs more towards the end of the sequence. So the axis along
which shards differ is kept apart, as one along which the network has other prices. Tensors say which shards their class
has, so that collectives among classes are completed as where ranks do the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minitrain.run.folding.attempt import FoldAttempt
from minitrain.run.folding.per_rank_values import PerRankInt
from minitrain.tensors.placed import PARTIAL, SHARDS


def keep_shards_apart(attempt: FoldAttempt, shards: Any) -> Any:
    """Return shards of the sequence, which must be the same for all ranks of a class.

    Args:
        attempt: how ranks are folded.
        shards: what the strategy gave; what are no shards is for the engine to refuse.

    Raises:
        DivergesError: they differ between the ranks of a class.
    """
    if not isinstance(shards, Iterable):
        return shards
    listed = list(shards)
    for shard in listed:
        if isinstance(shard, PerRankInt):
            attempt.sequences_differ = True
            attempt.diverge("a shard of the sequence that differs between ranks", shard.slopes)
    return listed


def tells_classes_apart(value: Any) -> bool:
    """Return whether a tensor says what differs between classes: the shards of the sequence that their ranks have."""
    sequence = getattr(value, "sequence", None)  # buckets have none
    return sequence is not None and sequence.num_shards > 1 and not isinstance(value, (*SHARDS, *PARTIAL))
