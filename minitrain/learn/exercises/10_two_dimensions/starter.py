"""Exercise 10: Data x pipeline, in two dimensions."""

from minitrain.lib import Model


async def pp_dp(model: Model, microbatch_size: int, pp: int) -> Model:
    """Train one step; see 10_two_dimensions.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    mesh = model.mesh(pp=pp, dp=model.world_size // pp)

    # TODO
    return model
