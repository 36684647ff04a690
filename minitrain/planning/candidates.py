"""A layout that a step may have on a cluster: replicas (`replicas`), or pipelines of groups of devices (`pipelines`).

Each candidate has what `simulate` needs, and a lower bound of its step time: what its busiest device computes. Nothing
that communicates or waits is in the bound, so that a candidate whose bound is above a simulated step cannot win.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, final

from minitrain.hardware.clusters.cluster import Cluster
from minitrain.planning.device_times import DeviceTimes
from minitrain.rank.shares import Shares

DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees that are tried: those within a node."""
USABLE = 0.9
"""Of a device's memory, what a layout with room uses at most; what it holds is an estimate."""


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout.

    Args:
        strategy: its name.
        groups: the groups whose devices take part, in the order of their ranks.
        world_size: how many ranks.
        options: the strategy's own options.
        shares: who takes how much.
        bound_s: the step takes no less, s.
        cluster: the devices that take part, if they are not the whole cluster as it is.
        step: what is trained, as arguments of `simulate`.
        precision: in which precision, where there is a choice.
        has_room: whether no bound of memory has shaped it, and some memory stays free; None where that is not known.
    """

    strategy: str
    groups: tuple[str, ...]
    world_size: int
    options: Mapping[str, Any]
    shares: Shares | None
    bound_s: float
    cluster: Cluster = field(repr=False)
    step: Mapping[str, Any] = field(default_factory=dict, repr=False)
    precision: str | None = None
    has_room: bool | None = None

    def __str__(self) -> str:
        """Say it in words."""
        said = [f"{name}={value}" for name, value in self.options.items() if value is not False]
        sizes = self.shares and self.shares.microbatch_sizes
        if sizes and "microbatch_size" not in self.options:
            said.append(f"microbatches of {min(sizes)}{'' if len(set(sizes)) == 1 else f' to {max(sizes)}'}")
        how = f" ({', '.join(said)})" if said else ""
        return f"{self.strategy}{in_precision(self.precision)} on {' + '.join(self.groups)}{how}"


def in_precision(name: str | None) -> str:
    """Return a precision as it follows a strategy's name in texts; nothing where there is no choice."""
    return "" if name is None else f" in {name}"


def candidate_of(
    cluster: Cluster, times: DeviceTimes, strategy: str, batch: int, options: Mapping[str, Any], **layout: Any
) -> Candidate:
    """Return a layout on all devices of a cluster.

    Args:
        cluster: the devices.
        times: how long they take for parts of a step.
        strategy: its name.
        batch: samples of the step.
        options: the strategy's own options, but for what backward computes again.
        layout: the other fields.
    """
    again = {} if times.recompute == "none" else {"recompute": times.recompute}
    return Candidate(
        strategy,
        groups=tuple(group.label for group in cluster.devices),
        world_size=cluster.num_devices,
        options={**options, **again},
        cluster=cluster,
        step={**times.step, "global_batch_size": batch},
        precision=times.precision and times.precision.name,
        **layout,
    )


def subsets(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster, and what is left of it without some of its groups."""
    names = [group.label for group in cluster.devices]
    for size in range(len(names), 0, -1):
        for chosen in combinations(names, size):
            yield cluster if size == len(names) else cluster.part(chosen)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, the smallest first.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [each for each in range(1, number + 1) if number % each == 0]
