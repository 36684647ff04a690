"""The reference of exercise 12: Open challenge: the best MFU within memory."""

from minitrain.lib import Model


async def challenge(model: Model) -> Model:
    """Train by plain ZeRO-3, half of the samples at a time, which many strategies beat."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, rank, n = range(model.num_layers), model.rank, model.world_size
    share = model.global_batch_size // n
    mine, size = range(rank * share, (rank + 1) * share), share // 2
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
