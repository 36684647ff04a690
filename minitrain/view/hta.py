"""Event logs -> files for HolisticTraceAnalysis, one a rank, as PyTorch's profiler writes them.

Every operation is a GPU kernel: computing on stream 7, PyTorch's default, communication on streams of its own, with
names that begin with "nccl" and so count as communication. Times are whole µs (HTA reads no fractions); starts and
ends are rounded alike, so that operations on a stream still do not overlap. HTA measures from a rank's first kernel
to its last, so its idle time does not contain what a rank waits before and after.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minitrain.files import write_text
from minitrain.operations import COMPUTE
from minitrain.operations.collectives import COLLECTIVES
from minitrain.operations.transfers import TRANSFERS
from minitrain.run.analysis.timeline import NO_LAYER, Ints, Timeline, Trace, as_timeline

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
        write_text(Path(folder, f"rank_{rank}.json"), _text(timeline, rank, start, end))
        for rank in range(timeline.num_ranks)
    ]


def _text(timeline: Timeline, rank: int, start: Ints, end: Ints) -> Iterator[str]:
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
