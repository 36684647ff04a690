"""Logs of events -> the columns of a `Timeline`.

There are two readers, which give equal columns (see tests/analysis/test_from_logs.py). One takes `Event` objects, field
by field. The other takes the engine's own `EventLog`s, whose flat rows have `STRIDE` places an event. It is some three
times as fast as making `Event` objects of them first. The price, the stream and the note of a row are objects that many
rows share, so each of these is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from minitrain.analysis.timeline import NO_LAYER, NONE, Bools, Floats, Ints, Stream, Timeline, Trace
from minitrain.events import (
    COMM,
    COMPUTE,
    HOST_MOVES,
    LAUNCHED,
    LAYER,
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
)

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
    time, duration = _floats(_values(events, "time")), _floats(_values(events, "duration"))
    kind, group = _indices(_values(events, "stream"), _STREAM_KINDS), _by_shared_value(_values(events, "group"))
    peer = _ints(_values(events, "peer"), len(events), NONE)
    stream, streams = _streams(kind, group, peer)
    samples = _by_shared_value(_values(events, "samples"))
    typ, tag = _by_value(_values(events, "typ")), _by_value(_values(events, "tag"))
    awaited = _ints(_values(events, "awaited"), len(events), NONE)
    return Timeline(
        starts=starts,
        rank=rank,
        time=time,
        end=time + duration,
        duration=duration,
        memory=_floats(_values(events, "memory")),
        launched=np.array([e.time if e.launched is None else e.launched for e in events], dtype=float),
        layer=_ints(_values(events, "layer"), len(events), NO_LAYER),
        typ=typ[0],
        stream=stream,
        samples=samples[0],
        group=group[0],
        tag=tag[0],
        peer=peer,
        size_bytes=_floats(_values(events, "size_bytes")),
        waited_for=_ints(_values(events, "waited_for"), len(events), NONE),
        awaited=np.where(awaited == NONE, _following(starts, rank), awaited),
        recomputed=np.fromiter(map(attrgetter("recomputed"), events), bool, len(events)),
        typs=typ[1],
        streams=streams,
        sample_sets=samples[1],
        groups=group[1],
        tags=tag[1],
    )


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
    tag, awaited = _notes(rows[NOTE::STRIDE], _following(starts, rank))
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
        typ=typ[0],
        stream=stream,
        samples=samples[0],
        group=group,
        tag=tag[0],
        peer=peer,
        size_bytes=_spread([one.size_bytes for one in prices], price),
        waited_for=_ints(rows[WAITED_FOR::STRIDE], count, NONE),
        awaited=awaited,
        recomputed=_recomputed(rank, layer, samples, is_forward),
        typs=typ[1],
        streams=streams,
        sample_sets=samples[1],
        groups=groups,
        tags=tag[1],
    )


def _ranks(logs: Sequence[Sequence[Event]]) -> tuple[Ints, Ints]:
    """Return the index of each rank's first event with the number of all events, and the rank of each event."""
    starts = np.cumsum([0, *(len(log) for log in logs)])
    return starts, np.repeat(np.arange(len(logs)), np.diff(starts))


def _following(starts: Ints, rank: Ints) -> Ints:
    """Return the index, in its rank's log, of the event after each."""
    following: Ints = np.arange(len(rank)) - starts[rank] + 1
    return following


def _values(events: list[Event], name: str) -> list[Any]:
    """Return one field of every event."""
    return list(map(attrgetter(name), events))


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


def _notes(notes: list[Any], following: Ints) -> tuple[Indexed, Ints]:
    """Return the tags of messages, and the event before which each result was awaited.

    Args:
        notes: the note of each row, or None.
        following: the event after each, which stands for an unknown one.
    """
    place, found = _by_object(notes)
    facts = [(None, False, None) if note is None else (note.tag, note.overlaps, note.awaited) for note in found]
    tag, distinct = _by_value([fact[0] for fact in facts])
    late = _chosen(_ints((fact[2] if fact[1] else None for fact in facts), len(facts), NONE), place)
    return (_chosen(tag, place), distinct), np.where(late == NONE, following, late)


def _recomputed(rank: Ints, layer: Ints, samples: Indexed, is_forward: Bools) -> Bools:
    """Return which forwards take samples through a layer that these have passed on the same rank before."""
    again = np.zeros(len(rank), dtype=bool)
    forwards = np.flatnonzero(is_forward)
    sets = [samples[1][code] for code in np.unique(samples[0][forwards]).tolist()]
    if sum(map(len, sets)) == len(frozenset().union(*sets)):  # disjoint: only an equal set can share a sample
        _, of_layer = np.unique(layer[forwards], return_inverse=True)
        keys = (rank[forwards] * (len(of_layer) + 1) + of_layer) * len(samples[1]) + samples[0][forwards]
        _, first = np.unique(keys, return_index=True)
        again[np.delete(forwards, first)] = True
        again[forwards] &= _chosen(np.array([bool(numbers) for numbers in samples[1]], bool), samples[0][forwards])
        return again
    seen: dict[tuple[int, int], set[int]] = {}
    for event in forwards.tolist():
        known = seen.setdefault((int(rank[event]), int(layer[event])), set())
        numbers = samples[1][samples[0][event]]
        again[event] = not known.isdisjoint(numbers)
        known.update(numbers)
    return again
