"""The reference of exercise 01: Gradient accumulation."""

from minitrain.lib import Model


async def accumulate(model: Model, microbatch_size: int) -> Model:
    """Take one microbatch after the other forward and back, and update with the sum of their gradients."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, batch = range(model.num_layers), model.global_batch_size
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for start in range(0, batch, microbatch_size):
        activations[0] = model.get_input_activation(range(start, min(start + microbatch_size, batch)))
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
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
