"""On which machines a rank holds more than its device's memory, and since when.

What a rank holds is the same on all machines, and how much they can hold is not. So the account reports when it first
exceeds the smallest memory, then the next larger one, and so on. Each report says what the rank held and when, as
`minitrain.run.out_of_memory` does for one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from minitrain.hardware.per_machine import Ints, values_of
from minitrain.rank.model import Model
from minitrain.run.device_memory import device_memory_of
from minitrain.run.memory_reports import OutOfMemory
from minitrain.run.out_of_memory import excess_of, moment_of_excess, units_of, worst_of


@dataclass(frozen=True, slots=True)
class ExceededMemory:
    """Machines of one size whose memory a rank exceeded.

    Args:
        machines: which.
        rank: the rank.
        time: its clock when it did, s; a number for each of all machines, or one.
        capacity_bytes: their memory.
        held_bytes: what the rank held then, by store.
    """

    machines: Ints
    rank: int
    time: Any
    capacity_bytes: float
    held_bytes: Mapping[str, float]

    def at(self, machine: int) -> OutOfMemory:
        """Return the report of one machine."""
        return OutOfMemory(self.rank, _at(self.time, machine), self.capacity_bytes, self.held_bytes)


class CapacityWatch:
    """Notes which memories one rank exceeds.

    Args:
        model: the rank, before it begins.

    Attributes:
        excesses: what was exceeded so far, smaller memories first.
    """

    def __init__(self, model: Model) -> None:
        self.excesses: list[ExceededMemory] = []
        predictor: Any = model._runtime_predictor  # of many machines
        self._sizes, self._label = predictor.capacities
        self._expect_next(model)

    def _expect_next(self, model: Model) -> None:
        """Wait until the smallest memory is exceeded that was not so far."""
        if len(self.excesses) < len(self._sizes):
            size_bytes = self._sizes[len(self.excesses)]
            model._meter.limit_units = units_of(size_bytes, _element_bytes(model))
            model._meter.on_overflow = partial(self._report, model)

    def _report(self, model: Model) -> None:
        """Note all memories that are exceeded now."""
        element_bytes, most = _element_bytes(model), model._meter.high_water()
        held = {name: elements * element_bytes for name, elements in model.memory_by_store().items()}
        for label, size_bytes in enumerate(self._sizes[len(self.excesses) :], len(self.excesses)):
            limit = units_of(size_bytes, element_bytes)
            if most <= limit:
                break
            machines = np.flatnonzero(self._label == label)
            self.excesses.append(
                ExceededMemory(machines, model._rank, moment_of_excess(model, limit), size_bytes, held)
            )
        self._expect_next(model)


def _element_bytes(model: Model) -> int:
    """Return the size of an element."""
    return model._runtime_predictor.workload.bytes_per_element


def excesses_of_devices(models: Sequence[Any], sizes: Sequence[float | None]) -> list[OutOfMemory | None]:
    """Return, for each machine, the rank that needs most beyond what its device has; None where all fit.

    Args:
        models: the ranks, at the end of a run that says all that a device must hold.
        sizes: the memory of each machine's devices, bytes.
    """
    memories = [device_memory_of(model) for model in models]
    found: list[OutOfMemory | None] = []
    for machine, size_bytes in enumerate(sizes):
        worst = worst_of(excess_of(model, memory, size_bytes) for model, memory in zip(models, memories, strict=True))
        found.append(worst and replace(worst, time=_at(worst.time, machine)))
    return found


def _at(time: Any, machine: int) -> float:
    """Return a time on one machine."""
    times = values_of(time)
    return float(times[machine]) if np.ndim(times) else times


def first_excesses(models: Sequence[Any], num_machines: int) -> list[OutOfMemory | None]:
    """Return, for each machine, the first rank's report in time; None where all ranks fit."""
    first_time, first = np.full(num_machines, np.inf), np.full(num_machines, -1)
    excesses = [excess for model in models for excess in model.capacities.excesses]
    for place, excess in enumerate(excesses):  # ranks ascend, so that the lowest of several at once stays
        times = np.broadcast_to(values_of(excess.time), num_machines)[excess.machines]
        earlier = excess.machines[times < first_time[excess.machines]]
        first_time[earlier] = np.broadcast_to(values_of(excess.time), num_machines)[earlier]
        first[earlier] = place
    return [None if place < 0 else excesses[place].at(machine) for machine, place in enumerate(first.tolist())]
