"""What a cluster is made of: groups of devices that are alike, and links.

A hardware config says what a device reaches inside its node and between nodes; a group may say otherwise.

Power and heat: how far a cap, or a device that is too hot, slows its clock down.

**The law of a cap** (assumed, not fitted). A device draws its idle power, and beside that a power that grows with the
cube of its clock: switching takes C V^2 f, and the voltage follows the clock. Under a cap of P watts its clock is

    share = ((P - idle) / (rated - idle)) ^ (1/3),    at most 1

of the usual one. Arithmetic takes 1 / share as long; memory and links have clocks of their own and stay as they are.
The law assumes that a device which computes draws its rated power. One that would draw less loses less.

**The law of heat** (first order, assumed). With thermal resistance R, capacity C and the temperature of the room,

    C dT/dt = P - (T - ambient) / R

so that a device under constant power approaches ambient + R P with the time constant R C. A step is far shorter than
that (seconds against minutes): what counts is the steady state of a device that computes all the time. Where that is
above the temperature at which the firmware throttles, the device gets the power that holds it there,
(throttle - ambient) / R, as if it were a cap. The orchestrator of `minitrain.machine.heterogeneous` follows the
temperature itself: the usual clock until the device is as hot as that, then the one which this power leaves.

Left out: leakage that grows with temperature, fans, and neighbours that warm each other's air.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from minitrain.errors import HardwareConfigError, UsageError, require_count, require_number, typed
from minitrain.machine.config import SystemConfig, load_config
from minitrain.machine.device import Power

if TYPE_CHECKING:
    from minitrain.machine.measured_layers import MeasuredLayers


_DEFAULT_AMBIENT_C = 30.0


@dataclass(frozen=True, slots=True)
class Thermal:
    """How a device warms up, to first order; all figures are the user's, as no data sheet has them.

    Args:
        resistance_K_per_W: how much warmer than its surroundings it gets for each watt.
        capacity_J_per_K: the energy that warms it by a kelvin.
        throttle_C: the temperature that its firmware holds it at, at most.
        ambient_C: of its surroundings.

    Raises:
        UsageError: a figure is no positive number, or it throttles below the temperature of its surroundings.

    >>> hot = Thermal(resistance_K_per_W=0.15, capacity_J_per_K=400, throttle_C=87, ambient_C=30)
    >>> round(hot.sustained_watts), round(hot.temperature_C(300)), round(hot.seconds_to_throttle(500))
    (380, 75, 86)
    """

    resistance_K_per_W: float
    capacity_J_per_K: float
    throttle_C: float
    ambient_C: float = _DEFAULT_AMBIENT_C

    def __post_init__(self) -> None:
        for each in fields(self):
            require_positive(f"{each.name} of a thermal model", getattr(self, each.name))
        if self.throttle_C <= self.ambient_C:
            raise UsageError(
                f"a device must throttle above the temperature of its surroundings, got throttle_C {self.throttle_C} "
                f"and ambient_C {self.ambient_C}; check the two"
            )

    @property
    def sustained_watts(self) -> float:
        """The power that the device can draw for ever without getting hotter than where it throttles, W."""
        return (self.throttle_C - self.ambient_C) / self.resistance_K_per_W

    def temperature_C(self, watts: float, seconds: float = math.inf, start_C: float | None = None) -> float:
        """Return the temperature after some time under constant power, degrees Celsius.

        Args:
            watts: what it draws.
            seconds: for how long; for ever by default.
            start_C: the temperature at first; that of the surroundings if None.

        Raises:
            UsageError: a figure is no number, or power or time is below 0.
        """
        _require_drawn(watts, start_C)
        if seconds != math.inf:
            require_number("seconds", seconds, or_zero=True)
        rise = watts * self.resistance_K_per_W - (0.0 if start_C is None else start_C - self.ambient_C)
        start = self.ambient_C if start_C is None else start_C
        return start - rise * math.expm1(-seconds / self._time_constant_s)

    def seconds_to_throttle(self, watts: float, start_C: float | None = None) -> float:
        """Return how long a device draws some power before it throttles, s; infinity if it never does.

        Args:
            watts: what it draws.
            start_C: the temperature at first; that of the surroundings if None.

        Raises:
            UsageError: a figure is no number, or power is below 0.
        """
        _require_drawn(watts, start_C)
        start = self.ambient_C if start_C is None else start_C
        final = self.ambient_C + watts * self.resistance_K_per_W
        if final <= self.throttle_C or start >= self.throttle_C:
            return math.inf if start < self.throttle_C else 0.0
        return math.log((final - start) / (final - self.throttle_C)) * self._time_constant_s

    @property
    def _time_constant_s(self) -> float:
        return self.resistance_K_per_W * self.capacity_J_per_K


def _require_drawn(watts: float, start_C: float | None) -> None:
    """Require a power that a device can draw, and a temperature that it can begin with."""
    require_number("watts", watts, or_zero=True)
    if start_C is not None and not (isinstance(start_C, int | float) and math.isfinite(start_C)):
        raise UsageError(f"start_C must be a number of degrees Celsius, got {start_C!r:.80}")


def clock_share(power: Power | None, watts: float, name: str) -> float:
    """Return the share of its usual clock that a device keeps under a cap, in (0, 1].

    Args:
        power: what the device's config says of its power.
        watts: the cap.
        name: of the device, for errors.

    Raises:
        HardwareConfigError: the config does not say both rated and idle power.
        UsageError: the cap leaves nothing beside the idle power.
    """
    idle = idle_watts(power, name)
    if watts <= idle:
        raise UsageError(
            f"{name} draws {idle:g} W when it is idle, so that {watts:g} W leave nothing to compute with; "
            f"allow it more than {idle:g} W, or leave it out"
        )
    assert power is not None  # it has said its idle power
    return 1.0 if watts >= power.tdp_W else float(((watts - idle) / (power.tdp_W - idle)) ** (1 / 3))


def idle_watts(power: Power | None, name: str) -> float:
    """Return what a device draws when it waits, W.

    Args:
        power: what the device's config says of its power.
        name: of the device, for errors.

    Raises:
        HardwareConfigError: the config does not say both rated and idle power.
    """
    if power is None or power.idle_W is None:
        raise HardwareConfigError(
            f"a cap on power needs the device's rated and idle power, which the config of {name} does not have; add "
            "power with tdp_W and idle_W to it, or leave the cap out",
            path=name,
        )
    return power.idle_W


_SMALLEST, _LARGEST = 1e-30, 1e30
_MOST = 2**21  # devices of a group


def require_positive(what: str, value: object) -> float:
    """Return a number above 0.

    Raises:
        UsageError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not _SMALLEST <= value <= _LARGEST:
        raise UsageError(f"{what} must be a number above 0, got {value!r:.80}; is a unit wrong?")
    return float(value)


@typed
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
        if self.latency_s != 0:
            require_positive("latency_s of a link", self.latency_s)

    def __str__(self) -> str:
        """Say it in words.

        >>> str(Link(12.5e9, 2e-5))
        '12.5 GB/s a node, 20 us'
        """
        whose = "for all" if self.is_one_cable else "a node"
        return f"{self.bytes_per_s / 1e9:.4g} GB/s {whose}, {self.latency_s * 1e6:.4g} us"


@typed
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
        if not isinstance(self.name, str | None):
            raise UsageError(f"name of a group must be a text, got {self.name!r:.80}; put it in quotation marks")
        object.__setattr__(self, "name", self.name or self.system.name)
        if require_count(f"count of {self.name}", self.count) > _MOST:
            raise UsageError(f"count of {self.name} must be at most {_MOST}, got {self.count}")
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
        """The share of the usual clock that caps and heat leave, in (0, 1]; see the top of this file."""
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
