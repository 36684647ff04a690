"""What a cluster is made of: groups of devices that are alike, and links.

A hardware config says what a device reaches inside its node and between nodes; a group may say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import require_count
from minitrain.hardware.clusters.power import Thermal, clock_share, idle_watts, require_positive
from minitrain.hardware.config import SystemConfig, load_config

if TYPE_CHECKING:
    from minitrain.hardware.measured_layers import MeasuredLayers


@final
@dataclass(frozen=True, slots=True)
class Link:
    """What carries transfers, in figures that transfers reach.

    Args:
        bytes_per_s: one way. Between nodes it is what a node has into the link, which its devices share; inside a node,
            what a device has.
        latency_s: of an operation, s.
        is_one_cable: between two groups, whether all nodes share one cable of so many bytes/s.

    Raises:
        UsageError: a figure is outside its range.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    is_one_cable: bool = False

    def __post_init__(self) -> None:
        require_positive("bytes_per_s of a link", self.bytes_per_s)
        if self.latency_s:
            require_positive("latency_s of a link", self.latency_s)

    def __str__(self) -> str:
        """Say it in words.

        >>> str(Link(12.5e9, 2e-5))
        '12.5 GB/s a node, 20 us'
        """
        whose = "for all" if self.is_one_cable else "a node"
        return f"{self.bytes_per_s / 1e9:.4g} GB/s {whose}, {self.latency_s * 1e6:.4g} us"


@final
@dataclass(frozen=True, slots=True)
class Devices:
    """A group of devices that are alike.

    Args:
        kind: the hardware config: a shipped name, a path, or a loaded one.
        count: how many devices.
        name: of the group; that of the config if None.
        per_node: devices of a node; those of the config's smallest tier if None.
        inside_node: what a device has to the others of its node; what the config says if None.
        between_nodes: what a node has to the other nodes of the group; what the config says if None.
        power_cap_watts: the most that a device may draw, W.
        node_power_cap_watts: the most that the devices of a node may draw together, W; each gets the same part.
        thermal: how a device warms up; it never throttles if None.
        prices: measured times of layers on this kind of device, in the place of computed ones.

    Raises:
        HardwareConfigError: the config cannot be found or read, or is invalid, or lacks the power that a cap needs.
        UsageError: a count or a cap is outside its range.
    """

    kind: Any
    count: int
    name: str | None = None
    per_node: int | None = None
    inside_node: Link | None = None
    between_nodes: Link | None = None
    power_cap_watts: float | None = None
    node_power_cap_watts: float | None = None
    thermal: Thermal | None = None
    prices: MeasuredLayers | None = None
    system: SystemConfig = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "system", load_config(self.kind))
        object.__setattr__(self, "name", self.name or self.system.name)
        require_count(f"count of {self.name}", self.count)
        if self.per_node is not None:
            require_count(f"per_node of {self.name}", self.per_node)
        for what in ("power_cap_watts", "node_power_cap_watts"):
            if getattr(self, what) is not None:
                require_positive(f"{what} of {self.name}", getattr(self, what))
        _ = self.clock_share  # refuses a cap that the device cannot work under

    @property
    def label(self) -> str:
        """What runs call a device of this group."""
        return self.name or self.system.name

    @property
    def devices_per_node(self) -> int:
        """Return how many devices a node has at most."""
        smallest = min(tier.size for tier in self.system.networks)
        return self.per_node or min(smallest, self.count)

    @property
    def num_nodes(self) -> int:
        """Return how many nodes the group fills."""
        return -(-self.count // self.devices_per_node)

    @property
    def watts(self) -> float | None:
        """The most that a device draws, by its rating, its caps and its heat, W; None where its config does not say."""
        rated = None if self.system.sheet.power is None else self.system.sheet.power.tdp_W
        found = [limit for limit in (rated, self._limit_watts) if limit is not None]
        return min(found, default=None)

    @property
    def idle_watts(self) -> float:
        """What a device draws when it waits, W.

        Raises:
            HardwareConfigError: its config does not say.
        """
        return idle_watts(self.system.sheet.power, self.label)

    @property
    def _limit_watts(self) -> float | None:
        """The tightest of the device's cap, its part of the node's, and what it can sustain, W."""
        of_node = None if self.node_power_cap_watts is None else self.node_power_cap_watts / self.devices_per_node
        sustained = None if self.thermal is None else self.thermal.sustained_watts
        limits = [limit for limit in (self.power_cap_watts, of_node, sustained) if limit is not None]
        return min(limits, default=None)

    @property
    def clock_share(self) -> float:
        """The share of the usual clock that caps and heat leave, in (0, 1]; see `minitrain.hardware.clusters.power`."""
        limit = self._limit_watts
        return 1.0 if limit is None else clock_share(self.system.sheet.power, limit, self.label)

    @property
    def limited_by(self) -> str | None:
        """What slows the clock: "power cap", "node power cap" or "heat"; None where nothing does."""
        limit = self._limit_watts
        if limit is None or self.clock_share == 1.0:
            return None
        if self.thermal is not None and self.thermal.sustained_watts == limit:
            return "heat"
        return "power cap" if self.power_cap_watts == limit else "node power cap"

    def __str__(self) -> str:
        """Say it in words.

        >>> str(Devices("a100_80g", 16, name="old"))
        '16 x a100_80g (old) in 2 nodes of 8'
        """
        named = "" if self.label == self.system.name else f" ({self.label})"
        nodes = "1 node" if self.num_nodes == 1 else f"{self.num_nodes} nodes of {self.devices_per_node}"
        capped = "" if self.limited_by is None else f", {self.watts:.4g} W each ({self.limited_by})"
        return f"{self.count} x {self.system.name}{named} in {nodes}{capped}"
