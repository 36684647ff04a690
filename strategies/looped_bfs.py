"""Breadth-first pipeline (Lamy-Poirier 2023): each rank holds several stages, and runs one after the other."""

from collections.abc import Sequence

from minitrain import schedules
from minitrain.lib import Model

from ._scheduled import run_schedule


async def looped_bfs(
    model: Model,
    microbatch_size: int | None = None,
    pp: int | None = None,
    zero: int = 0,
    num_chunks: int = 2,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Run `minitrain.schedules.looped_bfs`, which gives the order of actions, on pipelines of pp ranks.

    num_layers must be a multiple of pp x num_chunks where layers are alike. The bubble is 1/num_chunks of GPipe's, and
    every microbatch is alive at once.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; global_batch_size / world_size if None.
        pp: ranks of a pipeline, a divisor of world_size; world_size if None. Further ranks are replicas.
        zero: ZeRO stage of the replicas, 0 to 3.
        num_chunks: stages a rank.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        overlap_messages: whether messages between stages are hidden behind compute; a rank waits for each if False.
    """
    return await run_schedule(
        model,
        schedules.looped_bfs,
        num_chunks,
        microbatch_size,
        pp,
        zero,
        layers_per_stage,
        recompute,
        overlap_messages,
    )
