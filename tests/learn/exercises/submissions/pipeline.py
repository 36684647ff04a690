"""A pipeline whose order of passes is a list: all forward then all back, or one forward and one back."""

from minitrain.lib import Model


async def pipeline(model: Model, microbatch_size: int, one_by_one: bool) -> Model:
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, last = model.rank, model.world_size - 1
    per_stage = model.num_layers // model.world_size
    layers = range(rank * per_stage, (rank + 1) * per_stage)
    batch = model.global_batch_size
    batches = [range(i, min(i + microbatch_size, batch)) for i in range(0, batch, microbatch_size)]

    for k in layers:
        weights[k], opt_states[k] = model.load_weights(k)

    async def forward(i: int) -> None:
        if rank == 0:
            activations[0, i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await model.receive(rank - 1)
        for k in layers:
            activations[k + 1, i] = model.forward(k, activations[k, i], weights[k])
        if rank < last:
            await model.send(rank + 1, activations.pop((layers[-1] + 1, i)))

    async def backward(i: int) -> None:
        if rank == last:
            grad_activations["out"] = model.loss(activations.pop((layers[-1] + 1, i)))
        else:
            grad_activations["out"] = await model.receive(rank + 1)
        for k in reversed(layers):
            grad_weights["new"], grad_activations["out"] = model.backward(
                k, activations[k, i], grad_activations["out"], weights[k]
            )
            del activations[k, i]
            new = grad_weights.pop("new")
            grad_weights[k] = grad_weights[k] + new if k in grad_weights else new
            del new
        if rank > 0:
            await model.send(rank - 1, grad_activations["out"])
        del grad_activations["out"]

    m = len(batches)
    warmup = min(last - rank, m) if one_by_one else m
    for i in range(warmup):
        await forward(i)
    for i in range(warmup, m):
        await forward(i)
        await backward(i - warmup)
    for i in range(m - warmup, m):
        await backward(i)

    for k in layers:
        weights[k], opt_states[k] = model.update(k, grad_weights.pop(k), weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    return model


async def naive_pipeline(model: Model) -> Model:
    return await pipeline(model, model.global_batch_size, False)


async def gpipe(model: Model, microbatch_size: int) -> Model:
    return await pipeline(model, microbatch_size, False)


async def one_f_one_b(model: Model, microbatch_size: int) -> Model:
    return await pipeline(model, microbatch_size, True)
