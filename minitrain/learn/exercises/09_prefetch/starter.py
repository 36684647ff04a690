"""Exercise 09: Overlap the gather with compute."""

from minitrain.lib import Model


async def zero3_prefetch(model: Model, microbatch_size: int | None = None) -> Model:
    """Train one step; see 09_prefetch.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    share = model.global_batch_size // model.world_size
    size = microbatch_size or share
    # TODO
    return model
