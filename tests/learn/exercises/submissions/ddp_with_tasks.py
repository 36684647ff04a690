"""02: one task a layer sums its gradient, all of them side by side."""

import asyncio


async def ddp(model):
    weights, opt_states, activations, act_grads, grads = model.storage()
    share = model.global_batch_size // model.world_size

    async def finish(layer):
        grads[layer] = await model.all_reduce(grads[layer], layer)
        weights[layer], opt_states[layer] = model.update(layer, grads[layer], weights[layer], opt_states[layer])
        del grads[layer]
        model.set_final_weight(layer, weights[layer])

    for layer in range(model.num_layers):
        weights[layer], opt_states[layer] = model.load_weights(layer)
    activations[0] = model.get_input_activation(range(model.rank * share, (model.rank + 1) * share))
    for layer in range(model.num_layers):
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
    act_grads["now"] = model.loss(activations.pop(model.num_layers))
    for layer in reversed(range(model.num_layers)):
        grads[layer], act_grads["now"] = model.backward(layer, activations[layer], act_grads["now"], weights[layer])
        del activations[layer]
    act_grads.clear()
    await asyncio.gather(*(finish(layer) for layer in range(model.num_layers)))
    return model
