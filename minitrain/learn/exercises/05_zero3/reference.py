"""The reference of exercise 05: ZeRO-3: shard the weights."""

from minitrain.lib import Model


async def zero3(model: Model, microbatch_size: int | None = None) -> Model:
    """Keep a shard of everything, and gather a weight while its layer works."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, rank, n = range(model.num_layers), model.rank, model.world_size
    share = model.global_batch_size // n
    mine, size = range(rank * share, (rank + 1) * share), microbatch_size or share
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, rank, n)

    for start in range(0, share, size):
        activations[0] = model.get_input_activation(mine[start : start + size])
        for layer in layers:
            weights["whole"] = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], weights["whole"])
            del weights["whole"]
        grad_activations["out"] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            weights["whole"] = await model.all_gather(weights[layer], layer)
            grad_weights["new"], grad_activations["out"] = model.backward(
                layer, activations[layer], grad_activations["out"], weights["whole"]
            )
            del activations[layer], weights["whole"]
            shard = await model.reduce_scatter(grad_weights.pop("new"), layer)
            grad_weights[layer] = grad_weights[layer] + shard if layer in grad_weights else shard

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
