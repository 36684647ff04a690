"""Layouts that a step may have on a cluster: replicas on all devices, or pipelines whose stages are groups of devices.

Each candidate has what `simulate` needs, and a lower bound of its step time: what its busiest device computes. Nothing
that communicates or waits is in the bound, so that a candidate whose bound is above a simulated step cannot win.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import Any, final

from minitrain.hardware.clusters.cluster import Cluster
from minitrain.planning.balanced_samples import Seconds, samples_by_finishing_time
from minitrain.planning.balanced_stages import balanced_stages, pipeline_time
from minitrain.planning.device_times import DeviceTimes
from minitrain.rank.shares import Shares

DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees that are tried: those within a node."""
_WHOLE, _SHARDED = ("ddp", "ddp_overlap", "megatron"), ("fsdp", "zero3", "zero3_prefetch")
_USABLE = 0.9  # of a device's memory


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
    """

    strategy: str
    groups: tuple[str, ...]
    world_size: int
    options: Mapping[str, Any]
    shares: Shares | None
    bound_s: float
    cluster: Cluster = field(repr=False)

    def __str__(self) -> str:
        """Say it in words."""
        sizes = self.shares and self.shares.microbatch_sizes
        own = ", ".join(f"{name}={value}" for name, value in self.options.items() if value is not False)
        if sizes and not own:
            own = f"microbatches of {min(sizes)}{'' if len(set(sizes)) == 1 else f' to {max(sizes)}'}"
        return f"{self.strategy} on {' + '.join(self.groups)}{f' ({own})' if own else ''}"


def subsets(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster, and what is left of it without some of its groups."""
    names = [group.label for group in cluster.devices]
    for size in range(len(names), 0, -1):
        for chosen in combinations(names, size):
            yield cluster if size == len(names) else part_of(cluster, chosen)


def part_of(cluster: Cluster, names: Sequence[str]) -> Cluster:
    """Return some groups of a cluster, and the links between them."""
    links = {tuple(pair): link for pair, link in cluster.links.items() if pair <= set(names)}
    return Cluster([cluster.group(name) for name in names], links=links, name=cluster.name)


def replicas(
    cluster: Cluster, times: DeviceTimes, strategy: str, batch: int, num_microbatches: int, tp: int = 1
) -> Candidate | None:
    """Return replicas on all devices of a cluster, with samples by finishing time; None where they cannot be."""
    per_group = {group.label: group.count for group in cluster.devices}
    if any(count % tp for count in per_group.values()):
        return None
    most = -(-batch // num_microbatches)
    known = {name: times.samples(name, most, tp) for name in per_group}
    tables = {name: table for name, table in known.items() if table is not None}
    if len(tables) < len(known):
        return None
    owners = [name for name, count in per_group.items() for _ in range(count // tp)]
    if batch < len(owners) * num_microbatches:
        return None

    def seconds_of(name: str) -> Seconds:
        table: Any = tables[name]
        return lambda count: table(-(-count // num_microbatches)) * min(num_microbatches, count)

    samples = samples_by_finishing_time([seconds_of(name) for name in owners], batch)
    if samples is None or min(samples) < num_microbatches:
        return None
    sizes = [-(-count // num_microbatches) for count in samples]
    shares = Shares(samples=samples, microbatch_sizes=sizes if num_microbatches > 1 else None)
    options = {"tp": tp, "microbatch_size": max(sizes)} if strategy == "megatron" else {}
    bound_s = max(
        tables[name](size) * (count // size) for name, size, count in zip(owners, sizes, samples, strict=True)
    )
    if bound_s == inf:
        return None
    groups = tuple(per_group)
    return Candidate(strategy, groups, cluster.num_devices, options, shares, bound_s, cluster)


def probably_fits(candidate: Candidate, times: DeviceTimes) -> bool:
    """Return whether the microbatches of replicas leave some memory free, by what each layer holds."""
    shares, tp = candidate.shares, candidate.options.get("tp", 1)
    assert shares is not None  # replicas have them
    assert shares.samples is not None
    owners = [group.label for group in candidate.cluster.devices for _ in range(group.count // tp)]
    largest = dict(zip(owners, shares.microbatch_sizes or shares.samples, strict=True))
    return all(
        _replica_bytes(times, group, (size, tp), candidate) <= _USABLE * times.capacity_bytes(group)
        for group, size in largest.items()
    )


def _replica_bytes(times: DeviceTimes, group: str, part: tuple[int, int], candidate: Candidate) -> float:
    """Return what a replica holds: as much as one alone, less the states that the strategy divides among replicas."""
    run, found = times.run(group, *part), times.held_bytes(group, *part)
    if run is None or found is None:
        return inf  # more than was measured
    weights, states, _ = map(sum, found)
    divided = 0.0 if candidate.strategy in _WHOLE else states
    divided += weights if candidate.strategy in _SHARDED else 0.0
    return run.peak_memory_bytes - divided * (1 - part[1] / candidate.world_size)


def pipelines(
    cluster: Cluster,
    times: DeviceTimes,
    strategy: str,
    batch: int,
    microbatch_size: int,
    num_replicas: int,
    tp: int = 1,
) -> Candidate | None:
    """Return pipelines beside one another whose stages are groups of devices, with layers by finishing time.

    Args:
        cluster: the devices.
        times: how long they take.
        strategy: "pp_dp" or "megatron".
        batch: samples of the step.
        microbatch_size: samples of a microbatch.
        num_replicas: pipelines beside one another.
        tp: parts of a layer.

    Returns:
        The candidate; None where devices, batch or layers do not divide so, or memory does not allow it.
    """
    width = num_replicas * tp
    if any(group.count % width for group in cluster.devices) or batch % (num_replicas * microbatch_size):
        return None
    owners = [group for group in cluster.devices for _ in range(group.count // width)]
    if len(owners) < 2:
        return None
    seconds = [times.layers(group.label, microbatch_size, tp) for group in owners]
    if any(row is None for row in seconds):
        return None
    num_microbatches = batch // (num_replicas * microbatch_size)
    shards = num_replicas if strategy == "megatron" else 1
    held = [
        _held(times, group.label, (microbatch_size, tp), min(len(owners) - stage, num_microbatches), shards)
        for stage, group in enumerate(owners)
    ]
    places = [times.capacity_bytes(group.label) for group in owners]
    counts = balanced_stages(seconds, held, places)  # type: ignore[arg-type]  # none of them is None, as above
    if counts is None:
        return None
    bound_s = pipeline_time(seconds, counts, num_microbatches)  # type: ignore[arg-type]  # as above
    options: dict[str, Any] = {"pp": len(owners), "microbatch_size": microbatch_size}
    if strategy == "megatron":
        options |= {"tp": tp, "scatter_gather": tp > 1, "overlap_messages": True, "zero": int(num_replicas > 1)}
    groups = tuple(group.label for group in cluster.devices)
    shares = Shares(layers=counts, samples=[batch // num_replicas] * num_replicas)
    return Candidate(strategy, groups, cluster.num_devices, options, shares, bound_s, cluster)


def _held(times: DeviceTimes, group: str, part: tuple[int, int], num_in_flight: int, num_shards: int) -> list[float]:
    """Return what each layer holds on a stage of a pipeline, bytes, with microbatches that are under way."""
    found = times.held_bytes(group, *part)
    assert found is not None  # the same run has told the times
    return [weights + states / num_shards + num_in_flight * kept for weights, states, kept in zip(*found, strict=True)]


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, the smallest first.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [each for each in range(1, number + 1) if number % each == 0]
