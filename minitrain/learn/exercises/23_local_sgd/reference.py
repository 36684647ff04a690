"""The reference of exercise 23: Local SGD: train alone, and meet seldom."""

import minitrain as mt
from minitrain.lib import Model


@mt.local_steps("local_steps")
async def local_sgd(model: Model, local_steps: int) -> Model:
    """Take local steps on every rank, and then the mean of all ranks' weights."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    share = model.global_batch_size // (local_steps * model.world_size)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
        weights["local", layer] = model.local_copy(layer, weights[layer])

    for step in range(local_steps):
        first = (step * model.world_size + model.rank) * share
        activations[0] = model.get_input_activation(range(first, first + share))
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights["local", layer])
        grad_activations["out"] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            grad_weights[layer], grad_activations["out"] = model.backward(
                layer, activations[layer], grad_activations["out"], weights["local", layer]
            )
            del activations[layer]
        del grad_activations["out"]
        for layer in layers:
            weights["local", layer], opt_states[layer] = model.update(
                layer, grad_weights.pop(layer), weights["local", layer], opt_states[layer]
            )

    for layer in layers:
        grad_weights[layer] = model.outer_gradient(layer, weights[layer], weights["local", layer])
        del weights["local", layer]
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)
        weights[layer] = model.outer_update(layer, grad_weights.pop(layer), weights[layer])
        model.set_final_weight(layer, weights[layer])
    return model
