"""ZeRO stage 2 (Rajbhandari et al. 2020, P_os+g): optimizer state and gradients in shards."""

from minitrain.lib import Model

from ._batch import add, microbatches_of, require_shares
from ._tied import reduce_tied, tied_layers


async def zero2(model: Model, microbatch_size: int | None = None, recompute: str = "none") -> Model:
    """Shard optimizer state and gradients; global_batch_size must be a multiple of world_size.

    Each full gradient is reduced and freed as soon as it is there, in every microbatch.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; the rank's whole share if None.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    require_shares(model, "world_size", model.world_size, "zero2")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, world_size, layers = model.rank, model.world_size, range(model.num_layers)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
        opt_states[layer] = opt_states[layer].shard(rank, world_size)

    for samples in microbatches_of(model, world_size, rank, microbatch_size, "zero2", in_step=True):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])

        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            grad_weights["new"], grad_activations[layer - 1] = model.backward(
                layer, activations[layer], grad_activations[layer], weights[layer]
            )
            del activations[layer], grad_activations[layer]
            if layer not in tied_layers(model):
                grad_weights["new"] = await model.reduce_scatter(grad_weights.pop("new"), layer)
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        del grad_activations[-1]
    await reduce_tied(model, grad_weights)

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(
            layer, grad_weights[layer], weights[layer].shard(rank, world_size), opt_states[layer]
        )
        del grad_weights[layer]
        weights[layer] = await model.all_gather(weights[layer], layer)
        model.set_final_weight(layer, weights[layer])
    return model
