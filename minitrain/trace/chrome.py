"""Event logs -> Chrome Trace Event JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

One process a rank, one thread a stream. Operations are complete events ("X"), the memory of each rank is a counter
("C"; by kind too, where a journal was kept), and arrows ("s", "t", "f") lead from a send to its receive and through
the members of a collective in rank order. Times are in µs, in whole nanoseconds (what Perfetto keeps), and events on
a thread never overlap, not even by a rounding error, because Perfetto drops those that do. An operation that lasts 0
ns has no arrows: viewers find nothing there to tie them to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from minitrain.analysis.labels import ranges, stream_name
from minitrain.analysis.matching import collectives, messages
from minitrain.analysis.memory_by_kind import Journals
from minitrain.analysis.timeline import NO_LAYER, NONE, Ints, Timeline, Trace, as_timeline
from minitrain.analysis.waits import GAP_KINDS, find_gaps
from minitrain.events import COMPUTE
from minitrain.files import write_text
from minitrain.tensors import BYTES_PER_ELEMENT
from minitrain.trace.counters import kind_counters, memory_counters
from minitrain.trace.micros import Micros, micros

_CHUNK = 4096


def chrome_trace(trace: Trace, bytes_per_element: float = BYTES_PER_ELEMENT, journals: Journals = ()) -> dict[str, Any]:
    """Return a trace in Chrome's format, as JSON-ready data.

    Args:
        trace: one log a rank, or columns.
        bytes_per_element: bytes of one element of memory.
        journals: every change of every store, for counters by kind, if they were kept.
    """
    data: dict[str, Any] = json.loads("".join(_text(as_timeline(trace), bytes_per_element, journals)))
    return data


def write_chrome_trace(
    path: str | Path, trace: Trace, bytes_per_element: float = BYTES_PER_ELEMENT, journals: Journals = ()
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
    first = _first_thread(timeline)
    rows = zip(
        timeline.typ.tolist(),
        timeline.stream.tolist(),
        timeline.rank.tolist(),
        clock.start.tolist(),
        clock.duration.tolist(),
        (timeline.memory * bytes_per_element).tolist(),
        timeline.layer.tolist(),
        timeline.samples.tolist(),
        _details(timeline),
        strict=True,
    )
    for typ, stream, rank, start, length, memory, layer, sample, detail in rows:
        of_layer = "" if layer == NO_LAYER else f',"layer":{layer}'
        yield (
            f'{heads[typ]}{cats[stream]},"pid":{rank},"tid":{first + stream},"ts":{start},"dur":{length},'
            f'"args":{{"memory_bytes":{memory:.0f}{of_layer}{samples[sample]}{detail}}}}}'
        )


def _details(timeline: Timeline) -> list[str]:
    """Return what only some operations have: bytes moved, and how long they waited and for whom."""
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
    return details


def _arrows(timeline: Timeline, clock: Micros) -> Iterator[str]:
    """Write an arrow for every message, and one through the members of every collective."""
    lasts = clock.duration > 0
    sends, receives = messages(timeline)
    drawn = lasts[sends] & lasts[receives]
    pairs = np.column_stack([sends, receives])[drawn].reshape(-1)
    yield from _chains("message", pairs, np.arange(0, len(pairs) + 1, 2), timeline, clock, 1)
    members, places = collectives(timeline)
    yield from _chains("collective", members, places, timeline, clock, 1 + len(pairs))


def _chains(name: str, members: Ints, places: Ints, timeline: Timeline, clock: Micros, first_id: int) -> Iterator[str]:
    """Write one arrow through each run of two or more members, from one place to the next.

    Ids are whole numbers: of text, Perfetto takes only what reads as a hexadecimal number.
    """
    first = _first_thread(timeline)
    lines = [
        f'"cat":"{name}","name":"{name}","pid":{rank},"tid":{first + stream},"ts":{start}}}'
        for rank, stream, start in zip(
            timeline.rank[members].tolist(),
            timeline.stream[members].tolist(),
            clock.start[members].tolist(),
            strict=True,
        )
    ]
    lasts = (clock.duration[members] > 0).tolist()
    for begin, end in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
        if end - begin < 2 or not all(lasts[begin:end]):
            continue
        ident = f'"id":{first_id + begin},'
        yield f'{{"ph":"s",{ident}{lines[begin]}'
        for place in range(begin + 1, end - 1):
            yield f'{{"ph":"t","bp":"e",{ident}{lines[place]}'
        yield f'{{"ph":"f","bp":"e",{ident}{lines[end - 1]}'
