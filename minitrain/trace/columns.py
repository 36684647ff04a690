"""Event logs as columns: `Timeline`, the one form that everything else in the trace room works on.

Half a million `Event` objects are slow to walk more than once, so a log is turned into numpy arrays once.
Whatever is not a number (types, streams, sample sets, groups, tags) becomes an index into a tuple of the
distinct values.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minitrain.events import COMM, COMPUTE, RECV, SEND, Event

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NONE = -1
NO_LAYER = np.iinfo(np.int64).min
_STREAM_KINDS = (COMPUTE, COMM, SEND, RECV)


class Stream(NamedTuple):
    """Where operations run: `kind`, and with whom (the group of "comm", the peer of "send" and "recv")."""

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

    @classmethod
    def from_logs(cls, logs: Sequence[Sequence[Event]]) -> Timeline:
        """Turn one log a rank, in rank order, into columns."""
        return _from_logs(logs)

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
    def step_time(self) -> float:
        """The latest end of all ranks, s."""
        return float(self.end.max(initial=0.0))

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
        """When the memory of each event was sampled, s: it never falls along a rank's log."""
        return np.where(self.overlaps, self.launched, self.time)

    def on_stream(self, kind: str) -> Bools:
        """Tell which events ran on a stream of this kind, (num_events,)."""
        kinds = np.array([stream.kind == kind for stream in self.streams], dtype=bool)
        return kinds[self.stream] if self.num_events else np.zeros(0, dtype=bool)


Trace = Timeline | Sequence[Sequence[Event]]
"""What every function of the trace room takes: columns, or one log a rank."""


def as_timeline(trace: Trace) -> Timeline:
    """Return the columns of a trace, which may be columns already."""
    return trace if isinstance(trace, Timeline) else Timeline.from_logs(trace)


def _from_logs(logs: Sequence[Sequence[Event]]) -> Timeline:
    """Read every field of every event once, field by field."""
    events = list(chain.from_iterable(logs))
    starts = np.cumsum([0, *(len(log) for log in logs)])
    rank = np.repeat(np.arange(len(logs)), np.diff(starts))
    time, duration = _floats(events, "time"), _floats(events, "duration")
    kind, group, peer = _kinds(events), _by_identity(events, "group"), _ints(events, "peer", NONE)
    stream, streams = _streams(kind, group, peer)
    typ, samples, tag = _coded(events, "typ"), _coded(events, "samples"), _coded(events, "tag")
    launched = np.array([e.time if e.launched is None else e.launched for e in events], dtype=float)
    following = np.arange(len(events)) - starts[rank] + 1
    awaited = _ints(events, "awaited", NONE)
    return Timeline(
        starts=starts,
        rank=rank,
        time=time,
        end=time + duration,
        duration=duration,
        memory=_floats(events, "memory"),
        launched=launched,
        layer=_ints(events, "layer", NO_LAYER),
        typ=typ[0],
        stream=stream,
        samples=samples[0],
        group=group[0],
        tag=tag[0],
        peer=peer,
        size_bytes=_floats(events, "size_bytes"),
        waited_for=_ints(events, "waited_for", NONE),
        awaited=np.where(awaited == NONE, following, awaited),
        recomputed=np.fromiter(map(attrgetter("recomputed"), events), bool, len(events)),
        typs=typ[1],
        streams=streams,
        sample_sets=samples[1],
        groups=group[1],
        tags=tag[1],
    )


def _floats(events: list[Event], name: str) -> Floats:
    """Return one field as floats."""
    return np.fromiter(map(attrgetter(name), events), float, len(events))


def _ints(events: list[Event], name: str, none: int) -> Ints:
    """Return one field as integers, `none` where it is None."""
    values = map(attrgetter(name), events)
    return np.fromiter((none if value is None else value for value in values), np.int64, len(events))


def _codes(values: list[Any], distinct: Iterable[Any]) -> Ints:
    """Return each value's place among the distinct ones."""
    places = {value: place for place, value in enumerate(distinct)}
    return np.fromiter(map(places.__getitem__, values), np.int64, len(values))


def _coded(events: list[Event], name: str) -> tuple[Ints, tuple[Any, ...]]:
    """Return one field as indices into its distinct values, in the order of their first appearance."""
    values = list(map(attrgetter(name), events))
    distinct = tuple(dict.fromkeys(values))
    return _codes(values, distinct), distinct


def _by_identity(events: list[Event], name: str) -> tuple[Ints, tuple[Any, ...]]:
    """Do as `_coded`, but hash each object once: the hash of a long tuple is slow, and not kept."""
    values = list(map(attrgetter(name), events))
    objects = {id(value): value for value in values}
    distinct = tuple(dict.fromkeys(objects.values()))
    places = _codes(list(objects.values()), distinct)
    return places[_codes(list(map(id, values)), objects)] if values else np.zeros(0, np.int64), distinct


def _kinds(events: list[Event]) -> Ints:
    """Return the kind of each event's stream as an index into `_STREAM_KINDS`."""
    return _codes(list(map(attrgetter("stream"), events)), _STREAM_KINDS)


def _streams(kind: Ints, group: tuple[Ints, tuple[Any, ...]], peer: Ints) -> tuple[Ints, tuple[Stream, ...]]:
    """Return each event's stream and the distinct ones: "comm" one a group, "send" and "recv" one a peer."""
    num_groups, num_peers = len(group[1]) + 1, int(peer.max(initial=NONE)) + 2
    of_group = np.where(kind == _STREAM_KINDS.index(COMM), group[0], 0)
    of_peer = np.where(kind >= _STREAM_KINDS.index(SEND), peer + 1, 0)
    keys, stream = np.unique((kind * num_groups + of_group) * num_peers + of_peer, return_inverse=True)
    streams = [_stream(key, num_groups, num_peers, group[1]) for key in keys.tolist()]
    return stream.astype(np.int64), tuple(streams)


def _stream(key: int, num_groups: int, num_peers: int, groups: tuple[Any, ...]) -> Stream:
    """Take one key of `_streams` apart again."""
    rest, of_peer = divmod(key, num_peers)
    kind, of_group = divmod(rest, num_groups)
    name = _STREAM_KINDS[kind]
    return Stream(name, groups[of_group] if name == COMM else None, of_peer - 1 if of_peer else None)
