"""ZeRO-3 that gathers the next layer's weight beside compute, and reduces the gradient before beside the backward."""

from minitrain.lib import Model


async def zero3_prefetch(model: Model, microbatch_size: int | None = None) -> Model:
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, n, layers = model.rank, model.world_size, range(model.num_layers)
    share = model.global_batch_size // n
    mine = range(rank * share, (rank + 1) * share)
    size = microbatch_size or share
    starts = range(0, share, size)

    for k in layers:
        weights[k], opt_states[k] = model.load_weights(k, rank, n)

    order = [k for _ in starts for k in [*layers, *reversed(layers)]]
    work = model.launch(model.all_gather(weights[order[0]], order[0]))
    place = 0

    async def next_weight() -> None:
        nonlocal work, place
        weights["full"] = await work
        place += 1
        if place < len(order):
            work = model.launch(model.all_gather(weights[order[place]], order[place]))

    async def keep_shard(k: int, reducing) -> None:
        shard = await reducing
        grad_weights[k] = grad_weights[k] + shard if k in grad_weights else shard

    for start in starts:
        activations[0] = model.get_input_activation(mine[start : start + size])
        for k in layers:
            await next_weight()
            activations[k + 1] = model.forward(k, activations[k], weights["full"])
            del weights["full"]
        grad_activations["out"] = model.loss(activations.pop(model.num_layers))
        before = None
        for k in reversed(layers):
            await next_weight()
            grad_weights["new"], grad_activations["out"] = model.backward(
                k, activations[k], grad_activations["out"], weights["full"]
            )
            del weights["full"], activations[k]
            if before is not None:
                await keep_shard(*before)
            before = k, model.launch(model.reduce_scatter(grad_weights.pop("new"), k))
        await keep_shard(*before)
        before = None
        del grad_activations["out"]

    for k in layers:
        weights[k], opt_states[k] = model.update(k, grad_weights.pop(k), weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    return model
