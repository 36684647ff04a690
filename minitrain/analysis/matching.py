"""Which operations of different ranks belong together: a send and its receive, the members of a collective."""

from __future__ import annotations

import numpy as np

from minitrain.analysis.timeline import Ints, Timeline
from minitrain.events import COMM, RECV, SEND


def messages(timeline: Timeline) -> tuple[Ints, Ints]:
    """Pair every send with its receive: the k-th of (source, destination, tag) with the k-th.

    Returns:
        Indices of the sends and of their receives, (num_messages,) each; what has no partner is left out.
    """
    sends, receives = np.flatnonzero(timeline.on_stream(SEND)), np.flatnonzero(timeline.on_stream(RECV))
    sent = _numbered(timeline.rank[sends], timeline.peer[sends], timeline.tag[sends])
    received = _numbered(timeline.peer[receives], timeline.rank[receives], timeline.tag[receives])
    _, codes = np.unique(np.concatenate([sent, received]), axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    _, at_send, at_receive = np.intersect1d(codes[: len(sends)], codes[len(sends) :], return_indices=True)
    return sends[at_send], receives[at_receive]


def collectives(timeline: Timeline) -> tuple[Ints, Ints]:
    """Find the members of every collective: the k-th call of each rank in a group belongs to the k-th.

    Returns:
        Indices of the members, collective by collective and by rank within, (num_members,), and the place
        where each collective begins, with the end of the last one, (num_collectives + 1,).
    """
    members = np.flatnonzero(timeline.on_stream(COMM))
    keys = _numbered(timeline.group[members], timeline.rank[members])
    order = np.lexsort((keys[:, 1], keys[:, 2], keys[:, 0]))
    met = keys[order][:, [0, 2]]
    begins = np.flatnonzero(np.any(met[1:] != met[:-1], axis=1)) + 1
    places = np.concatenate([[0], begins, [len(members)]]) if len(members) else np.zeros(1, np.int64)
    return members[order], places.astype(np.int64)


def _numbered(*columns: Ints) -> Ints:
    """Return rows of these columns, each with how many equal rows came before it, (n, columns + 1)."""
    rows = np.stack(columns, axis=1)
    if not len(rows):
        return np.zeros((0, len(columns) + 1), np.int64)
    order = np.lexsort(columns[::-1])
    sorted_rows = rows[order]
    is_first = np.ones(len(rows), dtype=bool)
    is_first[1:] = np.any(sorted_rows[1:] != sorted_rows[:-1], axis=1)
    places = np.arange(len(rows))
    number = np.empty(len(rows), np.int64)
    number[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return np.column_stack([rows, number])
