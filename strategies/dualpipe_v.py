"""DualPipeV (DeepSeek-AI 2024, halved by Sea AI Lab 2025): forwards run beside backwards of the other stage."""

from collections.abc import Sequence

from minitrain import schedules
from minitrain.lib import Model

from ._scheduled import run_schedule


async def dualpipe_v(
    model: Model,
    microbatch_size: int | None = None,
    pp: int | None = None,
    zero: int = 0,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Run `minitrain.schedules.dualpipe_v`, which gives the order of actions, on pipelines of pp ranks.

    num_layers must be a multiple of 2 pp: rank r holds stages r and 2 pp - 1 - r. It takes 2 pp microbatches or more.
    Pairs of a forward and a backward run in order, and the messages of one travel while the other computes.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; global_batch_size / 2 world_size if None.
        pp: ranks of a pipeline, a divisor of world_size; world_size if None. Further ranks are replicas.
        zero: ZeRO stage of the replicas, 0 to 3.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        overlap_messages: whether messages between stages are hidden behind compute; a rank waits for each if False.
    """
    return await run_schedule(
        model,
        schedules.dualpipe_v,
        2,
        microbatch_size,
        pp,
        zero,
        layers_per_stage,
        recompute,
        overlap_messages,
        least_microbatches=2,
    )
