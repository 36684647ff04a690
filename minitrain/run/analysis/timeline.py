"""The events of a run as columns: `Timeline`, the form that all analyses and all pictures work on.

Half a million `Event` objects are slow to walk more than once, so they are turned into numpy
arrays once. Values that are not numbers (types, streams, sample sets, groups, tags) become indices into a tuple of the
distinct values.

Logs of events -> the columns of a `Timeline`.

There are two readers, which give equal columns (see tests/run/analysis/test_from_logs.py). One takes `Event` objects,
field by field. The other takes the engine's own `EventLog`s, whose flat rows have `STRIDE` places an event. It is some
three times as fast as making `Event` objects of them first. The price, the stream and the note of a row are objects
that many rows share, so each of these is read once.

Unions and gaps of the intervals of many ranks at once, in numpy and without rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minitrain.operations import (
    COMM,
    COMPUTE,
    HOST_MOVES,
    LAUNCHED,
    LAYER,
    LOAD_WEIGHTS,
    MEMORY,
    NOTE,
    PRICE,
    RECV,
    SAMPLES,
    SEND,
    STREAM,
    STRIDE,
    TIME,
    TYP,
    UNITS_PER_ELEMENT,
    WAITED_FOR,
    Event,
    EventLog,
    Note,
    Outage,
)

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
        after: index into `chains`.
        recomputed: whether a forward was done before.
        price: index into `prices`, or `NONE` where only what it lasted is known.
        typs: the distinct types.
        streams: the distinct streams: compute first, then collectives, sends and receives.
        sample_sets: the distinct sets of samples.
        groups: the distinct groups; None is the whole world.
        tags: the distinct tags.
        chains: the distinct indices, in a rank's log, of the launched operations whose results one was given.
        prices: the distinct objects that predictors have answered, equal or not.
        layer_names: what the layers are called; empty where they have numbers alone.
        is_packed: whether sequences consist of documents, whose lengths set the time of attentions.
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
    after: Ints
    recomputed: Bools
    price: Ints
    typs: tuple[str, ...]
    streams: tuple[Stream, ...]
    sample_sets: tuple[frozenset[int], ...]
    groups: tuple[tuple[int, ...] | None, ...]
    tags: tuple[Hashable, ...]
    chains: tuple[tuple[int, ...], ...]
    prices: tuple[Any, ...] = ()
    layer_names: tuple[str, ...] = ()
    is_packed: bool = False
    rank_names: tuple[str, ...] = ()
    ranks_a_row: int = 1
    devices: tuple[str, ...] = ()
    outages: tuple[Outage, ...] = ()

    def __repr__(self) -> str:
        """Show how much there is, not thousands of numbers."""
        return f"<Timeline: {self.num_events:,} events on {self.num_ranks:,} ranks>"

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
    def handed_on(self) -> tuple[Ints, Ints]:
        """Launched operations, and what was given the result of each before its await, (num_pairs,) each."""
        is_given = np.array([len(links) > 0 for links in self.chains], dtype=bool)
        given = np.flatnonzero(is_given[self.after]) if is_given.any() else np.zeros(0, np.int64)
        chains = [self.chains[code] for code in self.after[given].tolist()]
        target = np.repeat(given, np.fromiter(map(len, chains), np.int64, len(chains)))
        places = np.fromiter(chain.from_iterable(chains), np.int64, len(target))
        return self.starts[self.rank[target]] + places, target

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

    def busy_times(self) -> Floats:
        """Return how long each rank computed, communicated and did either in the step, s, (num_ranks, 3)."""
        chosen = (self.computes, ~self.computes, slice(None))
        parts = (sweep_intervals(self.rank[part], self.time[part], self.end[part], self.begin) for part in chosen)
        return np.stack([part.covered(self.num_ranks) for part in parts], axis=1)

    def pass_times(self, typs: Collection[str]) -> Floats:
        """Return first start, last end and seconds of events of these types on each rank that has any, s, (num, 3)."""
        chosen = self.of_types(typs)
        ranks = self.rank[chosen]
        first = np.full(self.num_ranks, np.inf)
        last, busy = np.zeros(self.num_ranks), np.zeros(self.num_ranks)
        np.minimum.at(first, ranks, self.time[chosen])
        np.maximum.at(last, ranks, self.end[chosen])
        np.add.at(busy, ranks, self.duration[chosen])
        found: Floats = np.stack([first, last, busy], axis=1)[np.isfinite(first)]
        return found


Trace = Timeline | Sequence[Sequence[Event]]
"""What analyses and pictures take: columns, or one log a rank."""


_STREAM_KINDS = (COMPUTE, COMM, SEND, RECV, *HOST_MOVES)

Indexed = tuple[Ints, tuple[Any, ...]]
"""A column of values that are no numbers: the index of each into the distinct values, and these."""


def as_timeline(trace: Trace) -> Timeline:
    """Return the columns of a trace: of one log a rank in rank order, or of columns themselves."""
    if isinstance(trace, Timeline):
        return trace
    flat = [log for log in trace if isinstance(log, EventLog)]
    return timeline_of_rows(flat) if len(flat) == len(trace) else timeline_of_events(trace)


def timeline_of_events(logs: Sequence[Sequence[Event]]) -> Timeline:
    """Return the columns of one log of events a rank."""
    events = list(chain.from_iterable(logs))
    starts, rank = _ranks(logs)

    def values(name: str) -> list[Any]:
        return list(map(attrgetter(name), events))

    floats: dict[str, Any] = {name: _floats(values(name)) for name in ("time", "duration", "memory", "size_bytes")}
    missing = {"layer": NO_LAYER, "peer": NONE, "waited_for": NONE, "awaited": NONE}
    ints: dict[str, Any] = {name: _ints(values(name), len(events), none) for name, none in missing.items()}
    shared = {name: _by_shared_value(values(name)) for name in ("samples", "group")}
    kind = _indices(values("stream"), _STREAM_KINDS)
    ints["stream"], streams = _streams(kind, shared["group"], ints["peer"])
    ints["awaited"] = np.where(ints["awaited"] == NONE, _following(starts, rank), ints["awaited"])
    return Timeline(
        starts=starts,
        rank=rank,
        end=floats["time"] + floats["duration"],
        launched=np.array([e.time if e.launched is None else e.launched for e in events], dtype=float),
        recomputed=np.fromiter(map(attrgetter("recomputed"), events), bool, len(events)),
        price=np.full(len(events), NONE),
        streams=streams,
        **floats,
        **ints,
        **_distinct(**shared, **{name: _by_value(values(name)) for name in ("typ", "tag", "after")}),
    )


def _distinct(**columns: Indexed) -> dict[str, Any]:
    """Return columns of values that are no numbers, and the distinct values of each, as a timeline calls them."""
    return {name: index for name, (index, _) in columns.items()} | {
        _DISTINCT[name]: distinct for name, (_, distinct) in columns.items()
    }


_DISTINCT = {"typ": "typs", "samples": "sample_sets", "group": "groups", "tag": "tags", "after": "chains"}


def timeline_of_rows(logs: Sequence[EventLog]) -> Timeline:
    """Return the columns of one flat log a rank, equal to those of its events."""
    rows = list(chain.from_iterable(log._rows for log in logs))
    count = len(rows) // STRIDE
    starts, rank = _ranks(logs)
    price, prices = _by_object(rows[PRICE::STRIDE])
    time, duration = _floats(rows[TIME::STRIDE]), _spread([one.seconds for one in prices], price)
    place, found = _by_object(rows[STREAM::STRIDE])
    kind = _chosen(_indices([one.kind for one in found], _STREAM_KINDS), place)
    group_of_stream, groups = _by_shared_value([one.group for one in found])
    group = _chosen(group_of_stream, place)
    peer = _chosen(_ints((one.peer for one in found), len(found), NONE), place)
    stream, streams = _streams(kind, (group, groups), peer)
    typ, samples = _by_value(rows[TYP::STRIDE]), _by_shared_value(rows[SAMPLES::STRIDE])
    layer = _ints(rows[LAYER::STRIDE], count, NO_LAYER)
    tag, after, awaited = _notes(rows[NOTE::STRIDE], _following(starts, rank))
    is_forward = _chosen(np.array([one == "forward" for one in typ[1]], dtype=bool), typ[0])
    return Timeline(
        starts=starts,
        rank=rank,
        time=time,
        end=time + duration,
        duration=duration,
        memory=_floats(rows[MEMORY::STRIDE]) / UNITS_PER_ELEMENT,
        launched=_floats(rows[LAUNCHED::STRIDE]),
        layer=layer,
        stream=stream,
        peer=peer,
        size_bytes=_spread([one.size_bytes for one in prices], price),
        waited_for=_ints(rows[WAITED_FOR::STRIDE], count, NONE),
        awaited=awaited,
        recomputed=_recomputed(rank, layer, samples, is_forward),
        price=price,
        streams=streams,
        prices=prices,
        **_distinct(typ=typ, samples=samples, group=(group, groups), tag=tag, after=after),
    )


def _ranks(logs: Sequence[Sequence[Event]]) -> tuple[Ints, Ints]:
    """Return the index of each rank's first event with the number of all events, and the rank of each event."""
    starts = np.cumsum([0, *(len(log) for log in logs)])
    return starts, np.repeat(np.arange(len(logs)), np.diff(starts))


def _following(starts: Ints, rank: Ints) -> Ints:
    """Return the index, in its rank's log, of the event after each."""
    following: Ints = np.arange(len(rank)) - starts[rank] + 1
    return following


def _floats(values: Sequence[Any]) -> Floats:
    """Return numbers as floats."""
    return np.fromiter(values, float, len(values))


def _ints(values: Iterable[int | None], count: int, none: int) -> Ints:
    """Return integers, `none` where a value is None."""
    return np.fromiter((none if value is None else value for value in values), np.int64, count)


def _spread(values: Sequence[float], index: Ints) -> Floats:
    """Return the number of each event, given the number of each distinct object."""
    return np.array(values, dtype=float)[index] if values else np.zeros(0)


def _chosen(values: Any, index: Ints) -> Any:
    """Return the values at some indices; there are none where there are no events."""
    return values[index] if len(values) else values


def _indices(values: Sequence[Any], distinct: Iterable[Any]) -> Ints:
    """Return the index of each value among the distinct ones."""
    places = {value: place for place, value in enumerate(distinct)}
    return np.fromiter(map(places.__getitem__, values), np.int64, len(values))


def _by_value(values: Sequence[Any]) -> Indexed:
    """Return values as indices into the distinct ones, which come in the order of their first appearance."""
    distinct = tuple(dict.fromkeys(values))
    return _indices(values, distinct), distinct


def _by_object(values: Sequence[Any]) -> Indexed:
    """Return values as indices into the distinct objects, equal or not; none of them is hashed or compared."""
    found = dict(zip(map(id, values), values, strict=True))
    return _indices(list(map(id, values)), found), tuple(found.values())


def _by_shared_value(values: Sequence[Any]) -> Indexed:
    """Return the same as `_by_value`, but hash and compare each object once: a large set takes long for both."""
    place, found = _by_object(values)
    code, distinct = _by_value(found)
    return (code[place] if len(found) else np.zeros(0, np.int64)), distinct


def _streams(kind: Ints, group: Indexed, peer: Ints) -> tuple[Ints, tuple[Stream, ...]]:
    """Return each event's stream and the distinct ones: "comm" one a group, "send" and "recv" one a peer."""
    num_groups, num_peers = len(group[1]) + 1, int(peer.max(initial=NONE)) + 2
    of_group = np.where(kind == _STREAM_KINDS.index(COMM), group[0], 0)
    of_peer = np.where(kind >= _STREAM_KINDS.index(SEND), peer + 1, 0)
    keys, stream = np.unique((kind * num_groups + of_group) * num_peers + of_peer, return_inverse=True)
    found = [_stream(key, num_groups, num_peers, group[1]) for key in keys.tolist()]
    return stream.astype(np.int64), tuple(found)


def _stream(key: int, num_groups: int, num_peers: int, groups: tuple[Any, ...]) -> Stream:
    """Return the stream that a key of `_streams` stands for."""
    rest, of_peer = divmod(key, num_peers)
    kind, of_group = divmod(rest, num_groups)
    name = _STREAM_KINDS[kind]
    return Stream(name, groups[of_group] if name == COMM else None, of_peer - 1 if of_peer else None)


def _notes(notes: list[Any], following: Ints) -> tuple[Indexed, Indexed, Ints]:
    """Return the tags of messages, whose results operations were given, and the event before which each was awaited.

    Args:
        notes: the note of each row, or None.
        following: the event after each, which stands for an unknown one.
    """
    place, found = _by_object(notes)
    known = [note or Note() for note in found]
    tag, after = _by_value([note.tag for note in known]), _by_value([note.after for note in known])
    late = _chosen(_ints((note.awaited if note.overlaps else None for note in known), len(known), NONE), place)
    return (
        (_chosen(tag[0], place), tag[1]),
        (_chosen(after[0], place), after[1]),
        np.where(late == NONE, following, late),
    )


def _recomputed(rank: Ints, layer: Ints, samples: Indexed, is_forward: Bools) -> Bools:
    """Return which forwards take samples through a layer that these have passed on the same rank before."""
    again = np.zeros(len(rank), dtype=bool)
    forwards = np.flatnonzero(is_forward)
    sets = [samples[1][code] for code in np.unique(samples[0][forwards]).tolist()]
    if sum(map(len, sets)) == len(frozenset().union(*sets)):  # disjoint: only an equal set can share a sample
        _, of_layer = np.unique(layer[forwards], return_inverse=True)
        keys = (rank[forwards] * (len(of_layer) + 1) + of_layer) * len(samples[1]) + samples[0][forwards]
        _, first = np.unique(keys, return_index=True)
        again[forwards] = True
        again[forwards[first]] = False
        again[forwards] &= _chosen(np.array([bool(numbers) for numbers in samples[1]], bool), samples[0][forwards])
        return again
    seen: dict[tuple[int, int], set[int]] = {}
    for event in forwards.tolist():
        known = seen.setdefault((int(rank[event]), int(layer[event])), set())
        numbers = samples[1][samples[0][event]]
        again[event] = not known.isdisjoint(numbers)
        known.update(numbers)
    return again


@dataclass(frozen=True, slots=True, eq=False)
class SweptIntervals:
    """Intervals in the order of (rank, start, end), each with the latest end of those before it on its rank.

    Args:
        order: index of each interval in the arrays that were swept, (n,).
        rank: rank of each interval, (n,).
        start: its start, s, (n,).
        end: its end, s, (n,).
        busy_until: the latest end of the rank's earlier intervals, `begin` for the first one, s, (n,).
        begin: when the step begins, s; what lies before it covers nothing.
    """

    order: Ints
    rank: Ints
    start: Floats
    end: Floats
    busy_until: Floats
    begin: float = 0.0

    def covered(self, num_ranks: int) -> Floats:
        """Return the length of each rank's union of intervals, s, (num_ranks,)."""
        new = np.maximum(self.end - np.maximum(self.start, self.busy_until), 0.0)
        lengths: Floats = np.bincount(self.rank, weights=new, minlength=num_ranks).astype(float)
        return lengths

    def last_end(self, num_ranks: int) -> Floats:
        """Return the end of each rank's last interval, `begin` where it has none, s, (num_ranks,)."""
        last = np.full(num_ranks, self.begin)
        np.maximum.at(last, self.rank, self.end)
        return last


def sweep_intervals(rank: Ints, start: Floats, end: Floats, begin: float = 0.0) -> SweptIntervals:
    """Sort intervals and find how long each rank was busy before each of them.

    The running maximum is not taken of the ends themselves, but of their places among all sorted ends, with the rank
    as the leading digit. So one pass serves all ranks, and the results are the same floats that were given.
    """
    order = np.lexsort((end, start, rank))
    rank, start, end = rank[order], start[order], end[order]
    num = len(order)
    sorted_ends = np.sort(end)
    keys = np.maximum.accumulate(rank * num + np.searchsorted(sorted_ends, end)) if num else rank
    busy_until = np.full(num, begin)
    follows = rank[1:] == rank[:-1]
    busy_until[1:] = np.where(follows, np.maximum(sorted_ends[keys[:-1] % max(num, 1)], begin), begin)
    return SweptIntervals(order, rank, start, end, busy_until, begin)


def sweep_timeline(timeline: Timeline) -> SweptIntervals:
    """Sweep the events of all streams of each rank, from the beginning of the step on."""
    return sweep_intervals(timeline.rank, timeline.time, timeline.end, timeline.begin)
