"""Memory over time, in elements: the exact steps of each rank, or the highest value of each span of time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minitrain.analysis.timeline import Floats, Timeline


class Curve(NamedTuple):
    """A step function: `memory` elements from `time` (s) on, until the next time."""

    time: Floats
    memory: Floats


def curve(timeline: Timeline, rank: int, step_time: float) -> Curve:
    """Return the memory of one rank at every sample of its log, to the step's end."""
    own = slice(int(timeline.starts[rank]), int(timeline.starts[rank + 1]))
    time, memory = timeline.sampled[own], timeline.memory[own]
    last = memory[-1:] if len(memory) else np.zeros(1)
    return Curve(np.concatenate([time, [step_time]]), np.concatenate([memory, last]))


def highest_in_spans(timeline: Timeline, step_time: float, num_spans: int) -> Floats:
    """Return the most memory each rank held in each of equal spans of the step, (num_ranks, num_spans).

    No peak is lost, whatever the number of spans. Before its first sample a rank counts as empty.
    """
    scale = num_spans / step_time if step_time > 0 else 0.0
    span = np.clip((timeline.sampled * scale).astype(np.int64), 0, num_spans - 1)
    highest = np.zeros((timeline.num_ranks, num_spans))
    np.maximum.at(highest, (timeline.rank, span), timeline.memory)
    return np.maximum(highest, _carried(timeline, span, num_spans))


def _carried(timeline: Timeline, span: np.ndarray[tuple[int, ...], np.dtype[np.int64]], num_spans: int) -> Floats:
    """Return the memory each rank held when each span began."""
    latest = np.full((timeline.num_ranks, num_spans), -1)
    # events come in the order of time on each rank, so the highest index is the latest sample
    np.maximum.at(latest, (timeline.rank, span), np.arange(timeline.num_events))
    before = np.full_like(latest, -1)
    before[:, 1:] = np.maximum.accumulate(latest, axis=1)[:, :-1]
    padded = np.append(timeline.memory, 0.0)
    return padded[before]
