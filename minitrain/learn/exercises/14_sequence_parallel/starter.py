"""Exercise 14: Sequence parallelism: divide what is between layers."""

from minitrain.lib import Model


async def sequence_parallel(model: Model, microbatch_size: int, tp: int) -> Model:
    """Train one step; see 14_sequence_parallel.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    mesh = model.mesh(dp=model.world_size // tp, tp=tp)
    parts, replicas = mesh.group("tp"), mesh.group("dp")

    # TODO
    return model
