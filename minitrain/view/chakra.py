"""Event logs -> Chakra execution traces, which ASTRA-sim and MLCommons' own tools read: one `.et` file a rank.

Every operation is a node: compute, send, receive or collective. A node has its duration in whole µs, and the operations
of its rank that must end before it can begin: the compute operation before it, those whose results were awaited since
or given to it, and the communication before it on its stream. Dependencies between ranks are not written, because they
follow from the messages (`comm_src`, `comm_dst`, `comm_tag`) and the process groups (`pg_name`, listed in
`comm_groups.json`).

Source: Sridharan et al. 2023, "Chakra", arXiv 2305.14516; the schema et_def.proto of mlc-chakra 1.0.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from minitrain.files import write_bytes, write_text
from minitrain.operations import COMM, COMPUTE, HOST_MOVES, SEND
from minitrain.operations.collectives import COLLECTIVES, TRANSFERS
from minitrain.run.analysis.retiming import messages
from minitrain.run.analysis.timeline import NO_LAYER, NONE, Ints, Timeline, Trace, as_timeline
from minitrain.view import protobuf

SCHEMA_VERSION = "0.0.4"
_NODE_TYPES = {COMPUTE: 4, COMM: 7, **{name: record.chakra for name, record in TRANSFERS.items()}}
# field numbers of et_def.proto: of an attribute, of a node
_ATTR_NAME, _ATTR_INT64, _ATTR_BOOL, _ATTR_STRING = 1, 9, 27, 29
_ID, _NAME, _TYPE, _DATA_DEPS, _START, _DURATION, _ATTR = 1, 2, 3, 5, 6, 7, 10


def write_chakra(folder: str | Path, trace: Trace, name: str = "minitrain") -> list[Path]:
    """Write `NAME.0.et`, `NAME.1.et`, ... and `comm_groups.json` into a folder.

    Args:
        folder: where to; it is made if it does not exist.
        trace: one log a rank, or columns.
        name: what the files' names begin with.

    Returns:
        The paths of the ranks' files, then that of the groups.
    """
    timeline = as_timeline(trace)
    tags = _message_tags(timeline)
    paths = [
        write_bytes(Path(folder, f"{name}.{rank}.et"), _file(timeline, rank, tags))
        for rank in range(timeline.num_ranks)
    ]
    whole = list(range(timeline.num_ranks))
    groups = {str(place): whole if group is None else list(group) for place, group in enumerate(timeline.groups)}
    return [*paths, write_text(Path(folder, "comm_groups.json"), [json.dumps(groups) + "\n"])]


def _message_tags(timeline: Timeline) -> Ints:
    """Return a number for each message, on its send and on its receive, `NONE` elsewhere, (num_events,)."""
    tags = np.full(timeline.num_events, NONE)
    sends, receives = messages(timeline)
    tags[sends] = tags[receives] = np.arange(len(sends))
    return tags


def _file(timeline: Timeline, rank: int, tags: Ints) -> Iterator[bytes]:
    """Yield the messages of one rank's file: the schema's version, then a node an operation."""
    yield protobuf.delimited(protobuf.text(1, SCHEMA_VERSION))
    for event, waits_for in _dependencies(timeline, rank):
        yield protobuf.delimited(_node(timeline, event, waits_for, int(tags[event])))


def _dependencies(timeline: Timeline, rank: int) -> Iterator[tuple[int, list[int]]]:
    """Yield every event of a rank with those, of the same rank, whose end it waits for."""
    first, end = int(timeline.starts[rank]), int(timeline.starts[rank + 1])
    awaited: dict[int, list[int]] = {}
    for event in (first + np.flatnonzero(~timeline.computes[first:end])).tolist():
        awaited.setdefault(first + int(timeline.awaited[event]), []).append(event)
    gates: list[int] = []
    last_of_stream: dict[int, int] = {}
    for event in range(first, end):
        gates += awaited.get(event, [])
        stream = int(timeline.stream[event])
        before = [] if timeline.streams[stream].kind == COMPUTE else [last_of_stream.get(stream, NONE)]
        before += [first + place for place in timeline.chains[timeline.after[event]]]
        yield event, sorted({*gates, *before} - {NONE})
        last_of_stream[stream] = event
        if timeline.streams[stream].kind == COMPUTE:
            gates = [event]


def _node(timeline: Timeline, event: int, waits_for: list[int], tag: int) -> bytes:
    """Return one operation as a node; its id is its place in the rank's log."""
    first = int(timeline.starts[timeline.rank[event]])
    typ, layer = timeline.typs[timeline.typ[event]], timeline.layer[event]
    start = round(timeline.time[event] * 1e6)
    return b"".join(
        [
            protobuf.number(_ID, event - first),
            protobuf.text(_NAME, typ if layer == NO_LAYER else f"{typ} {timeline.layer_name(int(layer))}"),
            protobuf.number(_TYPE, _NODE_TYPES[timeline.streams[timeline.stream[event]].kind]),
            protobuf.numbers(_DATA_DEPS, [other - first for other in waits_for]),
            protobuf.number(_START, start),
            protobuf.number(_DURATION, round(timeline.end[event] * 1e6) - start),
            *(protobuf.data(_ATTR, attr) for attr in _attributes(timeline, event, typ, tag)),
        ]
    )


def _attributes(timeline: Timeline, event: int, typ: str, tag: int) -> Iterator[bytes]:
    """Yield the attributes of a node: the kind of work, how many bytes it moves, and between which ranks."""
    stream = timeline.streams[timeline.stream[event]]
    yield protobuf.text(_ATTR_NAME, "is_cpu_op") + protobuf.present(_ATTR_BOOL, 0)
    if stream.kind == COMPUTE:
        return
    if stream.kind in HOST_MOVES:
        yield _int64("tensor_size", round(timeline.size_bytes[event]))
        return
    yield _int64("comm_size", round(timeline.size_bytes[event]))
    if stream.kind == COMM:
        yield _int64("comm_type", COLLECTIVES[typ].chakra)
        group = str(int(timeline.group[event]))
        yield protobuf.text(_ATTR_NAME, "pg_name") + protobuf.text(_ATTR_STRING, group)
        return
    ends = int(timeline.rank[event]), int(timeline.peer[event])
    for name, rank in zip(("comm_src", "comm_dst"), ends if stream.kind == SEND else ends[::-1], strict=True):
        if rank != NONE:  # an event that a strategy logged by itself has no peer
            yield _int64(name, rank)
    yield _int64("comm_tag", max(tag, 0))


def _int64(name: str, value: int) -> bytes:
    """Return an attribute that is a whole number."""
    return protobuf.text(_ATTR_NAME, name) + protobuf.present(_ATTR_INT64, value)
