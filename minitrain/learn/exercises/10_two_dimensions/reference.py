"""The reference of exercise 10: Data x pipeline, in two dimensions."""

from minitrain.lib import Model


async def pp_dp(model: Model, microbatch_size: int, pp: int) -> Model:
    """Train replicas of a 1F1B pipeline, and sum the gradients of each stage over the replicas."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    mesh = model.mesh(pp=pp, dp=model.world_size // pp)
    replicas, stage = mesh.group("dp"), mesh.coord("pp")
    before, after = mesh.peer("pp", -1), mesh.peer("pp", +1)
    layers = range(stage * model.num_layers // pp, (stage + 1) * model.num_layers // pp)
    share = model.global_batch_size // replicas.size
    mine = range(replicas.index * share, (replicas.index + 1) * share)
    batches = [mine[i : i + microbatch_size] for i in range(0, share, microbatch_size)]
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    async def forward(i: int) -> None:
        if before is None:
            activations[0, i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await model.receive(before)
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        if after is not None:
            await model.send(after, activations.pop((layers.stop, i)))

    async def backward(i: int) -> None:
        if after is None:
            grad_activations[i] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations[i] = await model.receive(after)
        for layer in reversed(layers):
            new, grad_activations[i] = model.backward(layer, activations[layer, i], grad_activations[i], weights[layer])
            grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new
            del activations[layer, i], new
        if before is not None:
            await model.send(before, grad_activations[i])
        del grad_activations[i]

    warmup = min(pp - 1 - stage, len(batches))
    for i in range(len(batches) + warmup):  # warmup, one by one, cooldown
        if i < len(batches):
            await forward(i)
        if i >= warmup:
            await backward(i - warmup)

    for layer in layers:
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=replicas)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
