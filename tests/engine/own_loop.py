"""A strategy with a loop of its own: ZeRO-3 that gathers the first layer of a step under the updates of the last."""

from collections.abc import Awaitable

import minitrain as mt
from minitrain.lib import Model, Weight


@mt.own_steps("num_steps", alike=True)
async def zero3_loop(model: Model, num_steps: int = 3, early: bool = True) -> Model:
    """Take steps whose first gather is launched by the one before, if it is to come early."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    gathers: dict[int, Awaitable[Weight]] = {}
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)
    for step in model.steps():
        samples = model.samples_of_rank(num_steps * model.world_size, step * model.world_size + model.rank)
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            gather = gathers.pop(layer) if layer in gathers else model.all_gather(weights[layer], layer)
            weights["full"] = await gather
            activations[layer + 1] = model.forward(layer, activations[layer], weights["full"])
            del weights["full"]
        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            weights["full"] = await model.all_gather(weights[layer], layer)
            grad_weights["full"], grad_activations[layer - 1] = model.backward(
                layer, activations[layer], grad_activations[layer], weights["full"]
            )
            del activations[layer], grad_activations[layer], weights["full"]
            grad_weights[layer] = await model.reduce_scatter(grad_weights.pop("full"), layer)
        del grad_activations[-1]
        for layer in layers:
            weights[layer], opt_states[layer] = model.update(
                layer, grad_weights.pop(layer), weights[layer], opt_states[layer]
            )
            if early and layer == 0 and step + 1 < num_steps:
                gathers[0] = model.launch(model.all_gather(weights[0], 0))
    for layer in layers:
        model.set_final_weight(layer, weights[layer])
    return model
