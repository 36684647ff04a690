"""Memory by kind: what each rank holds of weights, gradients, optimizer state, activations and what is in flight.

A run keeps a journal of every change of every store on request (`simulate(..., memory_by_kind=True)`). A change is
dated to the submission of the operation that follows it, as the memory that the log states is; the last changes, after
which nothing is logged, to the rank's last end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minitrain.analysis.labels import duration, ranges
from minitrain.analysis.memory_curves import Curve
from minitrain.analysis.timeline import NO_LAYER, NONE, Floats, Timeline
from minitrain.events import MemoryChange

GIB = 2**30

Journals = Sequence[Sequence[MemoryChange]]

STORE_NAMES = {
    "weights": "weights",
    "opt_states": "optimizer state",
    "grad_weights": "gradients",
    "activations": "activations",
    "grad_activations": "activation gradients",
    "in_flight": "in flight",
}
"""Name of each store in words, in the order in which they are stacked."""


@dataclass(frozen=True, slots=True)
class HighWater:
    """The moment at which a rank held most.

    Args:
        rank: which rank.
        time: when, s.
        elements: how much, elements.
        held: elements by kind then; one "all" where no journal was kept.
        event: the operation that the rank had submitted last, or `NONE`.
        grew: the kind that grew to it, "" where no journal was kept.
    """

    rank: int
    time: float
    elements: float
    held: dict[str, float]
    event: int
    grew: str

    def text(self, timeline: Timeline, bytes_per_element: float) -> str:
        """Say when, where, after what, and what the memory consisted of."""
        parts = sorted(self.held.items(), key=lambda item: -item[1])
        held = ", ".join(f"{name} {size * bytes_per_element / GIB:.3g} GiB" for name, size in parts if size > 0)
        after = f" after {_named(timeline, self.event)}" if self.event != NONE else ""
        size = f"{self.elements * bytes_per_element / GIB:.4g} GiB"
        return f"{size} on rank {self.rank} at {duration(self.time)}{after}" + (f" ({held})" if self.grew else "")


def _named(timeline: Timeline, event: int) -> str:
    """Name an operation with its layer and samples."""
    layer = "" if timeline.layer[event] == NO_LAYER else f" of layer {timeline.layer[event]}"
    samples = timeline.sample_sets[timeline.samples[event]]
    return f"{timeline.typs[timeline.typ[event]]}{layer}" + (f", samples {ranges(samples)}" if samples else "")


def curves_by_kind(timeline: Timeline, journals: Journals, rank: int, step_time: float) -> dict[str, Curve]:
    """Return what a rank held of each kind that it ever held: a value for each moment at which anything changed.

    All curves have the same times. Several changes at one moment are one step, to what was held after all of them.
    """
    places = np.array([change.place for change in journals[rank]], np.int64)
    moments, first = np.unique(places, return_index=True)
    time = np.append(moment_times(timeline, rank)[moments], step_time)
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


def high_water(timeline: Timeline, journals: Journals = ()) -> list[HighWater]:
    """Return the moment at which each rank held most, and what made it.

    With journals it is found between events too; without them, among the values that the log states.
    """
    ranks = range(timeline.num_ranks)
    return [_of_journal(timeline, journals[rank], rank) if journals else _of_log(timeline, rank) for rank in ranks]


def _of_journal(timeline: Timeline, journal: Sequence[MemoryChange], rank: int) -> HighWater:
    """Return the high-water mark by a journal."""
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
    """Return the high-water mark by the values in the log."""
    first, end = int(timeline.starts[rank]), int(timeline.starts[rank + 1])
    if first == end:
        return HighWater(rank, 0.0, 0.0, {}, NONE, "")
    top = first + int(np.argmax(timeline.memory[first:end]))
    held = float(timeline.memory[top])
    return HighWater(rank, float(timeline.sampled[top]), held, {"all": held}, top - 1 if top > first else NONE, "")
