"""The memory of each rank over time, in elements: all of it, by kind, and the moment at which it was highest.

The log states the memory of a rank at each event. A run that was simulated with `memory_by_kind=True` also has a
journal of every change of every store, so that memory can be split into weights, gradients, optimizer state,
activations and tensors in flight. A change is dated to the submission of the operation that follows it, as is the
memory that the log states; a change after the last operation is dated to the rank's last end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minitrain.operations import STORE_NAMES, MemoryChange
from minitrain.run.analysis.labels import duration, size
from minitrain.run.analysis.timeline import NO_LAYER, NONE, Floats, Ints, Timeline
from minitrain.tensors.index_sets import ranges

Journals = Sequence[Sequence[MemoryChange]]


class Curve(NamedTuple):
    """A step function: `memory` elements from `time` (s) on, until the next time."""

    time: Floats
    memory: Floats


def memory_curve(timeline: Timeline, rank: int, step_end: float) -> Curve:
    """Return the memory of one rank at every sample of its log, to the step's end."""
    own = slice(int(timeline.starts[rank]), int(timeline.starts[rank + 1]))
    time, memory = timeline.sampled[own], timeline.memory[own]
    last = memory[-1:] if len(memory) else np.zeros(1)
    return Curve(np.concatenate([time, [step_end]]), np.concatenate([memory, last]))


def highest_in_spans(timeline: Timeline, step_end: float, num_spans: int) -> Floats:
    """Return the most memory each rank held in each of equal spans of the step, (num_ranks, num_spans).

    No peak is lost, whatever the number of spans. Before its first sample a rank counts as empty.
    """
    scale = num_spans / step_end if step_end > 0 else 0.0
    span = np.clip((timeline.sampled * scale).astype(np.int64), 0, num_spans - 1)
    highest = np.zeros((timeline.num_ranks, num_spans))
    np.maximum.at(highest, (timeline.rank, span), timeline.memory)
    return np.maximum(highest, _carried(timeline, span, num_spans))


def _carried(timeline: Timeline, span: Ints, num_spans: int) -> Floats:
    """Return the memory that each rank held when each span began."""
    latest = np.full((timeline.num_ranks, num_spans), -1)
    # events come in the order of time on each rank, so the highest index is the latest sample
    np.maximum.at(latest, (timeline.rank, span), np.arange(timeline.num_events))
    before = np.full_like(latest, -1)
    before[:, 1:] = np.maximum.accumulate(latest, axis=1)[:, :-1]
    padded = np.append(timeline.memory, 0.0)
    return padded[before]


def curves_by_kind(timeline: Timeline, journals: Journals, rank: int, step_end: float) -> dict[str, Curve]:
    """Return what a rank held of each kind that it ever held: a value for each moment at which anything changed.

    All curves have the same times. Several changes at one moment are one step, to what was held after all of them.
    """
    places = np.array([change.place for change in journals[rank]], np.int64)
    moments, first = np.unique(places, return_index=True)
    time = np.append(moment_times(timeline, rank)[moments], step_end)
    found = {}
    for kind, name in STORE_NAMES.items():
        sizes = [change.elements if change.kind == kind else 0.0 for change in journals[rank]]
        if any(sizes):
            level = np.cumsum(sizes)[np.append(first[1:], len(places)) - 1]
            found[name] = Curve(time, np.append(level, level[-1:]))
    return found


def moment_times(timeline: Timeline, rank: int) -> Floats:
    """Return when a rank submitted each of its operations, and its last end, s."""
    own = slice(int(timeline.starts[rank]), int(timeline.starts[rank + 1]))
    return np.append(timeline.sampled[own], timeline.end[own].max(initial=0.0))


@dataclass(frozen=True, slots=True)
class HighWater:
    """The moment at which a rank held most.

    Args:
        rank: which rank.
        time: when, s.
        elements: how much, elements.
        held: elements by kind then; one "all" where no journal was kept.
        event: the last operation that the rank had submitted by then, or `NONE`.
        grew: the kind whose growth reached it, "" where no journal was kept.
    """

    rank: int
    time: float
    elements: float
    held: dict[str, float]
    event: int
    grew: str

    def text(self, timeline: Timeline, bytes_per_element: float, moment: str = "") -> str:
        """Say when (in words of the caller's, if given), where, after what, and what the memory consisted of."""
        parts = sorted(self.held.items(), key=lambda item: -item[1])
        held = ", ".join(f"{name} {size(elements * bytes_per_element)}" for name, elements in parts if elements > 0)
        after = f" after {_named(timeline, self.event)}" if self.event != NONE else ""
        whole = size(self.elements * bytes_per_element, ".4g") + ("" if self.grew else " between operations")
        kinds = f" ({held})" if self.grew else ""
        return f"{whole} on rank {timeline.rank_name(self.rank)} at {moment or duration(self.time)}{after}{kinds}"


def _named(timeline: Timeline, event: int) -> str:
    """Name an operation with its layer and samples."""
    layer = "" if timeline.layer[event] == NO_LAYER else f" of {timeline.layer_name(int(timeline.layer[event]))}"
    samples = timeline.sample_sets[timeline.samples[event]]
    return f"{timeline.typs[timeline.typ[event]]}{layer}" + (f", samples {ranges(samples)}" if samples else "")


def high_water(timeline: Timeline, journals: Journals = ()) -> list[HighWater]:
    """Return the moment at which each rank held most, and what it held then.

    Journals also show moments between events; without them, only the values that the log states are compared.
    """
    ranks = range(timeline.num_ranks)
    return [_of_journal(timeline, journals[rank], rank) if journals else _of_log(timeline, rank) for rank in ranks]


def _of_journal(timeline: Timeline, journal: Sequence[MemoryChange], rank: int) -> HighWater:
    """Return the high-water mark of a journal."""
    if not journal:
        return HighWater(rank, 0.0, 0.0, {}, NONE, "")
    total: Floats = np.cumsum([change.elements for change in journal])
    top = int(np.argmax(total))
    held = dict.fromkeys(STORE_NAMES.values(), 0.0)
    for change in journal[: top + 1]:
        held[STORE_NAMES[change.kind]] += change.elements
    place = journal[top].place
    time, first = float(moment_times(timeline, rank)[place]), int(timeline.starts[rank])
    grew = STORE_NAMES[journal[top].kind]
    return HighWater(rank, time, float(total[top]), held, first + place - 1 if place else NONE, grew)


def _of_log(timeline: Timeline, rank: int) -> HighWater:
    """Return the highest of the values in the log."""
    first, end = int(timeline.starts[rank]), int(timeline.starts[rank + 1])
    if first == end:
        return HighWater(rank, 0.0, 0.0, {}, NONE, "")
    top = first + int(np.argmax(timeline.memory[first:end]))
    held = float(timeline.memory[top])
    return HighWater(rank, float(timeline.sampled[top]), held, {"all": held}, top - 1 if top > first else NONE, "")
