"""The reference of exercise 18: Zero bubble: split the backward."""

from minitrain.lib import Model


async def zb_h1(model: Model, microbatch_size: int) -> Model:
    """Send each gradient on before those of weights are computed, which fill the bubble of the cooldown."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, p = model.rank, model.world_size
    first, last = rank == 0, rank == p - 1
    layers = range(rank * model.num_layers // p, (rank + 1) * model.num_layers // p)
    batch = model.global_batch_size
    batches = [range(i, min(i + microbatch_size, batch)) for i in range(0, batch, microbatch_size)]
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    async def forward(i: int) -> None:
        if first:
            activations[0, i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await model.receive(rank - 1)
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        if not last:
            await model.send(rank + 1, activations.pop((layers.stop, i)))

    async def backward_input(i: int) -> None:
        if last:
            grad_activations[layers[-1], i] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations[layers[-1], i] = await model.receive(rank + 1)
        for layer in reversed(layers):
            grad_activations[layer - 1, i] = model.backward_input(
                layer, activations[layer, i], grad_activations[layer, i], weights[layer]
            )
        if not first:
            await model.send(rank - 1, grad_activations[layers[0] - 1, i])
        del grad_activations[layers[0] - 1, i]

    def backward_weight(i: int) -> None:
        for layer in reversed(layers):
            new = model.backward_weight(layer, activations[layer, i], grad_activations[layer, i])
            grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new
            del activations[layer, i], grad_activations[layer, i], new

    m = len(batches)
    warmup, delay = min(p - 1 - rank, m), min(rank, m)
    for i in range(-warmup, m + delay):  # warmup, one by one, cooldown, and the weights that were put off
        if i + warmup < m:
            await forward(i + warmup)
        if 0 <= i < m:
            await backward_input(i)
        if i >= delay:
            backward_weight(i - delay)

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
