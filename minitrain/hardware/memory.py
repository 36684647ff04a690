"""A memory: its capacity, and the speed at which an operation of a given size moves bytes.

Modelled is a peak bandwidth times an efficiency that falls for small transfers. Left out are caches,
latency, and the difference between reads and writes.
"""

from dataclasses import dataclass
from typing import final

from minitrain.hardware.curve import Rows, efficiency_at


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """One memory of a device; the fields are the config's keys.

    Args:
        GiB: capacity, in 2^30 bytes.
        GBps: peak bandwidth, in 1e9 bytes/s.
        MB_efficiency: rows `(lower bound in 1e6 bytes, share of the peak)`, bounds strictly descending to 0.
    """

    GiB: float
    GBps: float
    MB_efficiency: Rows

    @property
    def capacity_bytes(self) -> int:
        """Return the capacity in bytes."""
        return int(self.GiB * 2**30)

    def throughput(self, size_bytes: float) -> float:
        """Return the speed an operation reaches.

        Args:
            size_bytes: bytes read and written by the operation.

        Returns:
            Bytes/s: peak times the efficiency of the first row whose bound the operation reaches.

        Raises:
            UsageError: `size_bytes` is negative or not a number.
        """
        return self.GBps * 1e9 * efficiency_at(self.MB_efficiency, size_bytes, 1e6)
