"""How a workload stays within a device's memory: keep all, free after the last use, or cut the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

from minitrain.heterogeneous.workloads import WorkloadProfile


@final
@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How a workload stays within a device's memory.

    Args:
        strategy: the name of what made the plan.
        peak_bytes: the most that it holds at a time, inputs included.
        num_microbatches: into how many pieces of the batch it is cut.
        freed_after: by operation, the arrays that are freed after it.
    """

    strategy: str
    peak_bytes: int
    num_microbatches: int = 1
    freed_after: Mapping[str, tuple[str, ...]] | None = None


MemoryStrategy = Callable[[WorkloadProfile, int], MemoryPlan | None]
"""Makes a plan for a workload within so many bytes, or None where it has none."""


def keep_all(workload: WorkloadProfile, capacity_bytes: int) -> MemoryPlan:  # noqa: ARG001  (the form of strategies)
    """Keep everything until the end."""
    return MemoryPlan("keep_all", sum(spec.num_bytes for spec in workload.specs.values()))


def free_after_last_use(workload: WorkloadProfile, capacity_bytes: int) -> MemoryPlan:  # noqa: ARG001  (as above)
    """Free an array once no later operation reads it, unless it is a wanted result."""
    last = {name: readers[-1] for name, readers in workload.consumers().items() if readers}
    wanted, held = set(workload.wanted), sum(workload.specs[name].num_bytes for name in workload.inputs)
    peak, freed = held, dict[str, tuple[str, ...]]()
    for operation in workload.by_name:
        held += workload.specs[operation].num_bytes
        peak = max(peak, held)
        gone = tuple(name for name, reader in last.items() if reader == operation and name not in wanted)
        held -= sum(workload.specs[name].num_bytes for name in gone)
        freed |= {operation: gone} if gone else {}
    return MemoryPlan("free_after_last_use", peak, freed_after=freed)


def microbatches(workload: WorkloadProfile, capacity_bytes: int) -> MemoryPlan | None:
    """Cut the batch into twice as many pieces until one fits; what has no batch cannot be cut."""
    if not workload.batch_inputs:
        return None
    count = 1
    while count < 2 * workload.batch_size:
        piece = free_after_last_use(workload.at_batch(-(-workload.batch_size // count)), capacity_bytes)
        if piece.peak_bytes <= capacity_bytes:
            return MemoryPlan("microbatches", piece.peak_bytes, count, piece.freed_after)
        count *= 2
    return None


MEMORY_STRATEGIES: Mapping[str, MemoryStrategy] = MappingProxyType(
    {"keep_all": keep_all, "free_after_last_use": free_after_last_use, "microbatches": microbatches}
)
"""All of them, in the order in which they are tried."""
