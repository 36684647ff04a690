"""Exercise 05: ZeRO-3: shard the weights."""

from minitrain.lib import Model


async def zero3(model: Model, microbatch_size: int | None = None) -> Model:
    """Train one step; see 05_zero3.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    share = model.global_batch_size // model.world_size
    size = microbatch_size or share
    # TODO
    return model
