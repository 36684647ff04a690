"""Memory as the counters of a Chrome trace: one a rank, and one with a series a kind where journals were kept."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from minitrain.analysis.memory_by_kind import Journals, curves_by_kind
from minitrain.analysis.timeline import Timeline
from minitrain.trace.micros import as_micros, nanoseconds

BY_KIND = "memory of"  # Perfetto appends the kind: "memory of weights"


def memory_counters(timeline: Timeline, bytes_per_element: float) -> Iterator[str]:
    """Write each rank's memory whenever it changes."""
    changed = np.ones(timeline.num_events, dtype=bool)
    changed[1:] = (np.diff(timeline.memory) != 0) | (np.diff(timeline.rank) != 0)
    at = as_micros(nanoseconds(timeline.sampled[changed])).tolist()
    size = (timeline.memory[changed] * bytes_per_element).tolist()
    for rank, start, memory in zip(timeline.rank[changed].tolist(), at, size, strict=True):
        yield f'{{"ph":"C","name":"memory","pid":{rank},"ts":{start},"args":{{"bytes":{memory:.0f}}}}}'


def kind_counters(timeline: Timeline, journals: Journals, bytes_per_element: float) -> Iterator[str]:
    """Write each rank's memory by kind whenever any kind changes."""
    for rank in range(len(journals)):
        curves = curves_by_kind(timeline, journals, rank, timeline.step_time)
        if not curves:
            continue
        heads = [f"{json.dumps(name)}:" for name in curves]
        at = as_micros(nanoseconds(next(iter(curves.values())).time)).tolist()
        sizes = [np.rint(curve.memory * bytes_per_element).astype(np.int64).tolist() for curve in curves.values()]
        head = f'{{"ph":"C","name":"{BY_KIND}","pid":{rank},"ts":'
        for start, values in zip(at, zip(*sizes, strict=True), strict=True):
            args = ",".join(f"{name}{value}" for name, value in zip(heads, values, strict=True))
            yield f'{head}{start},"args":{{{args}}}}}'
