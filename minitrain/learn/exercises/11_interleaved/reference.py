"""The reference of exercise 11: Interleaved 1F1B."""

from minitrain.lib import Model


async def interleaved_1f1b(model: Model, microbatch_size: int, num_chunks: int) -> Model:
    """Alternate one forward and one backward of the stages r, r + p, ... of rank r, p microbatches of each in turn."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, p = model.rank, model.world_size
    num_stages, before, after = p * num_chunks, (rank - 1) % p, (rank + 1) % p
    per_stage = model.num_layers // num_stages
    layers_of = [range(stage * per_stage, (stage + 1) * per_stage) for stage in range(num_stages)]
    batch = model.global_batch_size
    batches = [range(i, min(i + microbatch_size, batch)) for i in range(0, batch, microbatch_size)]
    for layers in layers_of[rank::p]:
        for layer in layers:
            weights[layer], opt_states[layer] = model.load_weights(layer)

    async def forward(stage: int, i: int) -> None:
        layers = layers_of[stage]
        if stage == 0:
            activations[0, i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await model.receive(before, tag=("F", stage, i))
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        if stage < num_stages - 1:
            await model.send(after, activations.pop((layers.stop, i)), tag=("F", stage + 1, i))

    async def backward(stage: int, i: int) -> None:
        layers = layers_of[stage]
        if stage == num_stages - 1:
            grad_activations[i] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations[i] = await model.receive(after, tag=("B", stage, i))
        for layer in reversed(layers):
            new, grad_activations[i] = model.backward(layer, activations[layer, i], grad_activations[i], weights[layer])
            grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new
            del activations[layer, i], new
        if stage > 0:
            await model.send(before, grad_activations[i], tag=("B", stage - 1, i))
        del grad_activations[i]

    total = len(batches) * num_chunks
    warmup = min(2 * (p - rank - 1) + (num_chunks - 1) * p, total)
    for step in range(total + warmup):
        if step < total:
            round_, within = divmod(step, num_stages)
            await forward(within // p * p + rank, round_ * p + within % p)
        if step >= warmup:
            round_, within = divmod(step - warmup, num_stages)
            await backward((num_chunks - 1 - within // p) * p + rank, round_ * p + within % p)

    for layer in list(weights):
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
