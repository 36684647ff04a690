"""The reference of exercise 09: Overlap the gather with compute."""

from typing import Any

from minitrain.lib import Model


async def zero3_prefetch(model: Model, microbatch_size: int | None = None) -> Model:
    """Gather the next layer's weight while this one computes, and reduce the gradient of the one before."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, rank, n = range(model.num_layers), model.rank, model.world_size
    share = model.global_batch_size // n
    mine, size = range(rank * share, (rank + 1) * share), microbatch_size or share
    batches = [mine[i : i + size] for i in range(0, share, size)]
    to_gather = [*layers, *reversed(layers)] * len(batches)
    gathers: list[Any] = []
    reductions: list[Any] = []
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, rank, n)

    def launch_gather() -> None:
        if to_gather:
            layer = to_gather.pop(0)
            gathers.append(model.launch(model.all_gather(weights[layer], layer)))

    async def end_reduction() -> None:
        while reductions:
            layer, work = reductions.pop()
            shard = await work
            grad_weights[layer] = grad_weights[layer] + shard if layer in grad_weights else shard

    launch_gather()
    for samples in batches:
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            weights["whole"] = await gathers.pop()
            launch_gather()
            activations[layer + 1] = model.forward(layer, activations[layer], weights["whole"])
            del weights["whole"]
        await end_reduction()
        grad_activations["out"] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            weights["whole"] = await gathers.pop()
            launch_gather()
            grad_weights["new"], grad_activations["out"] = model.backward(
                layer, activations[layer], grad_activations["out"], weights["whole"]
            )
            del activations[layer], weights["whole"]
            await end_reduction()
            reductions.append((layer, model.launch(model.reduce_scatter(grad_weights.pop("new"), layer))))
    await end_reduction()

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
