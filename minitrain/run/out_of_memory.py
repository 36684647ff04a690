"""Noticing that a rank holds more than its device can."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

from minitrain.errors import OutOfMemoryError
from minitrain.events import LAUNCHED, MEMORY, STRIDE, UNITS_PER_ELEMENT
from minitrain.rank.model import Model
from minitrain.run.memory_reports import OutOfMemory
from minitrain.transport.deadlocks import RUN


@contextlib.contextmanager
def watching_memory(models: Sequence[Model], *, strict: bool) -> Iterator[list[OutOfMemory]]:
    """Let each rank report the first time that it holds more than the device can, into a list.

    Args:
        models: the ranks; all have the same device.
        strict: raise at once, or at the end of the run where a launched result comes from another rank.

    Raises:
        OutOfMemoryError: with `strict`, a rank held too much.
    """
    excesses: list[OutOfMemory] = []
    predictor = models[0].runtime_predictor
    capacity_bytes, element_bytes = predictor.capacity_bytes, predictor.workload.bytes_per_element

    def report(model: Model) -> None:
        assert capacity_bytes is not None  # or nobody reports
        held = {name: elements * element_bytes for name, elements in model.memory_by_store().items()}
        excess = OutOfMemory(model.rank, _moment(model, limit_units), capacity_bytes, held)
        excesses.append(excess)
        _, running = RUN.get() or (None, model.rank)
        if strict and running == model.rank:  # or it is too much for one rank what another one's operation brings
            raise _error(excess)

    limit_units = math.inf if capacity_bytes is None else capacity_bytes / element_bytes * UNITS_PER_ELEMENT
    if capacity_bytes is not None:
        for model in models:
            model.counted.limit_units = limit_units
            model.counted.on_overflow = lambda model=model: report(model)
    try:
        yield excesses
        if strict and excesses:
            raise _error(min(excesses, key=lambda excess: (excess.time, excess.rank)))
    finally:
        for model in models:
            model.counted.on_overflow = None  # which keeps the model alive


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
