"""The reference of exercise 08: 1F1B."""

from minitrain.lib import Model


async def one_f_one_b(model: Model, microbatch_size: int) -> Model:
    """Alternate one forward and one backward, after a warmup that fills the stages behind."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, p = model.rank, model.world_size
    layers = range(rank * model.num_layers // p, (rank + 1) * model.num_layers // p)
    batch = model.global_batch_size
    batches = [range(i, min(i + microbatch_size, batch)) for i in range(0, batch, microbatch_size)]
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    async def forward(i: int) -> None:
        if rank == 0:
            activations[0, i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await model.receive(rank - 1)
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        if rank < p - 1:
            await model.send(rank + 1, activations.pop((layers.stop, i)))

    async def backward(i: int) -> None:
        if rank == p - 1:
            grad_activations[i] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations[i] = await model.receive(rank + 1)
        for layer in reversed(layers):
            new, grad_activations[i] = model.backward(layer, activations[layer, i], grad_activations[i], weights[layer])
            grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new
            del activations[layer, i], new
        if rank > 0:
            await model.send(rank - 1, grad_activations[i])
        del grad_activations[i]

    warmup = min(p - 1 - rank, len(batches))
    for i in range(len(batches) + warmup):  # warmup, one by one, cooldown
        if i < len(batches):
            await forward(i)
        if i >= warmup:
            await backward(i - warmup)

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
