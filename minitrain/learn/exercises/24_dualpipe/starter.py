"""Exercise 24: DualPipe: a forward beside a backward."""

from minitrain.lib import Model


async def dualpipe_v(model: Model, microbatch_size: int) -> Model:
    """Train one step; see 24_dualpipe.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, p, batch = model.rank, model.world_size, model.global_batch_size
    stages, per_stage = (rank, 2 * p - 1 - rank), model.num_layers // (2 * p)
    layers_of = [range(stage * per_stage, (stage + 1) * per_stage) for stage in stages]
    batches = [range(i, i + microbatch_size) for i in range(0, batch, microbatch_size)]

    # TODO
    return model
