"""Event logs as files of other tools: Chrome traces, traces for HolisticTraceAnalysis, and Chakra execution traces.

**Chrome Trace Event JSON** is opened by Perfetto (ui.perfetto.dev) and chrome://tracing. One process a rank, one thread
a stream. Operations are complete events ("X"), the memory of each rank is a counter ("C"; by kind too, where a journal
was kept), and arrows ("s", "t", "f") lead from a send to its receive, through the members of a collective in rank
order, and from a launched operation to what was given its result. Times are in µs and are whole nanoseconds, as in
Perfetto. Events on a thread never overlap, not even by a rounding error, because Perfetto drops those that do. An
operation of 0 ns has no arrows, since viewers do not draw it.

**HolisticTraceAnalysis** reads a file a rank, as PyTorch's profiler writes them. Every operation is a GPU kernel:
computing on stream 7, PyTorch's default, communication on streams of its own, with names that begin with "nccl" and so
count as communication. Times are whole µs (HTA reads no fractions); starts and ends are rounded alike, so that
operations on a stream still do not overlap. HTA measures from a rank's first kernel to its last, so its idle time does
not contain what a rank waits before and after.

**Chakra** (Sridharan et al. 2023, arXiv 2305.14516; the schema et_def.proto of mlc-chakra 1.0.0) is read by ASTRA-sim
and MLCommons' own tools: one `.et` file a rank. Every operation is a node: compute, send, receive or collective. A node
has its duration in whole µs, and the operations of its rank that must end before it can begin: the compute operation
before it, those whose results were awaited since or given to it, and the communication before it on its stream.
Dependencies between ranks are not written, because they follow from the messages (`comm_src`, `comm_dst`, `comm_tag`)
and the process groups (`pg_name`, listed in `comm_groups.json`). The functions `pb_...` write the few parts of Protocol
Buffers' wire format (protobuf.dev/programming-guides/encoding) that a trace needs, in the place of a dependency; the
tests read with its library what they write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minitrain.errors import UsageError
from minitrain.files import write_bytes, write_text
from minitrain.operations import COMM, COMPUTE, HOST_MOVES, SEND
from minitrain.operations.collectives import COLLECTIVES, TRANSFERS
from minitrain.run.analysis.explanation import GAP_KINDS, find_gaps
from minitrain.run.analysis.labels import stream_name
from minitrain.run.analysis.memory_over_time import Journals, curves_by_kind
from minitrain.run.analysis.retiming import collectives, messages
from minitrain.run.analysis.timeline import NO_LAYER, NONE, Floats, Ints, Timeline, Trace, as_timeline
from minitrain.tensors.index_sets import grouped, ranges
from minitrain.view.bars import rows_of
from minitrain.workloads.matmul import MATMUL_LAYER

BY_KIND = "memory of"  # Perfetto appends the kind: "memory of weights"
_CHUNK = 4096


def chrome_trace(
    trace: Trace, bytes_per_element: float = MATMUL_LAYER.bytes_per_element, journals: Journals = ()
) -> dict[str, Any]:
    """Return a trace in Chrome's format, as JSON-ready data.

    Args:
        trace: one log a rank, or columns.
        bytes_per_element: bytes of one element of memory; by default those of the specified workload.
        journals: every change of every store, for counters by kind, if they were kept.
    """
    data: dict[str, Any] = json.loads("".join(_text(as_timeline(trace), bytes_per_element, journals)))
    return data


def write_chrome_trace(
    path: str | Path, trace: Trace, bytes_per_element: float = MATMUL_LAYER.bytes_per_element, journals: Journals = ()
) -> Path:
    """Write a trace in Chrome's format to `path`, compressed if it ends in ".gz", and return the path."""
    return write_text(path, _text(as_timeline(trace), bytes_per_element, journals))


def _text(timeline: Timeline, bytes_per_element: float, journals: Journals) -> Iterator[str]:
    """Write the file, some thousand events at a time."""
    clock = micros(timeline)
    lines = chain(
        _metadata(timeline),
        _slices(timeline, clock, bytes_per_element),
        memory_counters(timeline, bytes_per_element),
        kind_counters(timeline, journals, bytes_per_element),
        _arrows(timeline, clock),
    )
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    separator = ""
    while chunk := list(islice(lines, _CHUNK)):
        yield separator + ",\n".join(chunk)
        separator = ",\n"
    yield "\n]}\n"


def _first_thread(timeline: Timeline) -> int:
    """Return the id of the first thread: above every rank, since a process's own id marks its main thread."""
    return int(10 ** len(str(timeline.num_ranks)))


def _metadata(timeline: Timeline) -> Iterator[str]:
    """Name and order the processes (ranks) and threads (streams)."""
    first = _first_thread(timeline)
    names = [json.dumps(stream_name(stream)) for stream in timeline.streams]
    for rank in range(timeline.num_ranks):
        yield _meta("process_name", rank, f'"name":"rank {rank}"')
        yield _meta("process_sort_index", rank, f'"sort_index":{rank}')
    for key in np.unique(timeline.rank * len(names) + timeline.stream).tolist():
        rank, stream = divmod(key, len(names))
        yield _meta("thread_name", rank, f'"name":{names[stream]}', first + stream)
        yield _meta("thread_sort_index", rank, f'"sort_index":{stream}', first + stream)


def _meta(name: str, rank: int, args: str, thread: int | None = None) -> str:
    of_thread = "" if thread is None else f',"tid":{thread}'
    return f'{{"ph":"M","name":"{name}","pid":{rank}{of_thread},"args":{{{args}}}}}'


def _slices(timeline: Timeline, clock: Micros, bytes_per_element: float) -> Iterator[str]:
    """Write every operation as a complete event."""
    heads = [f'{{"ph":"X","name":{json.dumps(typ)},"cat":' for typ in timeline.typs]
    cats = ['"compute"' if stream.kind == COMPUTE else '"communication"' for stream in timeline.streams]
    samples = [f',"samples":"{ranges(numbers)}"' if numbers else "" for numbers in timeline.sample_sets]
    layers = _Layers(timeline)
    first = _first_thread(timeline)
    line, memories = timeline, timeline.memory * bytes_per_element
    rows = rows_of(line.typ, line.stream, line.rank, clock.start, clock.duration, memories, line.layer, line.samples)
    for (typ, stream, rank, start, length, memory, layer, sample), detail in zip(rows, _details(line), strict=True):
        of_layer = "" if layer == NO_LAYER else layers[layer]
        yield (
            f'{heads[typ]}{cats[stream]},"pid":{rank},"tid":{first + stream},"ts":{start},"dur":{length},'
            f'"args":{{"memory_bytes":{memory:.0f}{of_layer}{samples[sample]}{detail}}}}}'
        )


class _Layers(dict[int, str]):
    """The details that name a layer, by layer."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self.timeline = timeline

    def __missing__(self, layer: int) -> str:
        name = f',"layer_name":{json.dumps(self.timeline.layer_name(layer))}' if self.timeline.layer_names else ""
        self[layer] = f',"layer":{layer}{name}'
        return self[layer]


def _details(timeline: Timeline) -> list[str]:
    """Return the details that only some operations have: bytes moved, and how long they waited for which rank."""
    details = [""] * timeline.num_events
    for place in np.flatnonzero(timeline.size_bytes > 0).tolist():
        details[place] = f',"bytes":{timeline.size_bytes[place]:.0f}'
    waited = (timeline.time - timeline.launched) * 1e6
    for place in np.flatnonzero((waited > 0) | (timeline.waited_for != NONE)).tolist():
        rank = timeline.waited_for[place]
        reason = f"waited for rank {rank}" if rank != NONE else "waited for an earlier operation of its stream"
        details[place] += f',"waited_us":{waited[place]:.3f},"reason":"{reason}"'
    gaps = find_gaps(timeline)
    for gap in np.flatnonzero(gaps.event != NONE).tolist():
        details[gaps.event[gap]] += f',"idle_before":"{GAP_KINDS[gaps.kind[gap]]}","idle_for":"{gaps.reason(gap)}"'
    for place in np.flatnonzero(timeline.recomputed).tolist():
        details[place] += ',"recomputed":true'
    for made, given in rows_of(*_results(timeline)):
        details[given] += f',"given_result_of":{json.dumps(timeline.typs[timeline.typ[made]])}'
    return details


def _results(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return operations and what was given their results; a message only comes before another one."""
    made, given = timeline.handed_on
    gives = ~timeline.on_stream(SEND)[made]
    return made[gives], given[gives]


def _arrows(timeline: Timeline, clock: Micros) -> Iterator[str]:
    """Write an arrow for every message and result that was handed on, and one through the members of a collective."""
    lasts, first_id = clock.duration > 0, 1
    for name, (source, target) in (("message", messages(timeline)), ("chain", _results(timeline))):
        drawn = lasts[source] & lasts[target]
        pairs = np.column_stack([source, target])[drawn].reshape(-1)
        yield from _chains(name, pairs, np.arange(0, len(pairs) + 1, 2), timeline, clock, first_id)
        first_id += len(pairs)
    members, places = collectives(timeline)
    yield from _chains("collective", members, places, timeline, clock, first_id)


def _chains(name: str, members: Ints, places: Ints, timeline: Timeline, clock: Micros, first_id: int) -> Iterator[str]:
    """Write one arrow through the members of each message or collective that has at least two.

    Ids are whole numbers, since Perfetto accepts text only where it is a hexadecimal number.
    """
    first = _first_thread(timeline)
    lines = [
        f'"cat":"{name}","name":"{name}","pid":{rank},"tid":{first + stream},"ts":{start}}}'
        for rank, stream, start in rows_of(timeline.rank[members], timeline.stream[members], clock.start[members])
    ]
    lasts = (clock.duration[members] > 0).tolist()
    for begin, end in rows_of(places[:-1], places[1:]):
        if end - begin < 2 or not all(lasts[begin:end]):
            continue
        ident = f'"id":{first_id + begin},'
        yield f'{{"ph":"s",{ident}{lines[begin]}'
        for place in range(begin + 1, end - 1):
            yield f'{{"ph":"t","bp":"e",{ident}{lines[place]}'
        yield f'{{"ph":"f","bp":"e",{ident}{lines[end - 1]}'


def memory_counters(timeline: Timeline, bytes_per_element: float) -> Iterator[str]:
    """Write each rank's memory whenever it changes."""
    changed = np.ones(timeline.num_events, dtype=bool)
    changed[1:] = (np.diff(timeline.memory) != 0) | (np.diff(timeline.rank) != 0)
    at = as_micros(nanoseconds(timeline.sampled[changed]))
    for rank, start, memory in rows_of(timeline.rank[changed], at, timeline.memory[changed] * bytes_per_element):
        yield f'{{"ph":"C","name":"memory","pid":{rank},"ts":{start},"args":{{"bytes":{memory:.0f}}}}}'


def kind_counters(timeline: Timeline, journals: Journals, bytes_per_element: float) -> Iterator[str]:
    """Write each rank's memory by kind whenever any kind changes."""
    for rank in range(len(journals)):
        curves = curves_by_kind(timeline, journals, rank, timeline.last_end)
        if not curves:
            continue
        heads = [f"{json.dumps(name)}:" for name in curves]
        at = as_micros(nanoseconds(next(iter(curves.values())).time))
        sizes = [np.rint(curve.memory * bytes_per_element).astype(np.int64) for curve in curves.values()]
        head = f'{{"ph":"C","name":"{BY_KIND}","pid":{rank},"ts":'
        for start, *values in rows_of(at, *sizes):
            args = ",".join(f"{name}{value}" for name, value in zip(heads, values, strict=True))
            yield f'{head}{start},"args":{{{args}}}}}'


_LONGEST_S = 9e9  # nanoseconds of it fit into 64 bits


class Micros(NamedTuple):
    """When events start and how long they last, µs, (num_events,) each."""

    start: Floats
    duration: Floats


def micros(timeline: Timeline) -> Micros:
    """Return every event's start and duration; none overlaps with the next one of its rank and stream.

    Ends are limited twice: in whole nanoseconds, with which Perfetto computes, and as the floats that are written, so
    that start + duration <= the next start holds for any reader.
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
    """Return nanoseconds as µs; multiplied by 1000 and truncated, they give the same nanoseconds."""
    us: Floats = ns / 1000
    return np.where((us * 1000).astype(np.int64) < ns, np.nextafter(us, np.inf), us)


def _clamped(start: Floats, duration: Floats, limit: Floats) -> Floats:
    """Shorten durations, by a few units in the last place, until no end passes its limit."""
    duration = np.where(start + duration > limit, limit - start, duration)
    late = start + duration > limit
    duration = np.where(late, duration - 2 * np.spacing(np.maximum(start, duration)), duration)
    return np.maximum(duration, 0.0)


_COMPUTE_STREAM, _FIRST_COMM_STREAM = 7, 20
_KERNELS = {
    **{name: record.nccl for name, record in COLLECTIVES.items()},
    **{name: record.kernel for name, record in TRANSFERS.items()},
}


def write_hta(folder: str | Path, trace: Trace) -> list[Path]:
    """Write `rank_0.json`, `rank_1.json`, ... into a folder.

    Args:
        folder: where to; it is made if it does not exist.
        trace: one log a rank, or columns.

    Returns:
        The paths, by rank.
    """
    timeline = as_timeline(trace)
    start, end = (np.rint(times * 1e6).astype(np.int64) for times in (timeline.time, timeline.end))
    return [
        write_text(Path(folder, f"rank_{rank}.json"), _text_for_hta(timeline, rank, start, end))
        for rank in range(timeline.num_ranks)
    ]


def _text_for_hta(timeline: Timeline, rank: int, start: Ints, end: Ints) -> Iterator[str]:
    """Write one rank's file. HTA finds the rank by a pattern that wants the space before the number."""
    info = json.dumps({"rank": rank, "world_size": timeline.num_ranks})
    yield f'{{"schemaVersion": 1, "distributedInfo": {info}, "traceEvents": [\n'
    events = range(int(timeline.starts[rank]), int(timeline.starts[rank + 1]))
    yield ",\n".join(
        json.dumps(_kernel(timeline, event, int(start[event]), int(end[event])), separators=(",", ":"))
        for event in events
    )
    yield "\n]}\n"


def _kernel(timeline: Timeline, event: int, start: int, end: int) -> dict[str, Any]:
    """Return one operation as a kernel."""
    stream, rank = int(timeline.stream[event]), int(timeline.rank[event])
    computes = timeline.streams[stream].kind == COMPUTE
    place = _COMPUTE_STREAM if computes else _FIRST_COMM_STREAM + stream
    index = event - int(timeline.starts[rank])
    return {
        "ph": "X",
        "cat": "kernel",
        "name": _name(timeline, event, computes),
        "pid": rank,
        "tid": place,
        "ts": start,
        "dur": end - start,
        "args": {"stream": place, "correlation": index + 1, "External id": index + 1, "device": rank},
    }


def _name(timeline: Timeline, event: int, computes: bool) -> str:
    """Return a kernel's name: the operation and its layer."""
    typ, layer = timeline.typs[timeline.typ[event]], timeline.layer[event]
    name = typ if computes else _KERNELS.get(typ, f"ncclDevKernel_{typ}")
    return name if layer == NO_LAYER else f"{name}_{timeline.layer_name(int(layer)).replace(' ', '_')}"


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
    tags = np.full(timeline.num_events, NONE)
    sends, receives = messages(timeline)
    tags[sends] = tags[receives] = np.arange(len(sends))
    paths = [
        write_bytes(Path(folder, f"{name}.{rank}.et"), _file(timeline, rank, tags))
        for rank in range(timeline.num_ranks)
    ]
    whole = list(range(timeline.num_ranks))
    groups = {str(place): whole if group is None else list(group) for place, group in enumerate(timeline.groups)}
    return [*paths, write_text(Path(folder, "comm_groups.json"), [json.dumps(groups) + "\n"])]


def _file(timeline: Timeline, rank: int, tags: Ints) -> Iterator[bytes]:
    """Yield the messages of one rank's file: the schema's version, then a node an operation."""
    yield pb_delimited(pb_text(1, SCHEMA_VERSION))
    for event, waits_for in _dependencies(timeline, rank):
        yield pb_delimited(_node(timeline, event, waits_for, int(tags[event])))


def _dependencies(timeline: Timeline, rank: int) -> Iterator[tuple[int, list[int]]]:
    """Yield every event of a rank with those, of the same rank, whose end it waits for."""
    first, end = int(timeline.starts[rank]), int(timeline.starts[rank + 1])
    communications = (first + np.flatnonzero(~timeline.computes[first:end])).tolist()
    awaited = grouped((first + int(timeline.awaited[event]), event) for event in communications)
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
            pb_number(_ID, event - first),
            pb_text(_NAME, typ if layer == NO_LAYER else f"{typ} {timeline.layer_name(int(layer))}"),
            pb_number(_TYPE, _NODE_TYPES[timeline.streams[timeline.stream[event]].kind]),
            pb_numbers(_DATA_DEPS, [other - first for other in waits_for]),
            pb_number(_START, start),
            pb_number(_DURATION, round(timeline.end[event] * 1e6) - start),
            *(pb_data(_ATTR, attr) for attr in _attributes(timeline, event, typ, tag)),
        ]
    )


def _attributes(timeline: Timeline, event: int, typ: str, tag: int) -> Iterator[bytes]:
    """Yield the attributes of a node: the kind of work, how many bytes it moves, and between which ranks."""
    stream = timeline.streams[timeline.stream[event]]
    yield pb_text(_ATTR_NAME, "is_cpu_op") + pb_present(_ATTR_BOOL, 0)
    if stream.kind == COMPUTE:
        return
    if stream.kind in HOST_MOVES:
        yield _int64("tensor_size", round(timeline.size_bytes[event]))
        return
    yield _int64("comm_size", round(timeline.size_bytes[event]))
    if stream.kind == COMM:
        yield _int64("comm_type", COLLECTIVES[typ].chakra)
        group = str(int(timeline.group[event]))
        yield pb_text(_ATTR_NAME, "pg_name") + pb_text(_ATTR_STRING, group)
        return
    ends = int(timeline.rank[event]), int(timeline.peer[event])
    for name, rank in zip(("comm_src", "comm_dst"), ends if stream.kind == SEND else ends[::-1], strict=True):
        if rank != NONE:  # an event that a strategy logged by itself has no peer
            yield _int64(name, rank)
    yield _int64("comm_tag", max(tag, 0))


def _int64(name: str, value: int) -> bytes:
    """Return an attribute that is a whole number."""
    return pb_text(_ATTR_NAME, name) + pb_present(_ATTR_INT64, value)


_VARINT, _BYTES = 0, 2


def pb_varint(value: int) -> bytes:
    """Return a whole number, 0 or more, seven bits a byte, the lowest first.

    >>> pb_varint(300).hex()
    'ac02'
    """
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def pb_number(field: int, value: int) -> bytes:
    """Return a field that is a whole number; 0 is left out, as the format allows."""
    return pb_present(field, value) if value else b""


def pb_present(field: int, value: int) -> bytes:
    """Return a field that is a whole number, also if it is 0, as the members of a oneof must be written."""
    return pb_varint(field << 3 | _VARINT) + pb_varint(value)


def pb_data(field: int, value: bytes) -> bytes:
    """Return a field that is bytes or a message."""
    return pb_varint(field << 3 | _BYTES) + pb_varint(len(value)) + value


def pb_text(field: int, value: str) -> bytes:
    """Return a field that is text."""
    return pb_data(field, value.encode(errors="backslashreplace"))


def pb_numbers(field: int, values: Iterable[int]) -> bytes:
    """Return a repeated field of whole numbers, packed; nothing if there is none."""
    packed = b"".join(map(pb_varint, values))
    return pb_data(field, packed) if packed else b""


def pb_delimited(message: bytes) -> bytes:
    """Return a message after its length, the form of a file of several messages."""
    return pb_varint(len(message)) + message
