"""The reference of exercise 02: Data parallelism."""

from minitrain.lib import Model


async def ddp(model: Model) -> Model:
    """Train on the rank's own part of the batch, and update with the sum of all ranks' gradients."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, share = range(model.num_layers), model.global_batch_size // model.world_size
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    activations[0] = model.get_input_activation(range(model.rank * share, (model.rank + 1) * share))
    for layer in layers:
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
    grad_activations["out"] = model.loss(activations.pop(len(layers)))
    for layer in reversed(layers):
        grad_weights[layer], grad_activations["out"] = model.backward(
            layer, activations[layer], grad_activations["out"], weights[layer]
        )
        del activations[layer]

    for layer in layers:
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
