"""Layouts that are pipelines beside one another, whose stages are groups of devices, with layers by finishing time."""

from __future__ import annotations

from typing import Any

from minitrain.hardware.clusters.cluster import Cluster
from minitrain.planning.balanced_stages import balanced_stages, pipeline_time
from minitrain.planning.candidates import USABLE, Candidate, candidate_of
from minitrain.planning.device_times import DeviceTimes
from minitrain.rank.shares import Shares


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
