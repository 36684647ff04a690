"""The reference of exercise 19: An all_reduce of sends, round a ring."""

from typing import Any

from minitrain.lib import Model


async def ring_ddp(model: Model) -> Model:
    """Train data parallel, with gradients summed by messages between neighbours alone."""
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
    for layer in layers:
        await ring_all_reduce(model, grad_weights, layer)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


async def ring_all_reduce(model: Model, grads: Any, layer: int) -> None:
    """Replace a rank's gradient of a layer by the sum over all ranks (Patarasuk and Yuan 2009)."""
    rank, n = model.rank, model.world_size
    for i in range(n):
        grads[layer, i] = grads[layer].shard(i, n)
    del grads[layer]
    for step in range(n - 1):  # reduce: shard i ends, summed, on rank i - 1
        came = await exchange(model, grads.pop((layer, (rank - step) % n)))
        mine = (rank - step - 1) % n
        grads[layer, mine] = grads[layer, mine] + came
    grads[layer] = grads.pop((layer, (rank + 1) % n))
    going = grads[layer]
    for _ in range(n - 1):  # gather: sums go round once
        going = await exchange(model, going)
        grads[layer] = grads[layer].combine(going)


async def exchange(model: Model, shard: Any) -> Any:
    """Send a shard to the next rank while that of the rank before comes in."""
    sent = model.launch(model.send((model.rank + 1) % model.world_size, shard))
    came = await model.receive((model.rank - 1) % model.world_size)
    await sent
    return came
