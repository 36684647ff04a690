"""DiLoCo (Douillard et al. 2023, algorithm 1): replicas that seldom meet, and an outer optimizer with momentum.

With fragments it is Streaming DiLoCo (Douillard et al. 2025, algorithm 2).
"""

import minitrain as mt
from minitrain.lib import Model

from ._local import train_locally


@mt.local_steps(
    "local_steps",
    "replicas",
    outer=mt.Nesterov(rate=0.7, decay=0.9),
    compression="compression",
    fragments="fragments",
    overlap="overlap",
    mixing="mixing",
    alike=True,
)
async def diloco(
    model: Model,
    local_steps: int = 2,
    replicas: int | None = None,
    microbatch_size: int | None = None,
    recompute: str = "none",
    compression: str = "none",
    fragments: int = 1,
    overlap: int = 0,
    mixing: float = 0.0,
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
        fragments: in how many parts the layers meet, in turn; local_steps must be a multiple of it.
        overlap: how many local steps before its meeting a part is sent, beside these; less than a part's turn.
        mixing: what share of its own weights a replica keeps when it meets; the paper's alpha, there 0.5.
    """
    model.recompute = recompute
    sizes = local_steps, replicas, microbatch_size
    streaming = fragments, overlap, mixing
    return await train_locally(model, *sizes, "diloco", True, compression, *streaming)
