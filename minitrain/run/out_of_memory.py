"""Reporting that a rank holds more than its device's memory, at the first moment that it does.

Runs of transformers are judged at their end, by all that a device must hold (`minitrain.run.device_memory`): what
communication libraries keep is known then. Others are judged by their tensors alone, while they run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from minitrain.errors import OutOfMemoryError
from minitrain.events import LAUNCHED, MEMORY, STRIDE, UNITS_PER_ELEMENT
from minitrain.rank.model import Model
from minitrain.run.device_memory import DeviceMemory
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
        excess = OutOfMemory(model._rank, moment, capacity_bytes, held, device)
        excesses.append(excess)
        if strict and running_rank() in (
            None,
            model._rank,
        ):  # or another rank's operation has delivered it
            raise error_of(excess)

    for model in models:
        capacity_bytes = model._runtime_predictor.capacity_bytes
        if capacity_bytes is not None:
            counted = model._meter
            counted.limit_units = units_of(capacity_bytes, element_bytes)
            counted.on_overflow = partial(report, model, capacity_bytes)
    try:
        yield excesses
        if strict and excesses:
            raise error_of(min(excesses, key=when))
    finally:
        for model in models:
            model._meter.on_overflow = None  # it would keep the model alive


def units_of(size_bytes: float, element_bytes: int) -> float:
    """Return bytes in the units that an account of memory counts."""
    return size_bytes / element_bytes * UNITS_PER_ELEMENT


def when(excess: OutOfMemory) -> tuple[float, int]:
    """Return the sort key of excesses: the first in time, of the lowest rank."""
    return excess.time, excess.rank


def excess_of(model: Any, memory: DeviceMemory, capacity_bytes: float | None) -> OutOfMemory | None:
    """Return when a rank was fullest and why that is more than its device has; None where all fits.

    Args:
        model: the rank.
        memory: what its device must hold.
        capacity_bytes: what there is; None where it is not known.
    """
    if capacity_bytes is None or memory.needed_bytes <= capacity_bytes:
        return None
    element_bytes = model._runtime_predictor.workload.bytes_per_element
    kinds = model.peak_by_kind or {}
    tensors = {kind: elements * element_bytes for kind, elements in kinds.items()}
    device = getattr(model._runtime_predictor, "device_name", "")
    held = (tensors or {"tensors": memory.peak_bytes}) | memory.beside_tensors()
    return OutOfMemory(model._rank, memory.fullest_s, capacity_bytes, held, device)


def worst_of(excesses: Iterable[OutOfMemory | None]) -> OutOfMemory | None:
    """Return the largest excess, of the lowest rank; None where there is none."""
    found = [excess for excess in excesses if excess is not None]
    return max(found, key=lambda excess: (excess.excess_bytes, -excess.rank), default=None)


def error_of(excess: OutOfMemory) -> OutOfMemoryError:
    """Return the error for a rank that held too much."""
    return OutOfMemoryError(f"{excess}; shard more, use smaller microbatches, or free tensors sooner", oom=excess)


def moment_of_excess(model: Model, limit_units: float) -> float:
    """Return the clock at which a rank first held too much: that of the first event that noted too much, or now.

    The size of a launched result may not be known before it comes. Then it is added to the memory that the events since
    the launch have noted. When it comes depends on the order of tasks, and what events note does not.
    """
    rows = model._log._rows
    found = (place for place, units in enumerate(rows[MEMORY::STRIDE]) if units > limit_units)
    return next((rows[place * STRIDE + LAUNCHED] for place in found), model.time)
