"""Local SGD (Stich 2019; federated averaging, McMahan et al. 2017): own steps, then the mean of all weights."""

import minitrain as mt
from minitrain.lib import Model

from ._local import train_locally


@mt.local_steps("local_steps", "replicas", alike=True)
async def local_sgd(
    model: Model,
    local_steps: int = 2,
    replicas: int | None = None,
    microbatch_size: int | None = None,
    recompute: str = "none",
) -> Model:
    """Average weights every few steps; global_batch_size must be a multiple of local_steps x world_size.

    A step of the run is a round: its batch is that of all local steps.

    Args:
        model: the rank.
        local_steps: how many steps each replica takes alone.
        replicas: how many there are; each rank is one if None. The ranks of a replica train data parallel.
        microbatch_size: samples a microbatch; the rank's whole share of a local step if None.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    return await train_locally(model, local_steps, replicas, microbatch_size, "local_sgd", momentum=False)
