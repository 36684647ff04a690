"""DiLoCo (Douillard et al. 2023, algorithm 1): replicas that seldom meet, and an outer optimizer with momentum."""

import minitrain as mt
from minitrain.lib import Model

from ._local import train_locally


@mt.local_steps("local_steps", "replicas", outer=mt.Nesterov(rate=0.7, decay=0.9), compression="compression")
async def diloco(
    model: Model,
    local_steps: int = 2,
    replicas: int | None = None,
    microbatch_size: int | None = None,
    recompute: str = "none",
    compression: str = "none",
) -> Model:
    """Take the common weight on every few steps; global_batch_size must be a multiple of local_steps x world_size.

    A step of the run is a round: its batch is that of all local steps. The paper's rounds have 500 of them.

    Args:
        model: the rank.
        local_steps: how many steps each replica takes alone.
        replicas: how many there are; each rank is one if None. The ranks of a replica train data parallel.
        microbatch_size: samples a microbatch; the rank's whole share of a local step if None.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        compression: how outer gradients are sent: "int4" as in Streaming DiLoCo (Douillard et al. 2025, section 3.3),
            or another of `powersgd_ddp`; "none" sends them exactly.
    """
    model.recompute = recompute
    sizes = local_steps, replicas, microbatch_size
    return await train_locally(model, *sizes, "diloco", momentum=True, compression=compression)
