"""ZB-V (Qi et al. 2023, section 6): no bubble within a rank's span, in the memory of 1F1B."""

from collections.abc import Sequence

from minitrain import schedules
from minitrain.lib import Model

from ._scheduled import run_schedule


async def zbv(
    model: Model,
    microbatch_size: int | None = None,
    pp: int | None = None,
    zero: int = 0,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Run `minitrain.schedules.zbv`, which gives the order of actions, on pipelines of pp ranks.

    num_layers must be a multiple of 2 pp: rank r holds stages r and 2 pp - 1 - r, so that the model goes down the ranks
    and back. With 2 pp - 1 microbatches or more, no rank waits once it has begun.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; global_batch_size / world_size if None.
        pp: ranks of a pipeline, a divisor of world_size; world_size if None. Further ranks are replicas.
        zero: ZeRO stage of the replicas, 0 to 3.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        overlap_messages: whether messages between stages are hidden behind compute; a rank waits for each if False.
    """
    return await run_schedule(
        model, schedules.zbv, 2, microbatch_size, pp, zero, layers_per_stage, recompute, overlap_messages
    )
