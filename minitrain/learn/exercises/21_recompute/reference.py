"""The reference of exercise 21: Activation recompute: keep one input of a segment."""

from minitrain.lib import Model


async def recompute(model: Model, segment: int) -> Model:
    """Keep the input of each segment of layers, and compute those of its layers again when backward needs them."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    segments = [layers[first : first + segment] for first in range(0, len(layers), segment)]
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    activations[0] = model.get_input_activation(range(model.global_batch_size))
    for of_segment in segments:
        for layer in of_segment:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
            if layer != of_segment[0] and of_segment != segments[-1]:
                del activations[layer]
    grad_activations["out"] = model.loss(activations.pop(len(layers)))
    for of_segment in reversed(segments):
        if of_segment != segments[-1]:
            for layer in of_segment[:-1]:
                activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        for layer in reversed(of_segment):
            grad_weights[layer], grad_activations["out"] = model.backward(
                layer, activations[layer], grad_activations["out"], weights[layer]
            )
            del activations[layer]
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
