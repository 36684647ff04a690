"""A device: how long work takes on it, how fast it can be at most, and how much it can hold.

`Device` is what a predictor asks. `RooflineDevice` is the specified model: an operation takes as long as the slower of
its arithmetic at the processor's throughput and its traffic at the memory's (Williams, Waterman and Patterson 2009).
Both throughputs depend on the size of the operation, by the efficiency rows of the hardware config. Left out: what
kernels cost to launch, and overlap of one operation with the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from minitrain.hardware.memory import Memory
    from minitrain.hardware.processor import Processor
    from minitrain.workloads.workload import Cost


class Device(Protocol):
    """What a predictor asks of the device that a rank runs on."""

    @property
    def capacity_bytes(self) -> float:
        """The main memory."""
        ...

    def peak_flop_per_s(self, datatype: str) -> float:
        """Return the peak rate for a datatype, FLOP/s."""
        ...

    def seconds(self, cost: Cost, datatype: str) -> float:
        """Return how long an operation of a cost takes, s, of which the operation pays `cost.share`."""
        ...

    def load_seconds(self, size_bytes: float) -> float:
        """Return how long it takes to load weights from the host, s."""
        ...


@final
@dataclass(frozen=True, slots=True)
class RooflineDevice:
    """A processor with its own memory, beside a host.

    Args:
        processor: matrix and vector units.
        memory: the device's own memory (HBM).
        host_memory: the host's, from which weights are loaded.
    """

    processor: Processor
    memory: Memory
    host_memory: Memory

    @property
    def capacity_bytes(self) -> float:
        """The device's own memory."""
        return self.memory.capacity_bytes

    def peak_flop_per_s(self, datatype: str) -> float:
        """Return the matrix unit's peak rate, FLOP/s."""
        return self.processor.peak(datatype)

    def seconds(self, cost: Cost, datatype: str) -> float:
        """Return the slower of arithmetic and memory traffic, s."""
        return max(self.arithmetic_seconds(cost.work_flop, datatype), self.traffic_seconds(cost.traffic_bytes))

    def arithmetic_seconds(self, work_flop: float, datatype: str) -> float:
        """Return the time of pure computation, s."""
        return work_flop / self.processor.throughput(datatype, work_flop) if work_flop else 0.0

    def traffic_seconds(self, size_bytes: float) -> float:
        """Return the time of reading and writing the device's memory, s."""
        return size_bytes / self.memory.throughput(size_bytes) if size_bytes else 0.0

    def load_seconds(self, size_bytes: float) -> float:
        """Return the time of reading the host's memory, s."""
        return size_bytes / self.host_memory.throughput(size_bytes) if size_bytes else 0.0
