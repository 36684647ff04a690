"""What a step draws, and what it costs: energy, power and money, from the devices' ratings and prices.

A rank is *busy* while it computes or communicates with nothing beside it, and draws its device's rated power then. It
is *idle* while it waits, and draws the device's idle power. That is an upper bound: hardly any device reaches its
rating all the time. It is the device's share alone: in published runs whole nodes drew 0.82 to 1.24 times the sum of
their GPUs' ratings.

Left out: hosts, network, cooling, and power that follows the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

if TYPE_CHECKING:
    from minitrain.machine.device import DataSheet
    from minitrain.run.analysis.breakdown import Breakdown
    from minitrain.run.analysis.timeline import Floats, Timeline

SECONDS_AN_HOUR = 3600


@final
@dataclass(frozen=True, slots=True, eq=False)
class StepEnergy:
    """What the devices of a step draw.

    Args:
        busy_joules: of each rank while it computes or communicates, J, (num_ranks,).
        idle_joules: of each rank while it waits, J, (num_ranks,).
        average_watts: of all ranks together, W.
    """

    busy_joules: Floats
    idle_joules: Floats
    average_watts: float

    @property
    def joules(self) -> float:
        """Of all ranks, J."""
        return float(self.busy_joules.sum() + self.idle_joules.sum())


def watts_of(sheets: Sequence[DataSheet | None]) -> tuple[Floats, Floats] | None:
    """Return rated and idle power of each rank, W; None where a config does not say both."""
    powers = [None if sheet is None else sheet.power for sheet in sheets]
    known = [power for power in powers if power is not None and power.idle_W is not None]
    if not known or len(known) < len(powers):
        return None
    return np.array([power.tdp_W for power in known]), np.array([power.idle_W for power in known])


def energy_of(parts: Breakdown, sheets: Sequence[DataSheet | None]) -> StepEnergy | None:
    """Return what a step draws; None where a config does not say its power.

    Args:
        parts: where the time of each rank goes.
        sheets: of each rank, or one for all.
    """
    watts = watts_of(sheets)
    if watts is None:
        return None
    busy, idle = (parts.computing + parts.exposed) * watts[0], parts.waiting * watts[1]
    seconds = parts.step_time_s
    return StepEnergy(busy, idle, float((busy + idle).sum() / seconds) if seconds else 0.0)


def peak_watts(timeline: Timeline, sheets: Sequence[DataSheet | None]) -> float | None:
    """Return the most that all ranks draw together at any moment, W; None where a config does not say its power."""
    watts = watts_of(sheets)
    if watts is None:
        return None
    rated, idle = (np.broadcast_to(each, (timeline.num_ranks,)) for each in watts)
    ranks, starts, ends = _busy_intervals(timeline)
    more = (rated - idle)[ranks]
    times, changes = np.concatenate([ends, starts]), np.concatenate([-more, more])
    in_order = np.argsort(times, kind="stable")  # at equal times, ends come before starts
    return float(idle.sum() + max(0.0, np.cumsum(changes[in_order]).max(initial=0.0)))


def _busy_intervals(timeline: Timeline) -> tuple[Any, Floats, Floats]:
    """Return rank, start and end of each interval in which a rank is busy without a gap."""
    worked = (timeline.duration > 0) & ~timeline.loading
    order = np.lexsort((timeline.time[worked], timeline.rank[worked]))
    ranks, starts, ends = (each[worked][order] for each in (timeline.rank, timeline.time, timeline.end))
    found: list[tuple[int, float, float]] = []
    for rank, start, end in zip(ranks.tolist(), starts.tolist(), ends.tolist(), strict=True):
        if found and found[-1][0] == rank and start <= found[-1][2]:
            found[-1] = (rank, found[-1][1], max(found[-1][2], end))
        else:
            found.append((rank, start, end))
    columns = np.array(found, dtype=float).reshape(-1, 3).T
    return columns[0].astype(int), columns[1], columns[2]


def dollars_of(sheets: Sequence[DataSheet | None], world_size: int, seconds: float) -> float | None:
    """Return what renting the devices of all ranks costs, USD; None where a config does not say its price.

    Args:
        sheets: of each rank, or one for all.
        world_size: number of ranks.
        seconds: for how long.
    """
    prices = [None if sheet is None else sheet.price_usd_per_hour for sheet in sheets]
    known = [price for price in prices if price is not None]
    if not known or len(known) < len(prices):
        return None
    return sum(known) * (world_size if len(known) == 1 else 1) * seconds / SECONDS_AN_HOUR
