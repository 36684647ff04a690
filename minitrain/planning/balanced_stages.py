"""Cutting layers into stages such that the slowest stage is as fast as it can be, with each device's memory as a bound.

Stages come in the order of their devices. For a limit, each stage takes as many layers as it has time and memory for;
the smallest limit with which all layers find a place is found by bisection over the sums that occur. For contiguous
stages this is exact (the chains-on-chains problem; Pinar and Aykanat 2004).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def balanced_stages(
    seconds: Sequence[Sequence[float]],
    held_bytes: Sequence[Sequence[float]] | None = None,
    capacity_bytes: Sequence[float] | None = None,
) -> list[int] | None:
    """Return how many layers each stage takes.

    Args:
        seconds: how long each stage would take for each layer, s, (num_stages, num_layers).
        held_bytes: what each layer would hold on each stage, in the same form; no bound if None.
        capacity_bytes: what each stage has place for.

    Returns:
        At least one layer a stage; None where memory allows none, or there are fewer layers than stages.

    >>> balanced_stages([[1, 1, 1, 1], [3, 3, 3, 3]])
    [3, 1]
    """
    num_layers = len(seconds[0])
    if num_layers < len(seconds):
        return None
    sums = [[0.0, *accumulate(row)] for row in seconds]
    held = None if held_bytes is None else [[0.0, *accumulate(row)] for row in held_bytes]
    limits = sorted(
        {
            row[stop] - row[start]
            for row in sums
            for start in range(num_layers)
            for stop in range(start + 1, num_layers + 1)
        }
    )
    low, high, best = 0, len(limits) - 1, None
    while low <= high:
        middle = (low + high) // 2
        found = _filled(sums, limits[middle], held, capacity_bytes)
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle - 1
    return best


def _filled(
    sums: Sequence[Sequence[float]],
    limit: float,
    held: Sequence[Sequence[float]] | None,
    capacity_bytes: Sequence[float] | None,
) -> list[int] | None:
    """Return the layers of each stage if none may take longer than a limit; None if some layer finds no place."""
    num_stages, num_layers, start, counts = len(sums), len(sums[0]) - 1, 0, []
    for stage, row in enumerate(sums):
        stop, last = start, num_layers - (num_stages - stage - 1)  # the stages behind need a layer each
        while (
            stop < last
            and row[stop + 1] - row[start] <= limit * (1 + 1e-12)
            and _fits(held, capacity_bytes, stage, start, stop + 1)
        ):
            stop += 1
        if stop == start:
            return None
        counts.append(stop - start)
        start = stop
    return counts if start == num_layers else None


def _fits(
    held: Sequence[Sequence[float]] | None, capacity_bytes: Sequence[float] | None, stage: int, start: int, stop: int
) -> bool:
    """Return whether a stage has memory for some layers."""
    if held is None or capacity_bytes is None:
        return True
    return held[stage][stop] - held[stage][start] <= capacity_bytes[stage]


def slowest_stage(seconds: Sequence[Sequence[float]], counts: Sequence[int]) -> float:
    """Return how long the slowest stage takes for its layers, s."""
    starts = [0, *accumulate(counts)]
    return max(sum(row[start : start + count]) for row, start, count in zip(seconds, starts, counts, strict=False))
