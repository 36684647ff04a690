"""The reference of exercise 20: A tree against a ring."""

from typing import Any

from minitrain.lib import Model

LATENCY_S, BYTES_PER_S = 10e-6, 292.5e9


async def tree_or_ring(model: Model, grad_bytes: list[int]) -> Model:
    """Train data parallel; each layer's gradient is summed over a tree or round a ring, whichever is quicker."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    share = model.global_batch_size // model.world_size
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    activations[0] = model.get_input_activation(range(model.rank * share, (model.rank + 1) * share))
    for layer in layers:
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
    grad_activations["out"] = model.loss(activations.pop(model.num_layers))
    for layer in reversed(layers):
        grad_weights[layer], grad_activations["out"] = model.backward(
            layer, activations[layer], grad_activations["out"], weights[layer]
        )
        del activations[layer]
    del grad_activations["out"]
    n = model.world_size
    levels = (n - 1).bit_length()
    for layer in layers:
        over_tree = 2 * levels * (LATENCY_S + grad_bytes[layer] / BYTES_PER_S)
        round_ring = 2 * (n - 1) * (LATENCY_S + grad_bytes[layer] / n / BYTES_PER_S)
        if over_tree < round_ring:
            await sum_over_tree(model, grad_weights, layer)
        else:
            await sum_round_ring(model, grad_weights, layer)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


async def sum_over_tree(model: Model, grads: Any, layer: int, distance: int = 1) -> None:
    """Sum whole gradients pair by pair towards rank 0, level after level, and send the sum back the same way."""
    rank, n = model.rank, model.world_size
    if rank % (2 * distance):
        await model.send(rank - distance, grads.pop(layer))
        grads[layer] = await model.receive(rank - distance)
    elif distance < n:
        if rank + distance < n:
            grads[layer] = grads[layer] + await model.receive(rank + distance)
        await sum_over_tree(model, grads, layer, 2 * distance)
        if rank + distance < n:
            await model.send(rank + distance, grads[layer])


async def sum_round_ring(model: Model, grads: Any, layer: int) -> None:
    """Sum shards round the ring, and send the sums round once more."""
    rank, n = model.rank, model.world_size
    for i in range(n):
        grads[layer, i] = grads[layer].shard(i, n)
    del grads[layer]
    for step in range(n - 1):
        came = await exchange(model, grads.pop((layer, (rank - step) % n)))
        mine = (rank - step - 1) % n
        grads[layer, mine] = grads[layer, mine] + came
    going = grads[layer] = grads.pop((layer, (rank + 1) % n))
    for _ in range(n - 1):
        going = await exchange(model, going)
        grads[layer] = grads[layer].combine(going)


async def exchange(model: Model, shard: Any) -> Any:
    """Send a shard to the next rank while that of the rank before comes in."""
    sent = model.launch(model.send((model.rank + 1) % model.world_size, shard))
    came = await model.receive((model.rank - 1) % model.world_size)
    await sent
    return came
