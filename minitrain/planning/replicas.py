"""Layouts that are replicas on all devices, with samples by finishing time, in microbatches that fit into memory.

Replicas take equally many microbatches; those that gather weights together must. Where memory is short, replicas of
other strategies may take microbatches as large as each device has room for, and more of them on some devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from minitrain.hardware.clusters.cluster import Cluster
from minitrain.planning.balanced_samples import Seconds, finishing_time, samples_by_finishing_time
from minitrain.planning.candidates import USABLE, Candidate, candidate_of
from minitrain.planning.device_times import DeviceTimes
from minitrain.rank.shares import Shares

_WHOLE, _SHARDED = ("ddp", "ddp_overlap", "megatron"), ("fsdp", "zero3", "zero3_prefetch")


def replicas(
    cluster: Cluster, times: DeviceTimes, strategy: str, batch: int, num_microbatches: int, tp: int = 1
) -> Candidate | None:
    """Return replicas on all devices of a cluster in so many microbatches each; None where they cannot be."""
    owners = _owners(cluster, tp)
    if owners is None or batch < len(owners) * num_microbatches:
        return None
    tables = _tables(owners, times, -(-batch // num_microbatches), tp)
    if tables is None:
        return None

    def seconds_of(name: str) -> Seconds:
        table = tables[name]
        return lambda count: table(-(-count // num_microbatches)) * min(num_microbatches, count)

    samples = samples_by_finishing_time([seconds_of(name) for name in owners], batch)
    if samples is None or min(samples) < num_microbatches:
        return None
    sizes = [-(-count // num_microbatches) for count in samples]
    bound_s = max(
        tables[name](size) * (count // size) for name, size, count in zip(owners, sizes, samples, strict=True)
    )
    if bound_s == inf:
        return None
    shares = Shares(samples=samples, microbatch_sizes=sizes if num_microbatches > 1 else None)
    return candidate_of(cluster, times, strategy, batch, _options(strategy, tp, sizes), shares=shares, bound_s=bound_s)


def fitted_replicas(cluster: Cluster, times: DeviceTimes, strategy: str, batch: int, tp: int = 1) -> Candidate | None:
    """Return replicas whose microbatches are as large as each device has room for; None where they cannot be."""
    owners = _owners(cluster, tp)
    if owners is None or strategy in _SHARDED:
        return None
    world_size = cluster.num_devices
    largest = {name: _largest(times, name, tp, strategy, world_size, batch) for name in dict.fromkeys(owners)}
    tables = _tables(owners, times, max(largest.values()), tp)
    if tables is None or min(largest.values()) == 0:
        return None

    def seconds_of(name: str) -> Seconds:
        table, size = tables[name], largest[name]
        return lambda count: count // size * table(size) + (table(count % size) if count % size else 0.0)

    seconds = [seconds_of(name) for name in owners]
    samples = samples_by_finishing_time(seconds, batch)
    if samples is None:
        return None
    sizes = [min(largest[name], count) for name, count in zip(owners, samples, strict=True)]
    shares, bound_s = Shares(samples=samples, microbatch_sizes=sizes), finishing_time(seconds, samples)
    return candidate_of(
        cluster, times, strategy, batch, _options(strategy, tp, sizes), shares=shares, bound_s=bound_s, has_room=True
    )


def _largest(times: DeviceTimes, group: str, tp: int, strategy: str, world_size: int, most: int) -> int:
    """Return the largest power of two of samples that a device has room for; 0 where there is none."""
    size, capacity = 1, USABLE * times.capacity_bytes(group)
    while size <= most and _replica_bytes(times, group, (size, tp), strategy, world_size) <= capacity:
        size *= 2
    return size // 2


def _owners(cluster: Cluster, tp: int) -> list[str] | None:
    """Return the group of each replica; None where parts of layers do not divide a group."""
    if any(group.count % tp for group in cluster.devices):
        return None
    return [group.label for group in cluster.devices for _ in range(group.count // tp)]


def _tables(
    owners: Sequence[str], times: DeviceTimes, most: int, tp: int
) -> Mapping[str, Callable[[int], float]] | None:
    """Return how long each group takes for samples up to some number; None where one cannot run them."""
    known = {name: times.samples(name, most, tp) for name in dict.fromkeys(owners)}
    found = {name: table for name, table in known.items() if table is not None}
    return found if len(found) == len(known) else None


def _options(strategy: str, tp: int, sizes: Sequence[int]) -> dict[str, int]:
    return {"tp": tp, "microbatch_size": max(sizes)} if strategy == "megatron" else {}


def has_room(candidate: Candidate, times: DeviceTimes) -> bool:
    """Return whether a layout leaves some memory free, by what each layer holds."""
    if candidate.has_room is not None:
        return candidate.has_room
    shares, tp = candidate.shares, candidate.options.get("tp", 1)
    assert shares is not None  # replicas have them
    assert shares.samples is not None
    owners = [group.label for group in candidate.cluster.devices for _ in range(group.count // tp)]
    largest = dict(zip(owners, shares.microbatch_sizes or shares.samples, strict=True))
    return all(
        _replica_bytes(times, group, (size, tp), candidate.strategy, candidate.world_size)
        <= USABLE * times.capacity_bytes(group)
        for group, size in largest.items()
    )


def _replica_bytes(times: DeviceTimes, group: str, part: tuple[int, int], strategy: str, world_size: int) -> float:
    """Return what a replica holds: as much as one alone, less the states that the strategy divides among replicas."""
    run, found = times.run(group, *part), times.held_bytes(group, *part)
    if run is None or found is None:
        return inf  # more than was measured
    weights, states, _ = map(sum, found)
    divided = 0.0 if strategy in _WHOLE else states
    divided += weights if strategy in _SHARDED else 0.0
    return run.peak_memory_bytes - divided * (1 - part[1] / world_size)
