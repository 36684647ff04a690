"""ZeRO stage 1 (Rajbhandari et al. 2020, P_os): data parallelism with the optimizer state in shards."""

from minitrain.lib import Model

from ._batch import add, microbatches_of, require_shares
from ._tied import sum_tied


async def zero1(model: Model, microbatch_size: int | None = None, recompute: str = "none") -> Model:
    """Shard the optimizer state; global_batch_size must be a multiple of world_size.

    Full gradients stay until the step. There, each rank reduces its shard of a layer's gradient (in place, so the
    shard takes no memory), updates its shard of the weight, and all gather the updated weight.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; the rank's whole share if None.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    require_shares(model, "world_size", model.world_size, "zero1")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, world_size, layers = model.rank, model.world_size, range(model.num_layers)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
        opt_states[layer] = opt_states[layer].shard(rank, world_size)

    for samples in microbatches_of(model, world_size, rank, microbatch_size, "zero1"):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])

        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            grad_weights["new"], grad_activations[layer - 1] = model.backward(
                layer, activations[layer], grad_activations[layer], weights[layer]
            )
            del activations[layer], grad_activations[layer]
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        del grad_activations[-1]

    await sum_tied(model, grad_weights)
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(
            layer,
            await model.reduce_scatter(grad_weights[layer], layer),
            weights[layer].shard(rank, world_size),
            opt_states[layer],
        )
        del grad_weights[layer]
        weights[layer] = await model.all_gather(weights[layer], layer)
        model.set_final_weight(layer, weights[layer])
    return model
