"""The reference of exercise 15: Ring attention; strategies/ring_attention.py divides heads too."""

from minitrain.lib import Model


async def ring_attention(model: Model, microbatch_size: int, cp: int) -> Model:
    """Train replicas whose ranks share the sequence of each sample."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    mesh = model.mesh(dp=model.world_size // cp, cp=cp)
    place, replica = mesh.coord("cp"), mesh.coord("dp")
    before, after = mesh.peer("cp", -1, wrap=True), mesh.peer("cp", +1, wrap=True)
    layers = range(model.num_layers)
    share = model.global_batch_size // mesh.group("dp").size

    async def attention(layer):
        x, weight = activations[layer], weights[layer]
        block = activations["own", layer] = model.keys_values(layer, x, weight)
        for step in range(cp):
            if step < cp - 1:
                sent = model.launch(model.send(after, block, tag=("block", layer, step)))
                coming = model.launch(model.receive(before, tag=("block", layer, step)))
            attended = model.attend(layer, x, block)
            activations["attended"] = activations.pop("attended") + attended if step else attended
            del attended
            if step < cp - 1:
                await sent
                block = activations["block"] = await coming
        del block, activations["block"]
        return model.project(layer, x, weight, activations.pop("attended"))

    async def attention_backward(layer):
        x, weight, block = activations[layer], weights[layer], activations["own", layer]
        grad_sent = grad_coming = None
        grad_activations["attended"] = model.backward_project(layer, x, grad_activations[layer], weight)
        for step in range(cp):
            if step < cp - 1:
                sent = model.launch(model.send(after, block, tag=("block", layer, step)))
                coming = model.launch(model.receive(before, tag=("block", layer, step)))
            queries, of_block = model.backward_attend(layer, x, grad_activations["attended"], block)
            grad_activations["queries"] = grad_activations.pop("queries") + queries if step else queries
            del queries
            if step:
                await grad_sent
                of_block = await grad_coming + of_block
            grad_sent = model.launch(model.send(after, of_block, tag=("grad", layer, step)))
            grad_coming = model.launch(model.receive(before, tag=("grad", layer, step)))
            del of_block
            if step < cp - 1:
                await sent
                block = activations["block"] = await coming
        await grad_sent
        own = await grad_coming
        del block, activations["block"], activations["own", layer], grad_activations["attended"]
        return model.backward_keys_values(layer, x, weight, grad_activations.pop("queries"), own)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for start in range(replica * share, (replica + 1) * share, microbatch_size):
        samples = range(start, min(start + microbatch_size, (replica + 1) * share))
        activations[0] = model.get_input_shard(samples, [place, 2 * cp - 1 - place], 2 * cp)
        for layer in layers:
            if model.has_attention(layer):
                activations[layer + 1] = await attention(layer)
            else:
                activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])

        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            if model.has_attention(layer):
                grad_weights["new"], grad_activations[layer - 1] = await attention_backward(layer)
            else:
                grad_weights["new"], grad_activations[layer - 1] = model.backward(
                    layer, activations[layer], grad_activations[layer], weights[layer]
                )
            del activations[layer], grad_activations[layer]
            new = grad_weights.pop("new")
            grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new
            del new
        del grad_activations[-1]

    for layer in layers:
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
