"""The reference of exercise 06: A naive pipeline."""

from minitrain.lib import Model


async def naive_pipeline(model: Model) -> Model:
    """Pass the whole batch from stage to stage, and its gradient back."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, last = model.rank, model.world_size - 1
    per_stage = model.num_layers // model.world_size
    layers = range(rank * per_stage, (rank + 1) * per_stage)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    if rank == 0:
        activations[0] = model.get_input_activation(range(model.global_batch_size))
    else:
        activations[layers[0]] = await model.receive(rank - 1)
    for layer in layers:
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
    if rank < last:
        await model.send(rank + 1, activations.pop(layers.stop))
        grad_activations["out"] = await model.receive(rank + 1)
    else:
        grad_activations["out"] = model.loss(activations.pop(layers.stop))
    for layer in reversed(layers):
        grad_weights[layer], grad_activations["out"] = model.backward(
            layer, activations[layer], grad_activations["out"], weights[layer]
        )
        del activations[layer]
    if rank > 0:
        await model.send(rank - 1, grad_activations["out"])
    del grad_activations["out"]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
