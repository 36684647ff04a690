"""Sharing samples by finishing time: one after the other, to the replica that would finish it first.

For replicas whose time grows with their samples this is optimal up to one sample (list scheduling of equal tasks on
uniform machines). Every replica has at least one sample; one that should have none is a device to leave out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

Seconds = Callable[[int], float]
"""How long a replica computes for a number of samples, s; it must not fall as samples grow."""


def samples_by_finishing_time(
    seconds: Sequence[Seconds], num_samples: int, most: Sequence[int] | None = None
) -> list[int] | None:
    """Return the samples of each replica.

    Args:
        seconds: how long each computes for a number of samples.
        num_samples: of the step.
        most: the most samples that each has memory for; no bound if None.

    Returns:
        At least one sample each, in the order of the replicas; None where there are fewer samples than replicas, or
        not enough memory.

    >>> samples_by_finishing_time([lambda n: n, lambda n: 3 * n], 8)
    [6, 2]
    """
    bounds = [num_samples] * len(seconds) if most is None else most
    if num_samples < len(seconds) or min(bounds) < 1 or sum(bounds) < num_samples:
        return None
    samples = [1] * len(seconds)
    queue = [(each(2), place) for place, each in enumerate(seconds) if bounds[place] > 1]
    heapq.heapify(queue)
    for _ in range(num_samples - len(seconds)):
        _, place = heapq.heappop(queue)
        samples[place] += 1
        if samples[place] < bounds[place]:
            heapq.heappush(queue, (seconds[place](samples[place] + 1), place))
    return samples


def finishing_time(seconds: Sequence[Seconds], samples: Sequence[int]) -> float:
    """Return when the last replica has done its samples, s."""
    return max(each(count) for each, count in zip(seconds, samples, strict=True))
