"""The number that is written on a bar, and the text that appears when the mouse is over it."""

from __future__ import annotations

import numpy as np

from minitrain.analysis.explanation import GAP_KINDS
from minitrain.analysis.labels import GIB, duration
from minitrain.analysis.timeline import NO_LAYER, NONE, Ints, Stream, Timeline
from minitrain.events import HOST_MOVES, OFFLOAD
from minitrain.tensors.index_sets import ranges
from minitrain.trace.bars import Bars


def bar_numbers(timeline: Timeline) -> Ints:
    """Return the number to write on each event, or `NONE`: its microbatch or, where a rank has only one, its layer."""
    numbers = microbatches(timeline)
    if numbers.max(initial=NONE) < 1:
        return np.where(timeline.layer == NO_LAYER, NONE, timeline.layer)
    return numbers


def microbatches(timeline: Timeline) -> Ints:
    """Return the microbatch of each event, or `NONE`, (num_events,).

    Microbatches are counted on each rank from 0, in the order of their samples.
    """
    works = timeline.beginning_with("forward", "backward")
    lowest = np.array([min(samples, default=NONE) for samples in timeline.sample_sets], np.int64)
    if not timeline.num_events:
        return np.zeros(0, np.int64)
    base = int(lowest.max()) + 2
    keys = timeline.rank * base + lowest[timeline.samples] + 1
    known = np.unique(keys[works & (lowest[timeline.samples] >= 0)])
    first = np.searchsorted(known, np.arange(timeline.num_ranks) * base)
    if not len(known):
        return np.full(timeline.num_events, NONE)
    place = np.searchsorted(known, keys)
    is_known = known[np.minimum(place, len(known) - 1)] == keys
    return np.where(is_known, place - first[timeline.rank], NONE)


def bar_labels(bars: Bars) -> Ints:
    """Return the number to write on each bar, or `NONE` on waits and where the operations of a bar differ in it."""
    numbers = np.append(bar_numbers(bars.timeline), NONE)
    same = numbers[bars.event] == numbers[bars.last]
    return np.where(bars.waits | ~same, NONE, numbers[bars.event])


def hover_texts(bars: Bars, bytes_per_element: float) -> list[str]:
    """Return the text of each bar that appears when the mouse is over it."""
    line = bars.timeline
    names = [kind.name for kind in bars.kinds]
    partners = [_partners(stream) for stream in line.streams]  # groups and sets of samples may be large
    samples: dict[int, str] = {}
    for code in np.unique(line.samples[bars.event[~bars.waits]]).tolist():
        numbers = line.sample_sets[code]
        samples[code] = f"samples {ranges(numbers)}" if numbers else ""
    texts = []
    for place, event in enumerate(bars.event.tolist()):
        span = f"{duration(bars.duration[place])} from {duration(bars.start[place])}"
        head = f"<b>{names[bars.kind[place]]}</b> · rank {line.rank_name(bars.rank[place])}"
        if bars.waits[place]:
            gap = int(bars.gap[place])
            texts.append(f"{head}<br>{span}<br>for {bars.gaps.reason(gap)}<br>{GAP_KINDS[bars.gaps.kind[gap]]}")
            continue
        layer = _layers(line, event, int(bars.last[place]))
        works_on = " · ".join(part for part in (layer, samples[line.samples[event]]) if part)
        memory = f"memory {line.memory[event] * bytes_per_element / GIB:.4g} GiB"
        moved = f"{_amount(line.size_bytes[event])} {partners[line.stream[event]]}".strip()
        facts = [head, works_on, span, moved, memory]
        texts.append("<br>".join(fact for fact in facts if fact))
    return texts


def _layers(line: Timeline, first: int, last: int) -> str:
    """Name the layer of one operation, or the layers from a first to a last one."""
    layers = sorted({layer for layer in line.layer[[first, last]].tolist() if layer != NO_LAYER})
    if line.layer_names:
        return " to ".join(map(line.layer_name, layers))
    return f"layer{'s' if len(layers) > 1 else ''} {'-'.join(map(str, layers))}" if layers else ""


def _amount(size_bytes: float) -> str:
    """Say how much an operation moved."""
    return f"{size_bytes / 2**20:.4g} MiB" if size_bytes else ""


def _partners(stream: Stream) -> str:
    """Say with whom the operations of a stream exchange what they move."""
    if stream.peer is not None:
        return f"{'to' if stream.kind == 'send' else 'from'} rank {stream.peer}"
    if stream.kind in HOST_MOVES:
        return f"{'to' if stream.kind == OFFLOAD else 'from'} the host"
    return f"among ranks {ranges(stream.group)}" if stream.group else ""
