"""The layouts that a plan considers: precisions, choices of groups, strategies, degrees, microbatches, recomputation.

Layouts that cannot be the best are not made. Recomputation is considered only where memory is short, since it costs
time. Of precisions that cost the same, the first is taken that all devices of a choice of groups have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from minitrain.hardware.clusters.cluster import Cluster
from minitrain.planning.candidates import DEGREES, Candidate, divisors
from minitrain.planning.device_times import DeviceTimes
from minitrain.planning.pipelines import pipelines
from minitrain.planning.power_budget import within_budget
from minitrain.planning.replicas import fitted_replicas, has_room, replicas
from minitrain.run.chosen_strategy import choose_strategy
from minitrain.run.strategy_loading import takes_option
from minitrain.workloads.precision import Precision

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
        can_recompute = takes_option(choose_strategy(strategy).function, "recompute")
        own = times if can_recompute else replace(times, recomputations=())
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
