"""How long a transfer of a given size takes: a latency, and a bandwidth that grows with the size until it saturates.

For n ranks and S bytes (of the whole tensor), with f = 2 for all_reduce and 1 for the other collectives,

    latency + latency_per_rank n + f (n-1)/n S / B(n) (1 + (half/S)^exponent)

B is the bus bandwidth that nccl-tests prints (doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests); at S = half, half of
it is reached. A message (p2p) takes latency + S / B (1 + (half/S)^exponent). B may depend on n, as it does where links
do not form the same rings for every number of ranks.

Between nodes B is a share of the network interfaces that a group's local ranks have together, and no more than what the
ranks of a node reach among themselves. Left out: congestion, and how the switches beyond are wired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from minitrain.operations.collectives import COLLECTIVES

Rows = tuple[tuple[float, float], ...]


@final
@dataclass(frozen=True, slots=True)
class TransferCurve:
    """The price of one operation on one tier.

    Args:
        latency: of the operation, s.
        latency_per_rank: for each rank that takes part, s.
        bandwidths: rows `(lower bound of ranks, bus bandwidth in 1e9 bytes/s)`, bounds strictly descending to 0; None
            where `efficiency` says it.
        efficiency: share of the wires that are reached: of one processor's into the tier, times the local ranks.
        half_bytes: the size at which half the bandwidth is reached; 0 where there is no saturation.
        exponent: how quickly it saturates.
    """

    latency: float
    latency_per_rank: float = 0.0
    bandwidths: Rows | None = None
    efficiency: float = 1.0
    half_bytes: float = 0.0
    exponent: float = 1.0

    def bandwidth(self, num_ranks: int, wires: float) -> float:
        """Return the bus bandwidth of large transfers, in 1e9 bytes/s.

        Args:
            num_ranks: how many take part.
            wires: what they could carry, in 1e9 bytes/s, where no measured bandwidth is given.
        """
        if self.bandwidths is None:
            return self.efficiency * wires
        return next(value for bound, value in self.bandwidths if num_ranks >= bound)

    def seconds(self, op: str, size_bytes: float, num_ranks: int, bandwidth: float) -> float:
        """Return the duration, s.

        Args:
            op: "p2p" or a collective.
            size_bytes: of the whole tensor.
            num_ranks: how many take part; 2 for a message.
            bandwidth: of large transfers, in 1e9 bytes/s.
        """
        start = self.latency + self.latency_per_rank * num_ranks
        if not size_bytes:
            return start
        slowed_bytes = size_bytes  # S (1 + (half/S)^exponent), written so that no tiny S overflows
        if self.half_bytes:
            slowed_bytes += self.half_bytes**self.exponent * size_bytes ** (1 - self.exponent)
        return start + wire_share(op, num_ranks) * slowed_bytes / (bandwidth * 1e9)


def wire_share(op: str, num_ranks: int) -> float:
    """Return the bytes that cross each wire, as a share of the tensor: what bus bandwidth divides by.

    >>> wire_share("all_reduce", 4), wire_share("all_gather", 4), wire_share("p2p", 2)
    (1.5, 0.75, 1.0)
    """
    if op == "p2p":
        return 1.0
    return (COLLECTIVES[op].passes or 1) * (num_ranks - 1) / num_ranks
