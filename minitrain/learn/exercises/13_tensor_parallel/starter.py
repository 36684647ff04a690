"""Exercise 13: Tensor parallelism: divide every layer."""

from minitrain.lib import Model


async def tensor_parallel(model: Model, microbatch_size: int, tp: int) -> Model:
    """Train one step; see 13_tensor_parallel.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    mesh = model.mesh(dp=model.world_size // tp, tp=tp)
    parts, replicas = mesh.group("tp"), mesh.group("dp")

    # TODO
    return model
