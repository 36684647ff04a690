"""Chimera (Li and Hoefler 2021): two pipelines in opposite directions, with a copy of the weights each."""

from collections.abc import Sequence

from minitrain import schedules
from minitrain.lib import Model

from ._scheduled import run_schedule


async def chimera(
    model: Model,
    microbatch_size: int | None = None,
    pp: int | None = None,
    zero: int = 0,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Run `minitrain.schedules.chimera`, which gives the order of actions, on pipelines of pp places.

    num_layers must be a multiple of pp, which is even: the ranks at places q and pp - 1 - q of a pipeline hold stages q
    and pp - 1 - q, and sum their gradients. They are ranks q and q + pp / 2.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; global_batch_size / world_size if None.
        pp: ranks of a pipeline, an even divisor of world_size; world_size if None. Further ranks are replicas.
        zero: ZeRO stage of the replicas, 0 to 3.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        overlap_messages: whether messages between stages are hidden behind compute; a rank waits for each if False.
    """
    return await run_schedule(
        model,
        schedules.chimera,
        2,
        microbatch_size,
        pp,
        zero,
        layers_per_stage,
        recompute,
        overlap_messages,
        directions=2,
    )
