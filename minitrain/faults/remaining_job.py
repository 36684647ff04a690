"""The step on the devices that are left: the same parameters with fewer ranks, each on the node that it was on.

The batch stays as it is. Where it does not divide equally among the ranks that are left, strategies that ask for shares
get nearly equal ones. In a cluster of unlike devices the dead device is left out, so that prices are those of the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from minitrain.errors import MinitrainError, UsageError
from minitrain.faults.disturbed_run import DisturbedRun, simulate_disturbed
from minitrain.hardware.price import RankPredictors, predictor_of
from minitrain.rank.shares import Shares
from minitrain.run.faults import Recovery
from minitrain.run.prepared_run import PreparedRun
from minitrain.run.result import Run
from minitrain.run.strategy_loading import framework_of

SimulatePrepared = Callable[[PreparedRun], Awaitable[Run]]


async def simulate_with_faults(prepared: PreparedRun, simulate: SimulatePrepared) -> DisturbedRun:
    """Simulate a step whose parameters have faults.

    Args:
        prepared: the run that was asked for.
        simulate: simulates a prepared run without faults.

    Raises:
        UsageError: the job is to go on with fewer ranks, and the strategy runs with no smaller number.
    """
    parameters = prepared.parameters
    faults, recovery = parameters.faults, parameters.recovery or Recovery()
    if recovery.elastic and (
        isinstance(parameters.hardware, RankPredictors) or hasattr(parameters.hardware, "compute")
    ):
        raise UsageError(
            "a smaller job needs new prices, and a predictor is for one number of ranks; name the hardware, or use "
            "elastic=False",
            hardware=parameters.hardware,
        )
    whole = replace(prepared, parameters=replace(parameters, faults=(), recovery=None))

    async def simulate_on(ranks: Sequence[int]) -> Run:
        return await largest_step(whole, ranks, simulate)

    return await simulate_disturbed(simulate_on, parameters.world_size, devices_of(prepared), faults, recovery)


def devices_of(prepared: PreparedRun) -> list[str]:
    """Return the hardware config of each rank's device, or its group in a cluster."""
    named = prepared.predictor.devices if isinstance(prepared.predictor, RankPredictors) else ()
    return list(named) or [prepared.hardware_name] * prepared.parameters.world_size


async def step_on(prepared: PreparedRun, ranks: Sequence[int], simulate: SimulatePrepared) -> Run:
    """Simulate a step on the devices of some ranks of a job.

    Args:
        prepared: the whole job.
        ranks: those whose devices work, in order.
        simulate: simulates a prepared run.

    Raises:
        MinitrainError: the strategy does not run with so many ranks, with equal shares or nearly equal ones.
    """
    if len(ranks) == prepared.parameters.world_size:
        return await simulate(prepared)
    try:
        return await simulate(_smaller(prepared, ranks))
    except MinitrainError:
        whole, rest = divmod(prepared.parameters.global_batch_size, len(ranks))
        if not rest or not whole:
            raise
        samples = [whole + (place < rest) for place in range(len(ranks))]
        return await simulate(_smaller(prepared, ranks, Shares(samples=samples)))


async def smaller_steps(prepared: PreparedRun, simulate: SimulatePrepared, most_missing: int) -> list[float]:
    """Return the step time of the job with 1, 2, ... devices missing, s, as far as the strategy runs.

    With each number of devices missing, the job has the most ranks with which the strategy runs. The last ranks are
    taken to be those that are missing.
    """
    world_size, found = prepared.parameters.world_size, []
    size = world_size
    for missing in range(1, min(most_missing, world_size - 1) + 1):
        if size > world_size - missing:
            try:
                run = await largest_step(prepared, range(world_size - missing), simulate)
            except MinitrainError:
                break
            size = run.world_size
        found.append(run.step_time)
    return found


async def largest_step(prepared: PreparedRun, ranks: Sequence[int], simulate: SimulatePrepared) -> Run:
    """Simulate a step on as many of some ranks' devices as the strategy runs with.

    Raises:
        UsageError: it runs with none of these sizes.
    """
    reason: MinitrainError | None = None
    for size in range(len(ranks), 0, -1):
        try:
            return await step_on(prepared, ranks[:size], simulate)
        except MinitrainError as error:
            reason = reason or error
    raise UsageError(
        f"{prepared.name} runs with no smaller number of ranks than {len(ranks) + 1}, so that it cannot go on without "
        "one; use a strategy that takes other sizes, spares, or elastic=False"
    ) from reason


def _smaller(prepared: PreparedRun, ranks: Sequence[int], shares: Shares | None = None) -> PreparedRun:
    """Return the job on the devices of some of its ranks."""
    old = prepared.parameters
    changes: dict[str, Any] = {"world_size": len(ranks), "shares": shares}
    nodes = nodes_of(prepared)
    if nodes is not None:
        changes |= {"placement": [nodes[rank] for rank in ranks], "network": "auto"}  # a node may have lost devices
    if old.slowdown:
        changes["slowdown"] = {place: old.slowdown[rank] for place, rank in enumerate(ranks) if rank in old.slowdown}
    parameters = replace(old, **changes)
    return replace(prepared, parameters=parameters, predictor=parameters.predictor(framework_of(prepared.function)))


def nodes_of(prepared: PreparedRun) -> Sequence[int] | None:
    """Return the node of each rank, or None where one tier connects all ranks."""
    topology: Any = getattr(predictor_of(prepared.predictor, 0), "topology", None)
    if hasattr(topology, "places"):  # of a cluster
        return tuple(topology.places.nodes)
    if not hasattr(topology, "node"):
        return None
    return [topology.node(rank) for rank in range(prepared.parameters.world_size)]
