"""The reference of exercise 00: One device."""

from minitrain.lib import Model


async def one_device(model: Model) -> Model:
    """Train on the whole batch at once."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    activations[0] = model.get_input_activation(range(model.global_batch_size))
    for layer in layers:
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
    grad_activations["out"] = model.loss(activations.pop(len(layers)))
    for layer in reversed(layers):
        grad_weights[layer], grad_activations["out"] = model.backward(
            layer, activations[layer], grad_activations["out"], weights[layer]
        )
        del activations[layer]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
