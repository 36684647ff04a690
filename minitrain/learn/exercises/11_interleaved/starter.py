"""Exercise 11: Interleaved 1F1B."""

from minitrain.lib import Model


async def interleaved_1f1b(model: Model, microbatch_size: int, num_chunks: int) -> Model:
    """Train one step; see 11_interleaved.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    # TODO
    return model
