"""Cutting layers into stages such that the slowest stage is as fast as it can be, with each device's memory as a bound.

Stages come in the order of their devices. The best cut of the first layers into the first stages is extended stage by
stage (dynamic programming), which is exact for contiguous stages, whatever each stage takes and holds for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from minitrain.analysis.timeline import Floats

Table = Sequence[Sequence[float]]
"""A figure of each layer on each stage, (num_stages, num_layers)."""


def balanced_stages(
    seconds: Table, held_bytes: Table | None = None, capacity_bytes: Sequence[float] | None = None
) -> list[int] | None:
    """Return how many layers each stage takes.

    Args:
        seconds: how long each stage would take for each layer, s.
        held_bytes: what each layer would hold on each stage; no bound if None.
        capacity_bytes: what each stage has place for.

    Returns:
        At least one layer a stage; None where memory allows none, or there are fewer layers than stages.

    >>> balanced_stages([[1, 1, 1, 1], [3, 3, 3, 3]])
    [3, 1]
    """
    num_layers = len(seconds[0])
    slowest = np.full(num_layers + 1, np.inf)  # of the best cut of the first layers into the stages so far
    slowest[0] = 0.0
    starts = []  # of each stage, by where it ends
    for stage, row in enumerate(seconds):
        cost = _spans(row)
        if held_bytes is not None and capacity_bytes is not None:
            cost[_spans(held_bytes[stage]) > capacity_bytes[stage]] = np.inf
        reached = np.maximum(slowest[:, None], cost)
        starts.append(reached.argmin(axis=0))
        slowest = reached.min(axis=0)
    if not np.isfinite(slowest[num_layers]):
        return None
    counts, stop = [], num_layers
    for start in reversed(starts):
        counts.append(stop - int(start[stop]))
        stop = int(start[stop])
    return counts[::-1]


def _spans(row: Sequence[float]) -> Floats:
    """Return the sum of layers i to j - 1 at [i, j]; infinity where there is none."""
    sums = np.array([0.0, *accumulate(row)])
    spans: Floats = sums[None, :] - sums[:, None]
    spans[np.tril_indices(len(sums))] = np.inf
    return spans


def slowest_stage(seconds: Table, counts: Sequence[int]) -> float:
    """Return how long the slowest stage takes for its layers, s."""
    starts = [0, *accumulate(counts)]
    return max(sum(row[start : start + count]) for row, start, count in zip(seconds, starts, counts, strict=False))


def pipeline_time(seconds: Table, counts: Sequence[int], num_microbatches: int) -> float:
    """Return the least that a pipeline takes, s.

    A stage does all of its microbatches one after the other. Before its first, the stages before it have taken one
    forward; after its last, they take one backward.

    Args:
        seconds: how long each stage takes for a microbatch of each layer, forward and backward, s.
        counts: the layers of each stage.
        num_microbatches: of the step.

    >>> pipeline_time([[1, 1, 1], [2, 2, 2]], [2, 1], 4)
    10
    """
    starts = [0, *accumulate(counts)]
    stages = [sum(row[start : start + count]) for row, start, count in zip(seconds, starts, counts, strict=False)]
    before = [0.0, *accumulate(stages)]
    return max(num_microbatches * each + first for each, first in zip(stages, before, strict=False))
