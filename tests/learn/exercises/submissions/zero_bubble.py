"""Exercise 18: the backward split, in one function."""

from minitrain.lib import Model


async def zb_h1(model: Model, microbatch_size: int) -> Model:
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    stage, num_stages = model.rank, model.world_size
    per_stage = model.num_layers // num_stages
    layers = range(stage * per_stage, (stage + 1) * per_stage)
    first, last = stage == 0, stage == num_stages - 1
    batch = model.global_batch_size
    batches = [range(i, min(i + microbatch_size, batch)) for i in range(0, batch, microbatch_size)]
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    async def forward(i):
        if first:
            activations[layers[0], i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await model.receive(stage - 1)
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        if not last:
            await model.send(stage + 1, activations.pop((layers.stop, i)))

    async def backward_input(i):
        if last:
            grad_activations[layers[-1], i] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations[layers[-1], i] = await model.receive(stage + 1)
        for layer in reversed(layers):
            grad_activations[layer - 1, i] = model.backward_input(
                layer, activations[layer, i], grad_activations[layer, i], weights[layer]
            )
        if not first:
            await model.send(stage - 1, grad_activations[layers[0] - 1, i])
        del grad_activations[layers[0] - 1, i]

    def backward_weight(i):
        for layer in reversed(layers):
            grad_weights["new"] = model.backward_weight(layer, activations[layer, i], grad_activations[layer, i])
            del activations[layer, i], grad_activations[layer, i]
            new = grad_weights.pop("new")
            grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new
            del new

    warmup, delay = min(num_stages - 1 - stage, len(batches)), min(stage, len(batches))
    for i in range(warmup):
        await forward(i)
    for i in range(len(batches)):
        if i + warmup < len(batches):
            await forward(i + warmup)
        await backward_input(i)
        if i >= delay:
            backward_weight(i - delay)
    for i in range(len(batches) - delay, len(batches)):
        backward_weight(i)
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        model.set_final_weight(layer, weights[layer])
    return model
