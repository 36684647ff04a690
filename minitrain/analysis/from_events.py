"""`Event` objects -> columns: every field of every event is read once, field by field."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from minitrain.analysis.codes import STREAM_KINDS, by_identity, coded, codes, ints, streams
from minitrain.analysis.timeline import NO_LAYER, NONE, Floats, Timeline
from minitrain.events import Event


def timeline_of_events(logs: Sequence[Sequence[Event]]) -> Timeline:
    """Return the columns of one log a rank."""
    events = list(chain.from_iterable(logs))
    starts = np.cumsum([0, *(len(log) for log in logs)])
    rank = np.repeat(np.arange(len(logs)), np.diff(starts))
    time, duration = _floats(events, "time"), _floats(events, "duration")
    kind, group = codes(_values(events, "stream"), STREAM_KINDS), by_identity(_values(events, "group"))
    peer = ints(_values(events, "peer"), len(events), NONE)
    stream, distinct_streams = streams(kind, group, peer)
    samples = by_identity(_values(events, "samples"))
    typ, tag = coded(_values(events, "typ")), coded(_values(events, "tag"))
    launched = np.array([e.time if e.launched is None else e.launched for e in events], dtype=float)
    following = np.arange(len(events)) - starts[rank] + 1
    awaited = ints(_values(events, "awaited"), len(events), NONE)
    return Timeline(
        starts=starts,
        rank=rank,
        time=time,
        end=time + duration,
        duration=duration,
        memory=_floats(events, "memory"),
        launched=launched,
        layer=ints(_values(events, "layer"), len(events), NO_LAYER),
        typ=typ[0],
        stream=stream,
        samples=samples[0],
        group=group[0],
        tag=tag[0],
        peer=peer,
        size_bytes=_floats(events, "size_bytes"),
        waited_for=ints(_values(events, "waited_for"), len(events), NONE),
        awaited=np.where(awaited == NONE, following, awaited),
        recomputed=np.fromiter(map(attrgetter("recomputed"), events), bool, len(events)),
        typs=typ[1],
        streams=distinct_streams,
        sample_sets=samples[1],
        groups=group[1],
        tags=tag[1],
    )


def _values(events: list[Event], name: str) -> list[Any]:
    """Return one field of every event."""
    return list(map(attrgetter(name), events))


def _floats(events: list[Event], name: str) -> Floats:
    """Return one field as floats."""
    return np.fromiter(map(attrgetter(name), events), float, len(events))
