"""The reference of exercise 07: GPipe."""

from minitrain.lib import Model


async def gpipe(model: Model, microbatch_size: int) -> Model:
    """Take all microbatches forward, then all back."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, p = model.rank, model.world_size
    layers = range(rank * model.num_layers // p, (rank + 1) * model.num_layers // p)
    batch = model.global_batch_size
    batches = [range(i, min(i + microbatch_size, batch)) for i in range(0, batch, microbatch_size)]
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for i, samples in enumerate(batches):
        if rank == 0:
            activations[0, i] = model.get_input_activation(samples)
        else:
            activations[layers[0], i] = await model.receive(rank - 1)
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        if rank < p - 1:
            await model.send(rank + 1, activations.pop((layers.stop, i)))

    for i in range(len(batches)):
        if rank == p - 1:
            grad_activations["out"] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations["out"] = await model.receive(rank + 1)
        for layer in reversed(layers):
            new, grad_activations["out"] = model.backward(
                layer, activations[layer, i], grad_activations["out"], weights[layer]
            )
            del activations[layer, i]
            grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new
            del new
        if rank > 0:
            await model.send(rank - 1, grad_activations["out"])
        del grad_activations["out"]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
