"""The events of a run as columns: `Timeline`, the form that all analyses and all pictures work on.

Half a million `Event` objects are slow to walk more than once, so `minitrain.analysis.from_logs` turns them into numpy
arrays once. Values that are not numbers (types, streams, sample sets, groups, tags) become indices into a tuple of the
distinct values.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minitrain.events import COMPUTE, LOAD_WEIGHTS, Event, Outage

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NONE = -1
NO_LAYER = np.iinfo(np.int64).min


class Stream(NamedTuple):
    """Where operations run one after the other: `kind`, and the group of "comm" or the peer of "send" and "recv"."""

    kind: str
    group: tuple[int, ...] | None = None
    peer: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The events of all ranks, by rank and in each rank's program order, one array a field.

    Args:
        starts: index of each rank's first event, and the number of events at the end, (num_ranks + 1,).
        rank: (num_events,), like all that follow.
        time: when each began to work, s.
        end: when it finished, s.
        duration: how long it worked, s.
        memory: elements held when it was logged.
        launched: clock of the rank's compute stream when it was submitted, s.
        layer: the layer, or `NO_LAYER`.
        typ: index into `typs`.
        stream: index into `streams`.
        samples: index into `sample_sets`.
        group: index into `groups`.
        tag: index into `tags`.
        peer: the other rank of a send or recv, or `NONE`.
        size_bytes: bytes moved.
        waited_for: the rank it waited for, or `NONE`.
        awaited: index in the rank's log of the first event after its await; the next one if that is unknown.
        recomputed: whether a forward was done before.
        typs: the distinct types.
        streams: the distinct streams: compute first, then collectives, sends and receives.
        sample_sets: the distinct sets of samples.
        groups: the distinct groups; None is the whole world.
        tags: the distinct tags.
        layer_names: what the layers are called; empty where they have numbers alone.
        rank_names: what pictures call the ranks, such as "8 (x 4)" for one that stands for four; empty where each
            row is the rank of its number.
        ranks_a_row: how many ranks that do the same each row stands for.
        devices: the kind of device of each row's rank; empty where all devices are alike.
        outages: when the run was interrupted, in order; what is submitted after one begins at its end or later.
    """

    starts: Ints
    rank: Ints
    time: Floats
    end: Floats
    duration: Floats
    memory: Floats
    launched: Floats
    layer: Ints
    typ: Ints
    stream: Ints
    samples: Ints
    group: Ints
    tag: Ints
    peer: Ints
    size_bytes: Floats
    waited_for: Ints
    awaited: Ints
    recomputed: Bools
    typs: tuple[str, ...]
    streams: tuple[Stream, ...]
    sample_sets: tuple[frozenset[int], ...]
    groups: tuple[tuple[int, ...] | None, ...]
    tags: tuple[Hashable, ...]
    layer_names: tuple[str, ...] = ()
    rank_names: tuple[str, ...] = ()
    ranks_a_row: int = 1
    devices: tuple[str, ...] = ()
    outages: tuple[Outage, ...] = ()

    @property
    def num_ranks(self) -> int:
        """Number of ranks, with or without events."""
        return len(self.starts) - 1

    @property
    def num_events(self) -> int:
        """Number of events of all ranks."""
        return len(self.time)

    @property
    def index(self) -> Ints:
        """Place of each event in its rank's log, (num_events,)."""
        return np.arange(self.num_events) - self.starts[self.rank]

    @property
    def last_end(self) -> float:
        """The latest end of all ranks, s."""
        return float(self.end.max(initial=0.0))

    @property
    def loading(self) -> Bools:
        """Whether each event is loading: one of its rank's loads before its first other operation, and any outage."""
        others = np.cumsum(np.append(0, ~self.of_types([LOAD_WEIGHTS])))
        loading: Bools = others[1:] == others[self.starts[self.rank]]
        if self.outages:
            loading &= self.end <= self.outages[0].start
        return loading

    @property
    def load_ends(self) -> Floats:
        """When the weights of each rank are there, s, (num_ranks,)."""
        ends, loading = np.zeros(self.num_ranks), self.loading
        np.maximum.at(ends, self.rank[loading], self.end[loading])
        return ends

    @property
    def begin(self) -> float:
        """When the step begins: all weights are there, s."""
        return float(self.load_ends.max(initial=0.0))

    @property
    def step_time(self) -> float:
        """From when all weights are there to the latest end of all ranks, s."""
        return self.last_end - self.begin

    @property
    def computes(self) -> Bools:
        """Whether each event ran on its rank's compute stream, (num_events,)."""
        return self.on_stream(COMPUTE)

    @property
    def overlaps(self) -> Bools:
        """Whether each event was launched to overlap those that follow it, (num_events,)."""
        return self.awaited > self.index + 1

    @property
    def sampled(self) -> Floats:
        """When the memory of each event was sampled, s: as it was submitted, before any wait."""
        return self.launched

    def layer_name(self, layer: int) -> str:
        """Return what pictures call a layer: "attention 17" of a transformer, "layer 17" of other models."""
        return self.layer_names[layer] if 0 <= layer < len(self.layer_names) else f"layer {layer}"

    def rank_name(self, rank: int) -> str:
        """Return what pictures call a rank after the word "rank"."""
        return self.rank_names[rank] if self.rank_names else str(rank)

    def on_stream(self, kind: str) -> Bools:
        """Tell which events ran on a stream of this kind, (num_events,)."""
        kinds = np.array([stream.kind == kind for stream in self.streams], dtype=bool)
        return kinds[self.stream] if self.num_events else np.zeros(0, dtype=bool)

    def of_types(self, typs: Collection[str]) -> Bools:
        """Tell which events are of one of these types, (num_events,)."""
        chosen = np.array([typ in typs for typ in self.typs], dtype=bool)
        return chosen[self.typ] if self.num_events else np.zeros(0, dtype=bool)

    def beginning_with(self, *names: str) -> Bools:
        """Tell which events are of a type that begins with one of these names, (num_events,).

        "backward" stands for "backward", "backward_input" and "backward_weight".
        """
        return self.of_types([typ for typ in self.typs if typ.startswith(names)])


Trace = Timeline | Sequence[Sequence[Event]]
"""What analyses and pictures take: columns, or one log a rank."""
