"""The reference of exercise 03: ZeRO-1: shard the optimizer state."""

from minitrain.lib import Model


async def zero1(model: Model, microbatch_size: int | None = None) -> Model:
    """Keep a shard of each optimizer state, update that shard of the weight, and gather the others."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, rank, n = range(model.num_layers), model.rank, model.world_size
    share = model.global_batch_size // n
    mine, size = range(rank * share, (rank + 1) * share), microbatch_size or share
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
        opt_states[layer] = opt_states[layer].shard(rank, n)

    for start in range(0, share, size):
        activations[0] = model.get_input_activation(mine[start : start + size])
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        grad_activations["out"] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            new, grad_activations["out"] = model.backward(
                layer, activations[layer], grad_activations["out"], weights[layer]
            )
            del activations[layer]
            grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new
            del new

    for layer in layers:
        grad_weights[layer] = await model.reduce_scatter(grad_weights[layer], layer)
        weights[layer], opt_states[layer] = model.update(
            layer, grad_weights[layer], weights[layer].shard(rank, n), opt_states[layer]
        )
        del grad_weights[layer]
        weights[layer] = await model.all_gather(weights[layer], layer)
        model.set_final_weight(layer, weights[layer])
    return model
