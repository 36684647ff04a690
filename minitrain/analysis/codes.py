"""Turning lists of Python values into arrays: numbers as they are, all else as indices into the distinct values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from minitrain.analysis.timeline import NONE, Ints, Stream
from minitrain.events import COMM, COMPUTE, RECV, SEND

STREAM_KINDS = (COMPUTE, COMM, SEND, RECV)

Coded = tuple[Ints, tuple[Any, ...]]


def ints(values: Iterable[int | None], count: int, none: int) -> Ints:
    """Return integers, `none` where a value is None."""
    return np.fromiter((none if value is None else value for value in values), np.int64, count)


def codes(values: Sequence[Any], distinct: Iterable[Any]) -> Ints:
    """Return each value's place among the distinct ones."""
    places = {value: place for place, value in enumerate(distinct)}
    return np.fromiter(map(places.__getitem__, values), np.int64, len(values))


def coded(values: Sequence[Any]) -> Coded:
    """Return values as indices into the distinct ones, which come in the order of their first appearance."""
    distinct = tuple(dict.fromkeys(values))
    return codes(values, distinct), distinct


def objects(values: Sequence[Any]) -> Coded:
    """Return values as indices into the distinct objects, equal or not: what takes long to hash is not hashed."""
    found = dict(zip(map(id, values), values, strict=True))
    return codes(list(map(id, values)), found), tuple(found.values())


def by_identity(values: Sequence[Any]) -> Coded:
    """Do as `coded`, but hash and compare each object once: both take long for a large set or tuple."""
    place, found = objects(values)
    code, distinct = coded(found)
    return (code[place] if len(found) else np.zeros(0, np.int64)), distinct


def streams(kind: Ints, group: Coded, peer: Ints) -> tuple[Ints, tuple[Stream, ...]]:
    """Return each event's stream and the distinct ones: "comm" one a group, "send" and "recv" one a peer."""
    num_groups, num_peers = len(group[1]) + 1, int(peer.max(initial=NONE)) + 2
    of_group = np.where(kind == STREAM_KINDS.index(COMM), group[0], 0)
    of_peer = np.where(kind >= STREAM_KINDS.index(SEND), peer + 1, 0)
    keys, stream = np.unique((kind * num_groups + of_group) * num_peers + of_peer, return_inverse=True)
    found = [_stream(key, num_groups, num_peers, group[1]) for key in keys.tolist()]
    return stream.astype(np.int64), tuple(found)


def _stream(key: int, num_groups: int, num_peers: int, groups: tuple[Any, ...]) -> Stream:
    """Take one key of `streams` apart again."""
    rest, of_peer = divmod(key, num_peers)
    kind, of_group = divmod(rest, num_groups)
    name = STREAM_KINDS[kind]
    return Stream(name, groups[of_group] if name == COMM else None, of_peer - 1 if of_peer else None)
