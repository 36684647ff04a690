"""ZeRO stage 3 (Rajbhandari et al. 2020, P_os+g+p; FSDP): weights, gradients and optimizer state in shards."""

from minitrain.lib import Model

from ._batch import add, microbatches_of, require_shares
from ._tied import reduce_tied, tied_layers


async def zero3(model: Model, microbatch_size: int | None = None, recompute: str = "none") -> Model:
    """Shard everything; global_batch_size must be a multiple of world_size.

    A layer's whole weight exists only while the layer is at work: gathered just before, in both passes, and freed
    just after.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; the rank's whole share if None.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    require_shares(model, "world_size", model.world_size, "zero3")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    for samples in microbatches_of(model, model.world_size, model.rank, microbatch_size, "zero3", in_step=True):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            weights["full"] = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], weights["full"])
            del weights["full"]

        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            weights["full"] = await model.all_gather(weights[layer], layer)
            grad_weights["new"], grad_activations[layer - 1] = model.backward(
                layer, activations[layer], grad_activations[layer], weights["full"]
            )
            del activations[layer], grad_activations[layer], weights["full"]
            if layer not in tied_layers(model):
                grad_weights["new"] = await model.reduce_scatter(grad_weights.pop("new"), layer)
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        del grad_activations[-1]
    await reduce_tied(model, grad_weights)

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        model.set_final_weight(layer, weights[layer])
    return model
