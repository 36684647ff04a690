"""The peak memory of many layouts at once, from what each piece adds and takes, and what their devices must hold."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from minitrain.run.analysis.timeline import Floats
from minitrain.run.device_memory import DeviceMemory, bytes_of_rounding
from minitrain.search.tuning.layouts import END_FIGURES, Columns
from minitrain.search.tuning.orders import BACKWARD, FORWARD, LAUNCHED, RECEIVE, SEND, WAIT, Order, order_of

_NET, _PEAK, _SHARD = (END_FIGURES.index(name) for name in ("net", "peak", "weight_shard"))
_PERIODS = 3
"""Rounds of microbatches after which memory repeats: one to fill the pipeline, one that is steady, one to empty it."""


def peaks_of(columns: Columns) -> tuple[Floats, Floats]:
    """Return what tensors of the fullest rank of each layout take, and what its device must hold, bytes.

    Returns:
        Two arrays, (num_layouts,) each: the second has what `minitrain.run.device_memory` counts as needed.
    """
    order = order_of(columns.pp, columns.num_chunks, _num_microbatches(columns), columns.messages)
    of_places = [_of_place(columns, order, place) for place in range(columns.pp)]
    tensors, needed = np.max(of_places, axis=0)[:, : columns.count] * columns.pieces.workload.bytes_per_element
    return tensors, needed


def _num_microbatches(columns: Columns) -> int:
    """Return as few microbatches as have the same peak."""
    return min(columns.num_microbatches, _PERIODS * columns.pp)


def _of_place(columns: Columns, order: Order, place: int) -> tuple[Floats, Floats]:
    """Return the peak memory of one place, without and with what is no tensor of the run, elements, (width,) each."""
    base, most = _loaded(columns, place)
    steps, keys = _steps(order, place)
    rows = [_row(columns, order, key) for key in keys]
    nets, tops = (np.stack(part)[steps] for part in zip(*rows, strict=True))
    before = np.cumsum(np.vstack([base, nets]), axis=0)
    tensors: Floats = np.maximum(most, (before[:-1] + tops).max(axis=0, initial=0.0))
    return tensors, tensors + _beside(columns, place)


def _beside(columns: Columns, place: int) -> Floats:
    """Return what a place's device must hold beside tensors, elements, (width,)."""
    workload = columns.pieces.workload
    found = np.zeros(columns.width)
    for stages, of_layouts in columns.blocks:
        layers = [layer for stage in columns.stages_of(place) for layer in stages[stage]]
        for column in of_layouts:
            ends, cp = columns.layouts[column].ends, columns.layouts[column].passes.cp
            memory = DeviceMemory(
                rank=place,
                peak_bytes=0.0,
                held_bytes=0.0,
                rounding_bytes=bytes_of_rounding(workload, layers),
                num_groups=(ends.tp > 1) + (ends.dp > 1) + (columns.pp > 1 or cp > 1),
            )
            found[column] = memory.beside_bytes / workload.bytes_per_element
    return found


def _loaded(columns: Columns, place: int) -> tuple[Floats, Floats]:
    """Return what a place holds once its layers are loaded, and the most until then."""
    base, most = np.zeros(columns.width), np.zeros(columns.width)
    for stage in columns.stages_of(place):
        for number in range(columns.num_layers(stage)):
            figures = columns.figures(stage, number)
            net = figures[_NET] + np.where(columns.gathers, figures[_SHARD], 0.0)
            most = np.maximum(most, base + np.maximum(figures[_PEAK], net))
            base = base + net
    return base, most


@lru_cache(maxsize=4096)
def _steps_of(asked: tuple[tuple[int, int], ...]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the steps of a place as indices into the distinct ones, and the distinct ones."""
    numbers: dict[tuple[int, int, int], int] = {}
    seen: set[tuple[int, int]] = set()
    steps = []
    for code, what in asked:
        if code in (SEND, RECEIVE):
            continue
        nth = 1 if (code, what) in seen else 0
        seen.add((code, what))
        steps.append(numbers.setdefault((code, what, nth), len(numbers)))
    return steps, list(numbers)


def _steps(order: Order, place: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the steps of a place; messages of one kind are one step."""
    asked: list[tuple[int, int]] = []
    first: dict[Hashable, int] = {}
    for code, what in order.asked[place]:
        if code in (FORWARD, BACKWARD, SEND, RECEIVE):
            asked.append((code, what))
        else:
            message = order.messages[what]
            kind = message.direction, message.stage, message.dest == place
            asked.append((code, first.setdefault(kind, what)))
    return _steps_of(tuple(asked))


def _row(columns: Columns, order: Order, key: tuple[int, int, int]) -> tuple[Floats, Floats]:
    """Return what a step adds, and the most that it adds meanwhile, elements, (width,) each."""
    code, what, nth = key
    if code == FORWARD and nth == 0 and columns.gathers.any():
        return _first_forward(columns, what)
    if code in (FORWARD, BACKWARD):
        return columns.memory(code, what, nth)
    sizes = columns.message_bytes(order.messages[what])
    if code == WAIT:
        return -sizes, np.zeros_like(sizes)
    assert code >= LAUNCHED
    return sizes, sizes


def _first_forward(columns: Columns, stage: int) -> tuple[Any, Any]:
    """Return what the first forward adds to memory; layouts that gather early free their shards in it."""
    net, most = np.zeros(columns.width), np.zeros(columns.width)
    for number in range(columns.num_layers(stage)):
        net = net - np.where(columns.gathers, columns.figures(stage, number)[_SHARD], 0.0)
        added, peak = columns.layer_memory(stage, number)
        most, net = np.maximum(most, net + peak), net + added
    return net, most
