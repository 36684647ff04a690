"""How often devices fail: the mean time between failures (MTBF) of a device, by family, from published fleets.

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
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from minitrain.errors import UsageError

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
