"""Exercise 15: Ring attention: cut the sequence."""

from minitrain.lib import Model


async def ring_attention(model: Model, microbatch_size: int, cp: int) -> Model:
    """Train one step; see 15_ring_attention.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    mesh = model.mesh(dp=model.world_size // cp, cp=cp)
    place, replica = mesh.coord("cp"), mesh.coord("dp")
    before, after = mesh.peer("cp", -1, wrap=True), mesh.peer("cp", +1, wrap=True)

    async def attention(layer):
        """Return the input of layer + 1."""
        # TODO

    async def attention_backward(layer):
        """Return the gradient of the layer's weight, and the gradient of its input."""
        # TODO

    # TODO
    return model
