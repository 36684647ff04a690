"""What a data sheet says of a device beside rates and memories: class, caches, limits, clocks, power, price, links.

All of it is optional in a hardware config, and SI inside: bytes, seconds, hertz, watts. What a config does not say is
None or empty, never a guess. Device simulators, the solver, and the energy and cost of a run read it. Prices of runs
read little: the class (a CPU's host memory is its own), `num_units` where a config has no key `kernels`, and the power
under a cap.

How often devices fail: the mean time between failures (MTBF) of a device, by family, from published fleets.

A failure is anything that stops the job: the device, its memory, its host, or its network, counted for each device.

| family | published | MTBF of a device |
|---|---|---|
| h100 | 419 unexpected interruptions in 54 days of 16,384 devices (Llama 3, 2024, table 5) | 50,677 h |
| a100 | 6.50 failures in 1,000 days of a node of 8 devices (Kokolis et al. 2024, RSC-1) | 29,538 h |

The second cluster of the same authors (RSC-2) saw 2.34, a third of it: expect a factor of three from site to site. For
other devices nothing is published that could be used here, and nothing is assumed: give their MTBF.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal, final

from minitrain.errors import UsageError
from minitrain.machine.columns import larger
from minitrain.machine.config_format import (
    FEATURE,
    FLAG,
    NON_NEGATIVE,
    POSITIVE,
    SECONDS,
    TEXT,
    WHOLE,
    Entries,
    Key,
    ListOf,
    ReadOnly,
    Record,
    UnexpectedError,
    one_of,
)

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

    level: Annotated[int, WHOLE]
    size_bytes: Annotated[int, WHOLE, Key("bytes"), "B"]
    scope: Annotated[Literal["unit", "device"], one_of("unit", "device")]
    bytes_per_s: Annotated[float | None, POSITIVE, "B/s"] = None


def _by_level(caches: Sequence[Cache]) -> None:
    """Require that each level comes once, from the units outwards."""
    levels = [cache.level for cache in caches]
    if levels != sorted(set(levels)):
        raise UnexpectedError("caches by rising level, each level once", f"levels {', '.join(map(str, levels))}")


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

    warps: Annotated[int, WHOLE]
    blocks: Annotated[int, WHOLE]
    registers: Annotated[int, WHOLE, "of 32 bits"]
    smem_bytes: Annotated[int, WHOLE, "B"]


@final
@dataclass(frozen=True, slots=True)
class Storage:
    """What takes checkpoints (the key `storage`). All ranks write at the same time, and share it evenly.

    Args:
        GBps: what it takes from all nodes together, 1e9 bytes/s: 2 TB/s (Llama 3, 2024, section 3.3.1).
        node_GBps: what one node writes, 1e9 bytes/s: a port of 200 Gb/s; assumed.
    """

    GBps: Annotated[float, POSITIVE, "GB/s"] = 2000.0
    node_GBps: Annotated[float, POSITIVE, "GB/s"] = 25.0  # noqa: N815 - a unit

    def seconds(self, size_bytes: Any, num_ranks: int, ranks_a_node: int) -> Any:
        """Return how long a rank writes some bytes, as all ranks write, s.

        >>> Storage(GBps=100, node_GBps=25).seconds(1e9, num_ranks=16, ranks_a_node=8)
        0.32
        """
        return size_bytes * larger(num_ranks / (self.GBps * 1e9), ranks_a_node / (self.node_GBps * 1e9))


STORAGE = Storage()
"""The storage of configs that say nothing of it."""


@final
@dataclass(frozen=True, slots=True)
class Power:
    """What a device draws, W: the device's own share, not that of its server.

    Args:
        tdp_W: at most, by its rating.
        idle_W: when it has nothing to do; None if unknown.
    """

    tdp_W: Annotated[float, POSITIVE, "W"]  # noqa: N815 - a unit
    idle_W: Annotated[float | None, NON_NEGATIVE, "W"] = None  # noqa: N815 - a unit


def _idles_below(power: Power) -> None:
    """Require that a device draws no more when it has nothing to do."""
    if (power.idle_W or 0) > power.tdp_W:
        raise UnexpectedError(f"no more than power.tdp_W ({power.tdp_W:g})", f"{power.idle_W:g}", "idle_W")


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

    link_id: Annotated[str, TEXT]
    source_id: Annotated[str, TEXT]
    dest_id: Annotated[str, TEXT]
    bytes_per_s: Annotated[float, POSITIVE, "B/s"]
    latency_s: Annotated[float, SECONDS, "s"] = 0.0
    bidirectional: Annotated[bool, FLAG] = True


@final
@dataclass(frozen=True, slots=True)
class DataSheet(ReadOnly):
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

    device_class: Annotated[str | None, one_of(*CLASSES), Key("class")] = None
    vendor: Annotated[str | None, TEXT] = None
    num_units: Annotated[int | None, WHOLE, Key("units")] = None
    clock_Hz: Annotated[float | None, POSITIVE, "Hz"] = None  # noqa: N815 - a unit
    caches: Annotated[tuple[Cache, ...], ListOf(Record(Cache), "a list of caches", _by_level)] = ()
    limits: Annotated[UnitLimits | None, Record(UnitLimits)] = None
    dispatch_s: Annotated[float | None, SECONDS, "s"] = None
    power: Annotated[Power | None, Record(Power, "an object with tdp_W and idle_W", _idles_below)] = None
    price_usd_per_hour: Annotated[float | None, NON_NEGATIVE, "USD/h"] = None
    features: Annotated[Mapping[str, Feature], Entries(FEATURE, "an object of features by name")] = field(
        default_factory=dict, hash=False
    )
    links: Annotated[tuple[SheetLink, ...], ListOf(Record(SheetLink), "a list of links")] = ()

    def cache_bytes(self, level: int) -> int:
        """Return the size of a level's cache (of one unit, if each has its own), or 0 where there is none."""
        return next((cache.size_bytes for cache in self.caches if cache.level == level), 0)


NO_DATA_SHEET = DataSheet()
"""What a config without any of the optional keys says."""


MTBF_HOURS: Mapping[str, float] = MappingProxyType(
    {
        "h100": 54 * 24 * 16_384 / 419,
        "a100": 1000 * 24 * 8 / 6.50,
    }
)
"""Mean time between failures of one device, hours, by family (the name of its hardware config up to the first "_")."""


def mtbf_hours_of(device: str, given: float | Mapping[str, float] | None = None) -> float:
    """Return the mean time between failures of a device, hours.

    Args:
        device: the name of its hardware config, "h100_80g_nvl8", or of its group in a cluster.
        given: hours of every device, or of some by config, group or family; published ones if None.

    Raises:
        UsageError: none is given or published for this device.

    >>> round(mtbf_hours_of("h100_80g_nvl8"))
    50677
    >>> mtbf_hours_of("l40s_48g", {"l40s": 20_000})
    20000.0
    """
    if given is not None and not isinstance(given, Mapping):
        return float(given)
    family = device.partition("_")[0]
    known = (table.get(name) for table in (given or {}, MTBF_HOURS) for name in (device, family))
    hours = next((each for each in known if each is not None), None)
    if hours is None:
        raise UsageError(
            f"no mean time between failures is known of {device!r}, only of {', '.join(sorted(MTBF_HOURS))}; give it, "
            f'as in mtbf_hours={{"{family}": 40_000}}',
            device=device,
        )
    return float(hours)


def require_devices(given: float | Mapping[str, float] | None, devices: Iterable[str]) -> None:
    """Require that each name that a time between failures is given for is that of a device of the run.

    Args:
        given: hours of every device, or of some by config, group or family.
        devices: the hardware config or the group of each rank's device.

    Raises:
        UsageError: a name is that of no device, so that its hours would change nothing.
    """
    known = dict.fromkeys(name for device in dict.fromkeys(devices) for name in (device, device.partition("_")[0]))
    for name in given if isinstance(given, Mapping) else ():
        if name not in known:
            raise UsageError(f"mtbf_hours names {name!r}, which no device of the run is; use one of {', '.join(known)}")


def require_mtbf(given: float | Mapping[str, float] | None) -> None:
    """Require that all mean times between failures are positive numbers of hours.

    Raises:
        UsageError: one is not.
    """
    hours = given if isinstance(given, Mapping) else {} if given is None else {"every device": given}
    for name, each in hours.items():
        if isinstance(each, bool) or not isinstance(each, int | float) or not 0 < each < math.inf:
            raise UsageError(f"mtbf_hours of {name} must be a positive number of hours, got {each!r}")
