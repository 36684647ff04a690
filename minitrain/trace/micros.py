"""Times of events in µs, as Chrome traces want them: whole nanoseconds, and no overlap on a thread."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minitrain.analysis.timeline import Floats, Ints, Timeline
from minitrain.errors import UsageError

_LONGEST_S = 9e9  # nanoseconds of it fit into 64 bits


class Micros(NamedTuple):
    """When events start and how long they last, µs, (num_events,) each."""

    start: Floats
    duration: Floats


def micros(timeline: Timeline) -> Micros:
    """Return every event's start and duration; none reaches into the next one of its rank and stream.

    The ends are clamped twice: in whole nanoseconds, which Perfetto computes with, and as the floats that are
    written, so that start + duration <= the next start holds for any reader.
    """
    order = np.lexsort((timeline.time, timeline.stream, timeline.rank))
    rank, stream = timeline.rank[order], timeline.stream[order]
    start_ns, end_ns = nanoseconds(timeline.time[order]), nanoseconds(timeline.end[order])
    followed = (rank[1:] == rank[:-1]) & (stream[1:] == stream[:-1])
    end_ns[:-1] = np.where(followed, np.minimum(end_ns[:-1], start_ns[1:]), end_ns[:-1])
    start, duration = as_micros(start_ns), as_micros(end_ns - start_ns)
    limit = np.full(len(start), np.inf)
    limit[:-1][followed] = start[1:][followed]
    back = np.argsort(order)
    return Micros(start[back], _clamped(start, duration, limit)[back])


def nanoseconds(seconds: Floats) -> Ints:
    """Round times in s to whole nanoseconds.

    Raises:
        UsageError: a time is too long for that.
    """
    longest = float(seconds.max(initial=0.0))
    if longest > _LONGEST_S:
        raise UsageError(f"times must be at most {_LONGEST_S:g} s to be written in nanoseconds, got {longest:g} s")
    return np.rint(seconds * 1e9).astype(np.int64)


def as_micros(ns: Ints) -> Floats:
    """Return nanoseconds as µs that give the same nanoseconds again when multiplied by 1000 and cut off."""
    us: Floats = ns / 1000
    return np.where((us * 1000).astype(np.int64) < ns, np.nextafter(us, np.inf), us)


def _clamped(start: Floats, duration: Floats, limit: Floats) -> Floats:
    """Shorten durations, by a few units in the last place of a start, until no end passes its limit."""
    duration = np.where(start + duration > limit, limit - start, duration)
    late = start + duration > limit
    duration = np.where(late, duration - 2 * np.spacing(start), duration)
    return np.maximum(duration, 0.0)
