"""02: gradients are summed beside the backward pass."""


async def ddp(model):
    weights, opt_states, activations, act_grads, grads = model.storage()
    layers = [*range(model.num_layers)]
    share = model.global_batch_size // model.world_size
    for k in layers:
        weights[k], opt_states[k] = model.load_weights(k)
    activations[0] = model.get_input_activation(range(model.rank * share, (model.rank + 1) * share))
    for k in layers:
        activations[k + 1] = model.forward(k, activations[k], weights[k])
    act_grads["here"] = model.loss(activations.pop(model.num_layers))
    works = []
    for k in layers[::-1]:
        grad, act_grads["here"] = model.backward(k, activations[k], act_grads["here"], weights[k])
        del activations[k]
        works.append((k, model.launch(model.all_reduce(grad, k))))
        del grad
    for k, work in works:
        grads[k] = await work
        weights[k], opt_states[k] = model.update(k, grads.pop(k), weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    return model
