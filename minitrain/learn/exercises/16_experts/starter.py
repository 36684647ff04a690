"""Exercise 16: Experts: send tokens to whoever holds them."""

from minitrain.lib import Model


async def experts(model: Model, microbatch_size: int, ep: int) -> Model:
    """Train one step; see 16_experts.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    mesh = model.mesh(dp=model.world_size // ep, ep=ep)
    parts, replicas = mesh.group("ep"), mesh.group("dp")

    # TODO
    return model
