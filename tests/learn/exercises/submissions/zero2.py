"""ZeRO-2: each gradient is reduced as soon as it is there, and each rank keeps its shard."""

from minitrain.lib import Model


async def zero2(model: Model, microbatch_size: int | None = None) -> Model:
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, n, layers = model.rank, model.world_size, range(model.num_layers)
    share = model.global_batch_size // n
    mine = range(rank * share, (rank + 1) * share)
    size = microbatch_size or share

    for k in layers:
        weights[k], opt_states[k] = model.load_weights(k)
        opt_states[k] = opt_states[k].shard(rank, n)

    for start in range(0, share, size):
        activations[0] = model.get_input_activation(mine[start : start + size])
        for k in layers:
            activations[k + 1] = model.forward(k, activations[k], weights[k])
        grad_activations["out"] = model.loss(activations.pop(model.num_layers))
        for k in reversed(layers):
            grad_weights["new"], grad_activations["out"] = model.backward(
                k, activations[k], grad_activations["out"], weights[k]
            )
            del activations[k]
            shard = await model.reduce_scatter(grad_weights.pop("new"), k)
            grad_weights[k] = grad_weights[k] + shard if k in grad_weights else shard
            del shard
        del grad_activations["out"]

    for k in layers:
        new, opt_states[k] = model.update(k, grad_weights.pop(k), weights[k].shard(rank, n), opt_states[k])
        weights[k] = await model.all_gather(new, k)
        model.set_final_weight(k, weights[k])
    return model
