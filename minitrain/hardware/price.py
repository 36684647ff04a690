"""What one operation costs, and the protocol of what answers that: `Predictor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from minitrain.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Price:
    """What one operation costs.

    Args:
        seconds: its duration, s.
        size_bytes: bytes it puts on the wire, 0 for compute.
        algorithm: "ring" or "hierarchical" where the network offers the choice, else None.
        processor_usage: share of the processor that driving the transfer takes, 0 to 1.
        tier_size: processors that the network tier carrying it spans, which tells tiers apart; 0 for compute.
    """

    seconds: float
    size_bytes: float = 0
    algorithm: str | None = None
    processor_usage: float = 0.0
    tier_size: int = 0


FREE = Price(0.0)
PENDING = Price(0.0)  # stands in a log until the price is known, for ever where an operation was given up


class Predictor(Protocol):
    """What a `Model` asks to price its operations; ranks on different devices have one each.

    What ranks do together is priced by the predictor of the lowest rank that takes part: the predictors of one run
    differ in their devices and share one workload and one network.
    """

    @property
    def workload(self) -> Workload:
        """What the layers cost and hold."""
        ...

    @property
    def peak_flop_per_s(self) -> float | None:
        """The device's peak rate, or None where durations are given by hand."""
        ...

    @property
    def capacity_bytes(self) -> float | None:
        """The device's memory, or None where there is no device."""
        ...

    def compute(self, typ: str, num_samples: int, layer: int = 0) -> Price:
        """Price a forward, loss, backward, backward_input or backward_weight of a layer."""
        ...

    def update(self, num_shards_on_device: int, num_shards: int, layer: int = 0) -> Price:
        """Price an optimizer step on some shards of a layer."""
        ...

    def load(self, num_shards_on_device: int, num_shards: int, layer: int = 0) -> Price:
        """Price loading some shards of a layer's weight."""
        ...

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int]) -> Price:
        """Price a collective among some ranks."""
        ...

    def p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        """Price one side ("send" or "recv") of a message."""
        ...

    def slowed(self, factor: float) -> Predictor:
        """Return the same predictor for a rank whose computing takes `factor` times as long."""
        ...
