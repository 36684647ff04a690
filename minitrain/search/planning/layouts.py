"""The layouts that a plan considers: precisions, choices of groups, strategies, degrees, microbatches, recomputation.

`layouts` yields them, each a `Candidate`: replicas, or pipelines of groups of devices. A candidate has what `simulate`
needs, and a lower bound of its step time: what its busiest device computes. Nothing that communicates or waits is in
the bound, so that a candidate whose bound is above a simulated step cannot win. Layouts that cannot be the best are not
made. Recomputation is considered only where memory is short, since it costs time. Of precisions that cost the same, the
first is taken that all devices of a choice of groups have.

**Pipelines** stand beside one another; their stages are groups of devices, in the order of the devices. Layers are cut
into stages such that the slowest is as fast as it can be, with each device's memory as a bound (`balanced_stages`). The
best cut of the first layers into the first stages is extended stage by stage (dynamic programming). That is exact for
contiguous stages, whatever each stage takes and holds for each layer.

**Replicas** lie on all devices. Samples are shared by finishing time (`samples_by_finishing_time`): one after the
other, to the replica that would finish it first. For replicas whose time grows with their samples this is optimal up to
one sample (list scheduling of equal tasks on uniform machines). Every replica has at least one sample; one that should
have none is a device to leave out. Replicas take equally many microbatches, which fit into memory; those that gather
weights together must. Where memory is short, replicas of other strategies may take microbatches as large as each device
has room for, and more of them on some devices.

**A power budget** is divided between groups by what a watt buys (`within_budget`). Under a cap a device's clock grows
with the cube root of its dynamic power (see `minitrain.machine.device_groups`). The time of a step that is divided by
speed is inverse to the sum of rate x clock over all devices, so this sum is maximised. With d the dynamic power of a
device at its full clock and x its share of it, it is the sum of rate x^(1/3), subject to a given sum of d x. By
Lagrange, x grows with (rate / d)^(3/2), and is 1 at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, combinations
from math import inf
from typing import Any

import numpy as np

from minitrain.engine.semantics import Shares
from minitrain.machine.cluster import Cluster
from minitrain.machine.device_groups import Devices
from minitrain.run.analysis.timeline import Floats
from minitrain.run.strategy_loading import choose_strategy, framework_of, takes_option
from minitrain.search.planning.device_times import DeviceTimes
from minitrain.workloads.architecture import Precision

DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees that are tried: those within a node."""
USABLE = 0.9
"""Of a device's memory, what a layout with room uses at most; what it holds is an estimate."""


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


Table = Sequence[Sequence[float]]
"""A figure of each layer on each stage, (num_stages, num_layers)."""


def balanced_stages(
    seconds: Table, held_bytes: Table | None = None, capacity_bytes: Sequence[float] | None = None
) -> list[int] | None:
    """Return how many layers each stage takes.

    Args:
        seconds: how long each stage would take for each layer, s.
        held_bytes: what each layer would hold on each stage; no bound if None.
        capacity_bytes: what each stage has place for.

    Returns:
        At least one layer a stage; None where memory allows none, or there are fewer layers than stages.

    >>> balanced_stages([[1, 1, 1, 1], [3, 3, 3, 3]])
    [3, 1]
    """
    num_layers = len(seconds[0])
    slowest = np.full(num_layers + 1, np.inf)  # of the best cut of the first layers into the stages so far
    slowest[0] = 0.0
    starts = []  # of each stage, by where it ends
    for stage, row in enumerate(seconds):
        cost = _spans(row)
        if held_bytes is not None and capacity_bytes is not None:
            cost[_spans(held_bytes[stage]) > capacity_bytes[stage]] = np.inf
        reached = np.maximum(slowest[:, None], cost)
        starts.append(reached.argmin(axis=0))
        slowest = reached.min(axis=0)
    if not np.isfinite(slowest[num_layers]):
        return None
    counts, stop = [], num_layers
    for start in reversed(starts):
        counts.append(stop - int(start[stop]))
        stop = int(start[stop])
    return counts[::-1]


def _spans(row: Sequence[float]) -> Floats:
    """Return the sum of layers i to j - 1 at [i, j]; infinity where there is none."""
    sums = np.array([0.0, *accumulate(row)])
    spans: Floats = sums[None, :] - sums[:, None]
    spans[np.tril_indices(len(sums))] = np.inf
    return spans


def pipeline_time(seconds: Table, counts: Sequence[int], num_microbatches: int) -> float:
    """Return the least that a pipeline takes, s.

    A stage does all of its microbatches one after the other. Before its first, the stages before it have taken one
    forward; after its last, they take one backward.

    Args:
        seconds: how long each stage takes for a microbatch of each layer, forward and backward, s.
        counts: the layers of each stage.
        num_microbatches: of the step.

    >>> pipeline_time([[1, 1, 1], [2, 2, 2]], [2, 1], 4)
    10
    """
    starts = [0, *accumulate(counts)]
    stages = [sum(row[start : start + count]) for row, start, count in zip(seconds, starts, counts, strict=False)]
    before = [0.0, *accumulate(stages)]
    return max(num_microbatches * each + first for each, first in zip(stages, before, strict=False))


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
    owners = [group.label for group in cluster.devices for _ in range(group.count // width)]
    if len(owners) < 2:
        return None
    seconds = [row for row in (times.layers(owner, microbatch_size, tp) for owner in owners) if row is not None]
    if len(seconds) < len(owners):
        return None
    num_microbatches = batch // (num_replicas * microbatch_size)
    shards = num_replicas if strategy == "megatron" else 1
    held = [
        _held(times, owner, (microbatch_size, tp), min(len(owners) - stage, num_microbatches), shards)
        for stage, owner in enumerate(owners)
    ]
    places = [times.capacity_bytes(owner) for owner in owners]
    counts = balanced_stages(seconds, held, places)
    if counts is None:
        return None
    options: dict[str, Any] = {"pp": len(owners), "microbatch_size": microbatch_size}
    if strategy == "megatron":
        options |= {"tp": tp, "scatter_gather": tp > 1, "overlap_messages": True, "zero": int(num_replicas > 1)}
    return candidate_of(
        cluster,
        times,
        strategy,
        batch,
        options,
        shares=Shares(layers=counts, samples=[batch // num_replicas] * num_replicas),
        bound_s=pipeline_time(seconds, counts, num_microbatches),
        has_room=counts == balanced_stages(seconds, held, [USABLE * place for place in places])
        and counts == balanced_stages(seconds),
    )


def _held(times: DeviceTimes, group: str, part: tuple[int, int], num_in_flight: int, num_shards: int) -> list[float]:
    """Return what each layer holds on a stage of a pipeline, bytes, with microbatches that are under way."""
    found = times.held_bytes(group, *part)
    assert found is not None  # the run that gave the times gives these too
    return [weights + states / num_shards + num_in_flight * kept for weights, states, kept in zip(*found, strict=True)]


_ROUNDS = 60  # of bisection: more than a float has bits
_LEAST_WATTS = 1e-9  # in place of a dynamic power of 0, by which nothing can be divided


def within_budget(cluster: Cluster, watts: float) -> Cluster | None:
    """Return the cluster with caps under which its devices together are fastest.

    Args:
        cluster: the devices that take part; others are switched off.
        watts: what all of them may draw together.

    Returns:
        None where the budget does not keep these devices above their idle power.

    Raises:
        HardwareConfigError: a config does not say its power.
    """
    if cluster.peak_watts is not None and cluster.peak_watts <= watts:
        return cluster
    left = watts - sum(group.idle_watts * group.count for group in cluster.devices)
    if left <= 0:
        return None
    dynamic = {group.label: max((group.watts or 0.0) - group.idle_watts, _LEAST_WATTS) for group in cluster.devices}
    worth = {each.label: (_rate(each) / dynamic[each.label]) ** 1.5 for each in cluster.devices}
    low, high = 0.0, 1.0 / min(worth.values())
    for _ in range(_ROUNDS):
        scale = (low + high) / 2
        needed = sum(min(1.0, scale * worth[each.label]) * dynamic[each.label] * each.count for each in cluster.devices)
        low, high = (scale, high) if needed <= left else (low, scale)
    found = cluster
    for group in cluster.devices:
        share = min(1.0, low * worth[group.label])
        found = found.changed(group.label, power_cap_watts=group.idle_watts + share * dynamic[group.label])
    return found


def _rate(group: Devices) -> float:
    """Return the best matrix rate of a device, FLOP/s."""
    return max(rate.peak_flop_per_s for rate in group.system.processor.matrix.values())


Seconds = Callable[[int], float]
"""How long a replica computes for a number of samples, s; it must not fall as samples grow."""


def samples_by_finishing_time(
    seconds: Sequence[Seconds], num_samples: int, most: Sequence[int] | None = None
) -> list[int] | None:
    """Return the samples of each replica.

    Args:
        seconds: how long each computes for a number of samples.
        num_samples: of the step.
        most: the most samples that each has memory for; no bound if None.

    Returns:
        At least one sample each, in the order of the replicas; None where there are fewer samples than replicas, or
        not enough memory.

    >>> samples_by_finishing_time([lambda n: n, lambda n: 3 * n], 8)
    [6, 2]
    """
    bounds = [num_samples] * len(seconds) if most is None else most
    if num_samples < len(seconds) or min(bounds) < 1 or sum(bounds) < num_samples:
        return None
    samples = [1] * len(seconds)
    queue = [(each(2), place) for place, each in enumerate(seconds) if bounds[place] > 1]
    heapq.heapify(queue)
    for _ in range(num_samples - len(seconds)):
        _, place = heapq.heappop(queue)
        samples[place] += 1
        if samples[place] < bounds[place]:
            heapq.heappush(queue, (seconds[place](samples[place] + 1), place))
    return samples


def finishing_time(seconds: Sequence[Seconds], samples: Sequence[int]) -> float:
    """Return when the last replica has done its samples, s."""
    return max(each(count) for each, count in zip(seconds, samples, strict=True))


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
    run = times.run(group, *part)
    if run is None:
        return inf  # more than was measured
    stored = run.models[0].memory_by_store()  # a table that embedding and head share once
    divided = 0.0 if strategy in _WHOLE else stored["opt_states"]
    divided += 2 * stored["weights"] if strategy in _SHARDED else 0.0  # and as much of gradients
    divided *= run.bytes_per_element
    return run.peak_memory_bytes - divided * (1 - part[1] / world_size)


_MICROBATCHES = (1, 2, 4, 8)
_OF_LAYERS = ("ddp_overlap", "zero1", "zero3_prefetch", "pp_dp")
_OF_TRANSFORMERS = ("zero1", "fsdp", "megatron")


def layouts(
    parts: Sequence[Cluster],
    times_by_precision: Sequence[DeviceTimes],
    strategies: Sequence[str] | None,
    batch: int,
    budget_watts: float | None,
) -> list[Candidate]:
    """Return all layouts on choices of groups, those of the lowest bound first.

    Args:
        parts: choices of groups.
        times_by_precision: how long the devices of the whole cluster take, for each precision.
        strategies: those to consider; those that suit the workload if None.
        batch: samples of the step.
        budget_watts: what all devices that take part may draw together.
    """
    found: list[Candidate] = []
    for part in parts:
        used = part if budget_watts is None else within_budget(part, budget_watts)
        if used is not None:
            for times in _precisions_of(part, times_by_precision):
                own = times if used is part else replace(times, cluster=used, _runs={}, _layers={}, _others={})
                found += _on_all(used, own, strategies, batch)
    return sorted(found, key=lambda each: each.bound_s)


def _precisions_of(part: Cluster, times_by_precision: Sequence[DeviceTimes]) -> Iterator[DeviceTimes]:
    """Yield the precisions that all devices of a choice of groups have, the first of those that cost the same."""
    seen: list[Precision | None] = []
    for times in times_by_precision:
        cost = times.precision and replace(times.precision, name="")
        if cost not in seen and not any(times.lacks(group.label) for group in part.devices):
            seen.append(cost)
            yield times


def _on_all(cluster: Cluster, times: DeviceTimes, strategies: Sequence[str] | None, batch: int) -> Iterator[Candidate]:
    """Yield the layouts on all devices of a cluster, in its order and in reverse."""
    wanted = strategies or (_OF_LAYERS if times.step.get("workload") is None else _OF_TRANSFORMERS)
    for strategy in wanted:
        function = choose_strategy(strategy).function
        own = replace(times, framework=framework_of(function))
        own = own if takes_option(function, "recompute") else replace(own, recomputations=())
        degrees = _degrees(cluster) if strategy == "megatron" else [1]
        if strategy != "pp_dp":
            for tp in degrees:
                yield from _replicas(cluster, own, strategy, batch, tp)
        if strategy in ("pp_dp", "megatron"):
            yield from _pipelines(cluster, own, strategy, batch, degrees)


def _replicas(cluster: Cluster, times: DeviceTimes, strategy: str, batch: int, tp: int) -> Iterator[Candidate]:
    """Yield replicas with few microbatches, and with more where these exceed memory or the measured sizes."""
    number, is_enough = 1, False
    while number <= _MICROBATCHES[-1] or (number <= batch and not is_enough):
        make = partial(replicas, cluster, strategy=strategy, batch=batch, num_microbatches=number, tp=tp)
        found = make(times)
        is_enough = is_enough or (found is not None and has_room(found, times))
        yield from [found] if found else []
        yield from () if is_enough else _recomputing(make, times)
        if number == 1 and not is_enough:
            fitted = (fitted_replicas(cluster, each, strategy, batch, tp) for each in (times, *times.recomputing()))
            yield from filter(None, fitted)
        number *= 2


def _pipelines(
    cluster: Cluster, times: DeviceTimes, strategy: str, batch: int, degrees: Sequence[int]
) -> Iterator[Candidate]:
    """Yield pipelines over all devices of a cluster."""
    names = [group.label for group in cluster.devices]
    orders = [cluster] if len(names) == 1 else [cluster, cluster.part(names[::-1])]
    sizes = ((order, tp, num) for order in orders for tp in degrees for num in divisors(order.num_devices // tp))
    for order, tp, num_replicas in sizes:
        for size in (each for each in _MICROBATCHES if batch % (num_replicas * each) == 0):
            make = partial(
                pipelines, order, strategy=strategy, batch=batch, microbatch_size=size, num_replicas=num_replicas, tp=tp
            )
            found = make(times)
            yield from [found] if found else []
            yield from () if found and has_room(found, times) else _recomputing(make, times)


def _recomputing(make: Callable[[DeviceTimes], Candidate | None], times: DeviceTimes) -> Iterator[Candidate]:
    """Yield a layout whose memory is short with more and more computed again, until it has room."""
    for other in times.recomputing():
        found = make(other)
        if found is not None:
            yield found
            if has_room(found, other):
                return


def _degrees(cluster: Cluster) -> list[int]:
    """Return the tensor-parallel degrees that fit into every node."""
    smallest = min(group.devices_per_node for group in cluster.devices)
    return [tp for tp in DEGREES if tp <= smallest and all(group.count % tp == 0 for group in cluster.devices)]
