"""Exercise 18: Zero bubble: split the backward."""

from minitrain.lib import Model


async def zb_h1(model: Model, microbatch_size: int) -> Model:
    """Train one step; see 18_zero_bubble.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    per_stage = model.num_layers // model.world_size
    layers = range(model.rank * per_stage, (model.rank + 1) * per_stage)
    batch = model.global_batch_size
    batches = [range(i, min(i + microbatch_size, batch)) for i in range(0, batch, microbatch_size)]

    # TODO
    return model
