"""The reference of exercise 22: ZeRO-Offload: optimizer states in the memory of the host."""

from typing import Any

from minitrain.lib import Model


async def zero_offload(model: Model) -> Model:
    """Let each optimizer state, a shard a rank, visit the device for its update."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, n = model.rank, model.world_size
    share = model.global_batch_size // n
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
        opt_states[layer] = opt_states[layer].shard(rank, n)
        model.host[layer] = await model.offload(opt_states[layer])
        del opt_states[layer]

    activations[0] = model.get_input_activation(range(rank * share, (rank + 1) * share))
    for layer in layers:
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
    grad_activations["out"] = model.loss(activations.pop(len(layers)))
    leaving: list[tuple[int, Any]] = []
    for layer in reversed(layers):
        coming = model.launch(model.fetch(model.host[layer]))
        grad_weights[layer], grad_activations["out"] = model.backward(
            layer, activations[layer], grad_activations["out"], weights[layer]
        )
        del activations[layer]
        grad_weights[layer] = await model.reduce_scatter(grad_weights[layer], layer)
        weights[layer] = weights[layer].shard(rank, n)
        opt_states[layer] = await coming
        weights[layer], opt_states[layer] = model.update(
            layer, grad_weights.pop(layer), weights[layer], opt_states[layer]
        )
        while leaving:
            before, work = leaving.pop()
            model.host[before] = await work
            del opt_states[before]
        leaving.append((layer, model.launch(model.offload(opt_states[layer]))))
        weights[layer] = await model.all_gather(weights[layer], layer)
        model.set_final_weight(layer, weights[layer])
    for before, work in leaving:
        model.host[before] = await work
        del opt_states[before]
    return model
