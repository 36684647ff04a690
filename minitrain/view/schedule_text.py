"""A run's schedule as text, a rank a line: `F0 F1 B0 F2 B1 ...`, as papers and schedule files write it.

F is a forward, B a backward, I and W the two halves of a split one; the number is the microbatch, counted on each rank.
Consecutive layers are one token. Where ranks hold several stages, the stage comes first: `1F0`.
"""

from __future__ import annotations

import numpy as np

from minitrain.operations.computations import COMPUTATIONS
from minitrain.run.analysis.timeline import NO_LAYER, NONE, Bools, Ints, Timeline, Trace, as_timeline
from minitrain.view.bars import microbatches

_LETTERS = {name: record.letter for name, record in COMPUTATIONS.items() if record.letter}


def schedule_text(trace: Trace) -> str:
    r"""Return the order of forwards and backwards of every rank, one line each.

    >>> import minitrain as mt
    >>> run = mt.simulate("1f1b", world_size=2, num_layers=2, global_batch_size=3, microbatch_size=1)
    >>> print(schedule_text(run.timeline), end="")
    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2
    """
    timeline = as_timeline(trace)
    tokens: list[list[str]] = [[] for _ in range(timeline.num_ranks)]
    events, lowest = _tokens(timeline)
    stages = _stages(timeline, events, lowest)
    numbers = microbatches(timeline)
    for event, stage in zip(events.tolist(), stages, strict=True):
        letter, number = _LETTERS[timeline.typs[timeline.typ[event]]], int(numbers[event])
        tokens[timeline.rank[event]].append(f"{stage}{letter}{number if number != NONE else ''}")
    return "".join(" ".join(line) + "\n" for line in tokens)


def _tokens(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the first event of each token, by rank and time, and the lowest layer of each."""
    passes = np.flatnonzero(_is_pass(timeline))
    order = passes[np.lexsort((passes, timeline.time[passes], timeline.rank[passes]))]
    if not len(order):
        return order, order
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = np.abs(np.diff(timeline.layer[order])) != 1
    for column in (timeline.rank, timeline.typ, timeline.samples):
        is_new[1:] |= column[order][1:] != column[order][:-1]
    first = np.flatnonzero(is_new)
    return order[first], np.minimum.reduceat(timeline.layer[order], first)


def _is_pass(timeline: Timeline) -> Bools:
    """Tell which events are passes through a layer, (num_events,)."""
    is_pass: Bools = timeline.of_types(_LETTERS) & (timeline.layer != NO_LAYER)
    return is_pass


def _stages(timeline: Timeline, events: Ints, lowest: Ints) -> list[str]:
    """Return the stage to write before each token: nothing where every rank has one."""
    pairs = np.unique(np.stack([timeline.rank[events], lowest], axis=1), axis=0)
    if not len(pairs) or np.bincount(pairs[:, 0]).max() < 2:
        return [""] * len(events)
    return [str(stage) for stage in np.searchsorted(np.unique(lowest), lowest).tolist()]
