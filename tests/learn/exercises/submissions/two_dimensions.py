"""Replicas of a 1F1B pipeline, whose stages sum their gradients over the replicas at the end."""

from minitrain.lib import Model


async def pp_dp(model: Model, microbatch_size: int, pp: int) -> Model:
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    dp = model.world_size // pp
    mesh = model.mesh(pp=pp, dp=dp)
    stage, replica = mesh.coord("pp"), mesh.coord("dp")
    before, after = mesh.peer("pp", -1), mesh.peer("pp", +1)
    layers = range(stage * model.num_layers // pp, (stage + 1) * model.num_layers // pp)
    share = model.global_batch_size // dp
    mine = range(replica * share, (replica + 1) * share)
    batches = [mine[i : i + microbatch_size] for i in range(0, share, microbatch_size)]

    for k in layers:
        weights[k], opt_states[k] = model.load_weights(k)

    async def forward(i: int) -> None:
        if before is None:
            activations[0, i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await model.receive(before)
        for k in layers:
            activations[k + 1, i] = model.forward(k, activations[k, i], weights[k])
        if after is not None:
            await model.send(after, activations.pop((layers[-1] + 1, i)))

    async def backward(i: int) -> None:
        if after is None:
            grad_activations["out"] = model.loss(activations.pop((layers[-1] + 1, i)))
        else:
            grad_activations["out"] = await model.receive(after)
        for k in reversed(layers):
            grad_weights["new"], grad_activations["out"] = model.backward(
                k, activations[k, i], grad_activations["out"], weights[k]
            )
            del activations[k, i]
            new = grad_weights.pop("new")
            grad_weights[k] = grad_weights[k] + new if k in grad_weights else new
            del new
        if before is not None:
            await model.send(before, grad_activations["out"])
        del grad_activations["out"]

    m = len(batches)
    warmup = min(pp - 1 - stage, m)
    for i in range(warmup):
        await forward(i)
    for i in range(warmup, m):
        await forward(i)
        await backward(i - warmup)
    for i in range(m - warmup, m):
        await backward(i)

    for k in layers:
        grad_weights[k] = await model.all_reduce(grad_weights[k], k, group=mesh.group("dp"))
        weights[k], opt_states[k] = model.update(k, grad_weights.pop(k), weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    return model
