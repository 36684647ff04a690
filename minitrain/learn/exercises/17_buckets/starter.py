"""Exercise 17: Buckets of gradients, summed beside the backward."""

from minitrain.lib import Model


async def ddp_overlap(model: Model, microbatch_size: int, bucket_size: int) -> Model:
    """Train one step; see 17_buckets.md."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    share = model.global_batch_size // model.world_size
    mine = range(model.rank * share, (model.rank + 1) * share)
    batches = [mine[i : i + microbatch_size] for i in range(0, share, microbatch_size)]

    # TODO
    return model
