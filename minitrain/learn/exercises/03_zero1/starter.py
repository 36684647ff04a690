"""Exercise 03: ZeRO-1: shard the optimizer state."""

from minitrain.lib import Model


async def zero1(model: Model, microbatch_size: int | None = None) -> Model:
    """Train one step; see 03_zero1.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    share = model.global_batch_size // model.world_size
    size = microbatch_size or share
    # TODO
    return model
