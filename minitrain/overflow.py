"""Noticing that a rank holds more than its device can."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from minitrain.errors import OutOfMemoryError
from minitrain.model import Model
from minitrain.run import OutOfMemory
from minitrain.storage import UNITS_PER_ELEMENT


@contextlib.contextmanager
def watching_memory(models: Sequence[Model], *, strict: bool) -> Iterator[list[OutOfMemory]]:
    """Let each rank report the first time that it holds more than the device can, into a list.

    Args:
        models: the ranks; all have the same device.
        strict: raise at once.

    Raises:
        OutOfMemoryError: with `strict`, a rank held too much.
    """
    excesses: list[OutOfMemory] = []
    predictor = models[0].runtime_predictor
    capacity_bytes, element_bytes = predictor.capacity_bytes, predictor.workload.bytes_per_element

    def report(model: Model) -> None:
        assert capacity_bytes is not None  # or nobody reports
        held = {name: elements * element_bytes for name, elements in model.memory_by_store().items()}
        excess = OutOfMemory(model.rank, model.time, capacity_bytes, held)
        excesses.append(excess)
        if strict:
            raise OutOfMemoryError(
                f"{excess}; shard more, use smaller microbatches, or free tensors sooner", oom=excess
            )

    if capacity_bytes is not None:
        for model in models:
            model.counted.limit_units = capacity_bytes / element_bytes * UNITS_PER_ELEMENT
            model.counted.on_overflow = lambda model=model: report(model)
    try:
        yield excesses
    finally:
        for model in models:
            model.counted.on_overflow = None  # which keeps the model alive
