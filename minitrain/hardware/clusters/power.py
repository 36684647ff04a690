"""Power and heat: how far a cap, or a device that is too hot, slows its clock down.

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
(throttle - ambient) / R, as if it were a cap.

Left out: leakage that grows with temperature, fans, and neighbours that warm each other's air.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import final

from minitrain.errors import HardwareConfigError, UsageError
from minitrain.hardware.data_sheet import Power

_DEFAULT_AMBIENT_C = 30.0


@final
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

    resistance_K_per_W: float  # noqa: N815 - a unit
    capacity_J_per_K: float  # noqa: N815 - a unit
    throttle_C: float  # noqa: N815 - a unit
    ambient_C: float = _DEFAULT_AMBIENT_C  # noqa: N815 - a unit

    def __post_init__(self) -> None:
        for field in fields(self):
            require_positive(f"{field.name} of a thermal model", getattr(self, field.name))
        if self.throttle_C <= self.ambient_C:
            raise UsageError(
                f"a device must throttle above the temperature of its surroundings, got throttle_C {self.throttle_C} "
                f"and ambient_C {self.ambient_C}; check the two"
            )

    @property
    def sustained_watts(self) -> float:
        """The power that the device can draw for ever without getting hotter than where it throttles, W."""
        return (self.throttle_C - self.ambient_C) / self.resistance_K_per_W

    def temperature_C(self, watts: float, seconds: float = math.inf) -> float:  # noqa: N802 - a unit
        """Return the temperature after some time under constant power, from that of the surroundings, degrees Celsius.

        Args:
            watts: what it draws.
            seconds: for how long; for ever by default.
        """
        final_rise = watts * self.resistance_K_per_W
        return self.ambient_C - final_rise * math.expm1(-seconds / self._time_constant_s)

    def seconds_to_throttle(self, watts: float) -> float:
        """Return how long a cool device draws some power before it throttles, s; infinity if it never does."""
        room = 1 - self.sustained_watts / watts if watts > 0 else 0.0
        return -math.log(room) * self._time_constant_s if room > 0 else math.inf

    @property
    def _time_constant_s(self) -> float:
        return self.resistance_K_per_W * self.capacity_J_per_K


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
            f"allow it more than {idle:g} W, or leave it out",
            watts=watts,
        )
    assert power is not None  # it has said its idle power
    if watts >= power.tdp_W:
        return 1.0
    return float(((watts - idle) / (power.tdp_W - idle)) ** (1 / 3))


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


def require_positive(what: str, value: object) -> float:
    """Return a number above 0.

    Raises:
        UsageError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(f"{what} must be a number above 0, got {value!r:.80}")
    return float(value)
