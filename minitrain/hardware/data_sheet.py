"""What a data sheet says of a device beside rates and memories: class, caches, limits, clocks, power, price, links.

All of it is optional in a hardware config, and SI inside: bytes, seconds, hertz, watts. What a config does not say is
None or empty, never a guess. Device simulators, the solver, and the energy and cost of a run read it. Prices of runs
read little: the class (a CPU's host memory is its own), `num_units` where a config has no key `kernels`, and the power
under a cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, final

CLASSES = ("gpu", "tpu", "cpu", "asic", "mcu")
"""What kinds of device there are; an asic is any other accelerator, an mcu a microcontroller."""

Feature = bool | float | str | tuple[float, ...]


@final
@dataclass(frozen=True, slots=True)
class Cache:
    """One level of a device's caches.

    Args:
        level: 1 for the one nearest to the units.
        size_bytes: of one unit's cache, or of the whole device's.
        scope: "unit" where each unit has its own, "device" where all share it.
        bytes_per_s: what it delivers, to one unit or to all; None if unknown.
    """

    level: int
    size_bytes: int
    scope: Literal["unit", "device"]
    bytes_per_s: float | None = None


@final
@dataclass(frozen=True, slots=True)
class UnitLimits:
    """What one unit of a GPU (a multiprocessor) can hold at a time.

    Args:
        warps: groups of 32 threads.
        blocks: thread blocks.
        registers: of 32 bits.
        smem_bytes: shared memory.
    """

    warps: int
    blocks: int
    registers: int
    smem_bytes: int


@final
@dataclass(frozen=True, slots=True)
class Power:
    """What a device draws, W: the device's own share, not that of its server.

    Args:
        tdp_W: at most, by its rating.
        idle_W: when it has nothing to do; None if unknown.
    """

    tdp_W: float  # noqa: N815 - a unit
    idle_W: float | None = None  # noqa: N815 - a unit


@final
@dataclass(frozen=True, slots=True)
class SheetLink:
    """A connection between two named places.

    Args:
        link_id: its name.
        source_id: where it begins.
        dest_id: where it ends.
        bytes_per_s: one way.
        latency_s: of a message, s.
        bidirectional: whether it carries the same the other way.
    """

    link_id: str
    source_id: str
    dest_id: str
    bytes_per_s: float
    latency_s: float = 0.0
    bidirectional: bool = True


@final
@dataclass(frozen=True, slots=True)
class DataSheet:
    """The optional keys of a hardware config.

    Args:
        device_class: "gpu", "tpu", "cpu", "asic" or "mcu" (the key `class`).
        vendor: who makes it.
        num_units: multiprocessors, cores or matrix units (the key `units`).
        clock_Hz: what the peak rates are stated at.
        caches: from the units outwards.
        limits: of one unit.
        dispatch_s: what a framework adds to each operation it issues, s.
        power: of the device.
        price_usd_per_hour: for renting one device.
        features: by name: whether there are tensor cores, how wide vectors are.
        links: connections, for a platform that shares them.
    """

    device_class: str | None = None
    vendor: str | None = None
    num_units: int | None = None
    clock_Hz: float | None = None  # noqa: N815 - a unit
    caches: tuple[Cache, ...] = ()
    limits: UnitLimits | None = None
    dispatch_s: float | None = None
    power: Power | None = None
    price_usd_per_hour: float | None = None
    features: Mapping[str, Feature] = field(default_factory=dict, hash=False)
    links: tuple[SheetLink, ...] = ()

    def __post_init__(self) -> None:
        """Keep a read-only copy, so that a frozen value cannot be changed through its mapping."""
        object.__setattr__(self, "features", MappingProxyType(dict(self.features)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by the constructor's arguments (a mapping proxy cannot be pickled)."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return _rebuilt, (values | {"features": dict(self.features)},)

    def cache_bytes(self, level: int) -> int:
        """Return the size of a level's cache (of one unit, if each has its own), or 0 where there is none."""
        return next((cache.size_bytes for cache in self.caches if cache.level == level), 0)

    def last_cache(self) -> Cache | None:
        """Return the cache next to the memory."""
        return max(self.caches, key=lambda cache: cache.level, default=None)


def _rebuilt(values: Mapping[str, Any]) -> DataSheet:
    """Make the value again when it is unpickled."""
    return DataSheet(**values)


NO_DATA_SHEET = DataSheet()
"""What a config without any of the optional keys says."""
