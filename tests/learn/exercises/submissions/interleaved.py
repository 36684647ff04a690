"""Interleaved 1F1B: each rank holds several chunks, and a microbatch goes round the ranks once for each."""

from minitrain.lib import Model


async def interleaved_1f1b(model: Model, microbatch_size: int, num_chunks: int) -> Model:
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, p, v = model.rank, model.world_size, num_chunks
    stages = p * v
    per_stage = model.num_layers // stages
    batch = model.global_batch_size
    batches = [range(i, min(i + microbatch_size, batch)) for i in range(0, batch, microbatch_size)]
    m = len(batches)

    def layers_of(stage: int) -> range:
        return range(stage * per_stage, (stage + 1) * per_stage)

    for chunk in range(v):
        for k in layers_of(chunk * p + rank):
            weights[k], opt_states[k] = model.load_weights(k)

    async def forward(stage: int, i: int) -> None:
        layers = layers_of(stage)
        if stage == 0:
            activations[0, i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await model.receive((rank - 1) % p, tag=("F", stage, i))
        for k in layers:
            activations[k + 1, i] = model.forward(k, activations[k, i], weights[k])
        if stage < stages - 1:
            await model.send((rank + 1) % p, activations.pop((layers[-1] + 1, i)), tag=("F", stage + 1, i))

    async def backward(stage: int, i: int) -> None:
        layers = layers_of(stage)
        if stage == stages - 1:
            grad_activations["out"] = model.loss(activations.pop((layers[-1] + 1, i)))
        else:
            grad_activations["out"] = await model.receive((rank + 1) % p, tag=("B", stage, i))
        for k in reversed(layers):
            grad_weights["new"], grad_activations["out"] = model.backward(
                k, activations[k, i], grad_activations["out"], weights[k]
            )
            del activations[k, i]
            new = grad_weights.pop("new")
            grad_weights[k] = grad_weights[k] + new if k in grad_weights else new
            del new
        if stage > 0:
            await model.send((rank - 1) % p, grad_activations["out"], tag=("B", stage - 1, i))
        del grad_activations["out"]

    async def kth_forward(k: int) -> None:
        await forward((k // p) % v * p + rank, k % p + p * (k // (p * v)))

    async def kth_backward(k: int) -> None:
        await backward((v - 1 - (k // p) % v) * p + rank, k % p + p * (k // (p * v)))

    total = m * v
    warmup = min(2 * (p - rank - 1) + (v - 1) * p, total)
    for k in range(warmup):
        await kth_forward(k)
    for k in range(warmup, total):
        await kth_forward(k)
        await kth_backward(k - warmup)
    for k in range(total - warmup, total):
        await kth_backward(k)

    for k, weight in [*weights.items()]:
        weights[k], opt_states[k] = model.update(k, grad_weights.pop(k), weight, opt_states[k])
        model.set_final_weight(k, weights[k])
    return model
