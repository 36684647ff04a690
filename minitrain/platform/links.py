"""Links between named endpoints, and how much each direction of them carries over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

from minitrain.errors import UsageError

BITS_PER_BYTE = 8


@final
@dataclass(frozen=True, slots=True)
class VirtualNetworkLink:
    """A wire, or what behaves like one: NVLink, PCIe, a port of a switch.

    Args:
        link_id: its name.
        source_id: the endpoint at one end.
        dest_id: the endpoint at the other.
        bandwidth_bps: bits per second, in each direction.
        latency_s: what a transfer waits before its first byte arrives, s; it takes no bandwidth.
        bidirectional: whether transfers may go from `dest_id` to `source_id` too.

    Raises:
        UsageError: a bandwidth that is not above 0, or a negative latency.
    """

    link_id: str
    source_id: str
    dest_id: str
    bandwidth_bps: float
    latency_s: float = 0.0
    bidirectional: bool = True

    def __post_init__(self) -> None:
        """Refuse a link that no transfer could pass."""
        if not self.bandwidth_bps > 0:
            raise UsageError(
                f"link {self.link_id}: bandwidth_bps must be above 0, got {self.bandwidth_bps!r}; give bits per second",
                link_id=self.link_id,
            )
        if not self.latency_s >= 0:
            raise UsageError(
                f"link {self.link_id}: latency_s must be at least 0, got {self.latency_s!r}; give seconds",
                link_id=self.link_id,
            )

    @property
    def bytes_per_s(self) -> float:
        """Return the bandwidth of one direction, bytes/s."""
        return self.bandwidth_bps / BITS_PER_BYTE


TOLERANCE = 1e-12
"""Rates add up with rounding errors; a lane is crowded beyond its capacity times one plus this."""


@final
@dataclass(slots=True, eq=False)
class Lane:
    """One direction of a link, or the port of a device: what flows share.

    Args:
        name: what logs and messages call it: "nic 3 out".
        bytes_per_s: what it carries at most.
        latency_s: of a transfer that passes, s.
        link_id: the link that it is a direction of.

    Attributes:
        flows: what passes now, and how many times each passes.
        demand: what all of them together would carry at their full rates, bytes/s.
        load: what they carry, bytes/s.
        steps: what it carried, as (moment, bytes/s from then on).
    """

    name: str
    bytes_per_s: float
    latency_s: float = 0.0
    link_id: str | None = None
    flows: dict[Any, float] = field(default_factory=dict, repr=False)
    demand: float = 0.0
    load: float = 0.0
    steps: list[tuple[float, float]] = field(default_factory=list, repr=False)

    @property
    def is_crowded(self) -> bool:
        """Whether its flows ask for more than it carries."""
        return self.demand > self.bytes_per_s * (1 + TOLERANCE)

    def change_load(self, now: float, change: float) -> None:
        """Note that more or less passes from now on."""
        load = self.load = self.load + change if self.flows else 0.0
        steps = self.steps
        if steps and steps[-1][0] == now:
            steps[-1] = now, load
        else:
            steps.append((now, load))

    def utilization(self, until: float) -> float:
        """Return the share of what it could have carried until a moment that it did carry."""
        if not self.steps or until <= 0:
            return 0.0
        carried = sum(load * (end - time) for (time, load), (end, _) in pairwise([*self.steps, (until, 0.0)]))
        return carried / (self.bytes_per_s * until)
