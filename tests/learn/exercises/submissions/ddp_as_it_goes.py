"""02: every rank takes every n-th sample, and updates each layer as soon as its gradient is summed."""


async def ddp(model):
    weights, opt_states, activations, act_grads, grads = model.storage()
    layers = range(model.num_layers)
    activations[0] = model.get_input_activation(range(model.rank, model.global_batch_size, model.world_size))
    for k in layers:
        weights[k], opt_states[k] = model.load_weights(k)
        activations[k + 1] = model.forward(k, activations[k], weights[k])
    act_grads[0] = model.loss(activations.pop(model.num_layers))
    for k in reversed(layers):
        grads[k], act_grads[0] = model.backward(k, activations[k], act_grads[0], weights[k])
        del activations[k]
        grads[k] = await model.all_reduce(grads[k], k)
        weights[k], opt_states[k] = model.update(k, grads.pop(k), weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    return model
