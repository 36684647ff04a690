"""ZB-H1 over a loop of stages (Qi et al. 2023; Narayanan et al. 2021)."""

from collections.abc import Sequence

from minitrain import schedules
from minitrain.lib import Model

from ._scheduled import run_schedule


async def interleaved_zero_bubble(
    model: Model,
    microbatch_size: int | None = None,
    pp: int | None = None,
    zero: int = 0,
    num_chunks: int = 2,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Run `minitrain.schedules.interleaved_zero_bubble`, which gives the order of actions, on pipelines of pp ranks.

    num_layers must be a multiple of pp x num_chunks where layers are alike, and microbatches one of pp. The bubble is
    1/num_chunks of ZB-H1's.

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
        schedules.interleaved_zero_bubble,
        num_chunks,
        microbatch_size,
        pp,
        zero,
        layers_per_stage,
        recompute,
        overlap_messages,
    )
