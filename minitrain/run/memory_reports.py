"""What a run reports about its memory: what filled the device's, of which kinds, and what was outside the stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from minitrain.events import MemoryChange
from minitrain.rank.memory_by_kind import MEMORY_KINDS

_KIND_OF_STORE = MappingProxyType(
    {
        "weights": "weights",
        "grad_weights": "gradients",
        "opt_states": "optimizer",
        "activations": "activations",
        "grad_activations": "activations",
        "logits": "logits",
        "in_flight": "buffers",
    }
)


def kinds_of_journals(journals: Sequence[Sequence[MemoryChange]], bytes_per_element: int) -> dict[str, float]:
    """Return the bytes of each kind on the rank whose stores held most, when they did."""
    peaks = [_peak_of(journal) for journal in journals]
    elements, place, rank = max((total, -place, -rank) for rank, (total, place) in enumerate(peaks))
    found = dict.fromkeys(MEMORY_KINDS, 0.0)
    for change in journals[-rank][: 1 - place] if elements else ():
        found[_KIND_OF_STORE[change.kind]] += change.elements * bytes_per_element
    return found


def _peak_of(journal: Sequence[MemoryChange]) -> tuple[float, int]:
    """Return the most elements that a rank's stores held, and after which change first."""
    total, peak, place = 0.0, 0.0, 0
    for index, change in enumerate(journal):
        total += change.elements
        if total > peak:
            peak, place = total, index
    return peak, place


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Where and when a device had to hold more than its memory: a transformer's when fullest, other workloads' first.

    Args:
        rank: the rank; the first in time, or of a transformer that with the largest excess.
        time: its clock then, s.
        capacity_bytes: the device's memory.
        held_bytes: what the rank held, by store; of a transformer by kind, with what is needed beside tensors.
        device: what the cluster calls the rank's device; "" where all devices are alike.
    """

    rank: int
    time: float
    capacity_bytes: float
    held_bytes: Mapping[str, float]
    device: str = ""

    @property
    def excess_bytes(self) -> float:
        """Return by how much that is more than the device's memory."""
        return sum(self.held_bytes.values()) - self.capacity_bytes

    def __str__(self) -> str:
        least = 1e-4 * self.capacity_bytes  # what does not matter is not told
        filled = ", ".join(
            f"{name} {size / 2**30:.3g} GiB"
            for name, size in sorted(self.held_bytes.items(), key=lambda item: -item[1])
            if size > least
        )
        device = f" ({self.device})" if self.device else ""
        return (
            f"out of memory on rank {self.rank}{device} at {self.time:.6g} s: "
            f"{sum(self.held_bytes.values()) / 2**30:.4g} GiB held of {self.capacity_bytes / 2**30:.4g} GiB ({filled})"
        )


@dataclass(frozen=True, slots=True)
class MemoryOutsideStores:
    """The most that a rank held outside its stores, in variables and containers, at the beginning of an operation.

    Args:
        rank: the rank that held the most.
        time: its clock then, s.
        elements: how much it held.
        elements_by_line: how much of it each line of the strategy made, most first.
    """

    rank: int
    time: float
    elements: float
    elements_by_line: Mapping[str, float]

    def __str__(self) -> str:
        made = ", ".join(f"{elements:.4g} made at {line}" for line, elements in self.elements_by_line.items())
        return f"{self.elements:.4g} elements on rank {self.rank} at {self.time:.6g} s: {made}" if made else "nothing"
