"""Reporting that a rank holds more than its device's memory, at the first moment that it does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

from minitrain.errors import OutOfMemoryError
from minitrain.events import LAUNCHED, MEMORY, STRIDE, UNITS_PER_ELEMENT
from minitrain.rank.model import Model
from minitrain.run.memory_reports import OutOfMemory
from minitrain.transport.task_ownership import running_rank


@contextlib.contextmanager
def watching_memory(models: Sequence[Model], *, strict: bool) -> Iterator[list[OutOfMemory]]:
    """Provide a list into which each rank reports the first time that it holds more than its device can.

    Args:
        models: the ranks, each with its own device.
        strict: raise at once, or at the end of the run where a launched result comes from another rank.

    Raises:
        OutOfMemoryError: with `strict`, a rank held too much.
    """
    excesses: list[OutOfMemory] = []
    element_bytes = models[0]._runtime_predictor.workload.bytes_per_element  # all ranks train the same

    def report(model: Model, capacity_bytes: float) -> None:
        held = {name: elements * element_bytes for name, elements in model.memory_by_store().items()}
        device = getattr(model._runtime_predictor, "device_name", "")
        moment = moment_of_excess(model, units_of(capacity_bytes, element_bytes))
        excess = OutOfMemory(model.rank, moment, capacity_bytes, held, device)
        excesses.append(excess)
        if strict and running_rank() in (
            None,
            model.rank,
        ):  # or another rank's operation has delivered it
            raise _error(excess)

    for model in models:
        capacity_bytes = model._runtime_predictor.capacity_bytes
        if capacity_bytes is not None:
            counted = model._counted
            counted.limit_units = units_of(capacity_bytes, element_bytes)
            counted.on_overflow = partial(report, model, capacity_bytes)
    try:
        yield excesses
        if strict and excesses:
            raise _error(min(excesses, key=lambda excess: (excess.time, excess.rank)))
    finally:
        for model in models:
            model._counted.on_overflow = None  # it would keep the model alive


def units_of(size_bytes: float, element_bytes: int) -> float:
    """Return bytes in the units that an account of memory counts."""
    return size_bytes / element_bytes * UNITS_PER_ELEMENT


def _error(excess: OutOfMemory) -> OutOfMemoryError:
    """Return the error for a rank that held too much."""
    return OutOfMemoryError(f"{excess}; shard more, use smaller microbatches, or free tensors sooner", oom=excess)


def moment_of_excess(model: Model, limit_units: float) -> float:
    """Return the clock at which a rank first held too much: that of the first event that noted too much, or now.

    The size of a launched result may not be known before it comes. Then it is added to the memory that the events since
    the launch have noted. When it comes depends on the order of tasks, and what events note does not.
    """
    rows = model.log._rows
    found = (place for place, units in enumerate(rows[MEMORY::STRIDE]) if units > limit_units)
    return next((rows[place * STRIDE + LAUNCHED] for place in found), model.time)
