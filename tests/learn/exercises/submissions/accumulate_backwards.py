"""01: the last microbatch first, and a generator of microbatches."""


def cut(batch, size):
    while batch > 0:
        yield range(max(batch - size, 0), batch)
        batch -= size


async def accumulate(model, microbatch_size):
    weights, opt_states, activations, act_grads, grads = model.storage()
    for layer in range(model.num_layers):
        weights[layer], opt_states[layer] = model.load_weights(layer)
    for samples in cut(model.global_batch_size, microbatch_size):
        activations[0] = model.get_input_activation(samples)
        for layer in range(model.num_layers):
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        act_grads[0] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(range(model.num_layers)):
            new, act_grads[0] = model.backward(layer, activations[layer], act_grads[0], weights[layer])
            del activations[layer]
            grads[layer] = grads[layer] + new if layer in grads else new
            del new
    for layer in range(model.num_layers):
        weights[layer], opt_states[layer] = model.update(layer, grads.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
