"""Noticing that a rank holds more than its device can."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

from minitrain.errors import OutOfMemoryError
from minitrain.events import LAUNCHED, MEMORY, STRIDE, UNITS_PER_ELEMENT
from minitrain.rank.model import Model
from minitrain.run.result import OutOfMemory
from minitrain.transport.deadlocks import RUN


@contextlib.contextmanager
def watching_memory(models: Sequence[Model], *, strict: bool) -> Iterator[list[OutOfMemory]]:
    """Let each rank report the first time that it holds more than the device can, into a list.

    Args:
        models: the ranks, each with its own device.
        strict: raise at once, or at the end of the run where a launched result comes from another rank.

    Raises:
        OutOfMemoryError: with `strict`, a rank held too much.
    """
    excesses: list[OutOfMemory] = []
    element_bytes = models[0].runtime_predictor.workload.bytes_per_element  # all ranks train the same

    def report(model: Model, capacity_bytes: float) -> None:
        held = {name: elements * element_bytes for name, elements in model.memory_by_store().items()}
        excess = OutOfMemory(model.rank, _moment(model, _units(capacity_bytes, element_bytes)), capacity_bytes, held)
        excesses.append(excess)
        _, running = RUN.get() or (None, model.rank)
        if strict and running == model.rank:  # or it is too much for one rank what another one's operation brings
            raise _error(excess)

    for model in models:
        capacity_bytes = model.runtime_predictor.capacity_bytes
        if capacity_bytes is not None:
            model.counted.limit_units = _units(capacity_bytes, element_bytes)
            model.counted.on_overflow = partial(report, model, capacity_bytes)
    try:
        yield excesses
        if strict and excesses:
            raise _error(min(excesses, key=lambda excess: (excess.time, excess.rank)))
    finally:
        for model in models:
            model.counted.on_overflow = None  # which keeps the model alive


def _units(size_bytes: float, element_bytes: int) -> float:
    """Return bytes in the units that an account of memory counts."""
    return size_bytes / element_bytes * UNITS_PER_ELEMENT


def _error(excess: OutOfMemory) -> OutOfMemoryError:
    """Return the error for a rank that held too much."""
    return OutOfMemoryError(f"{excess}; shard more, use smaller microbatches, or free tensors sooner", oom=excess)


def _moment(model: Model, limit_units: float) -> float:
    """Return the clock at which a rank first held too much: now, or that of the first event that found it so.

    A result whose size was not known at its launch has been counted from there on when it comes, and with it the
    memory that later events found; when it came depends on the order of tasks, and what they found does not.
    """
    rows = model.log.rows
    found = (place for place, units in enumerate(rows[MEMORY::STRIDE]) if units > limit_units)
    return next((rows[place * STRIDE + LAUNCHED] for place in found), model.time)
