"""Exercise 01: Gradient accumulation."""

from minitrain.lib import Model


async def accumulate(model: Model, microbatch_size: int) -> Model:
    """Train one step; see 01_accumulate.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for layer in range(model.num_layers):
        weights[layer], opt_states[layer] = model.load_weights(layer)

    # TODO
    return model
