"""The reference of exercise 16: Experts; strategies/moe.py adds ZeRO-1, imbalance and capacity."""

from minitrain.lib import Model


async def experts(model: Model, microbatch_size: int, ep: int) -> Model:
    """Train data parallel, and divide the experts among ep neighbours."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    mesh = model.mesh(dp=model.world_size // ep, ep=ep)
    everyone, parts, replicas = mesh.group("dp", "ep"), mesh.group("ep"), mesh.group("dp")
    layers = range(model.num_layers)
    share = model.global_batch_size // model.world_size
    first = model.rank * share

    for layer in layers:
        if model.has_experts(layer):
            weights[layer], opt_states[layer] = model.load_router(layer)
            weights["experts", layer], opt_states["experts", layer] = model.load_experts(
                layer, part=parts.index, num_parts=ep
            )
        else:
            weights[layer], opt_states[layer] = model.load_weights(layer)

    def add(key: object) -> None:
        new = grad_weights.pop("new")
        grad_weights[key] = grad_weights[key] + new if key in grad_weights else new

    for start in range(first, first + share, microbatch_size):
        activations[0] = model.get_input_activation(range(start, min(start + microbatch_size, first + share)))
        for layer in layers:
            if model.has_experts(layer):
                tokens, made = ("tokens", layer), ("made", layer)
                activations[tokens] = model.route(layer, activations[layer], weights[layer], ep)
                activations[tokens] = await model.all_to_all(activations[tokens], layer, group=parts)
                activations[made] = model.forward(layer, activations[tokens], weights["experts", layer])
                activations[made] = await model.all_to_all(activations[made], layer, group=parts)
                activations[layer + 1] = model.combine(layer, activations[layer], activations[made], weights[layer])
            else:
                activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])

        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            inp, grad = activations[layer], grad_activations[layer]
            if model.has_experts(layer):
                tokens, made = ("tokens", layer), ("made", layer)
                grad_activations[made] = model.backward_combine(layer, inp, activations[made], grad)
                del activations[made]
                grad_activations[made] = await model.all_to_all(grad_activations[made], layer, group=parts)
                grad_weights["new"], grad_activations[tokens] = model.backward(
                    layer, activations[tokens], grad_activations[made], weights["experts", layer]
                )
                del activations[tokens], grad_activations[made]
                add(("experts", layer))
                grad_activations[tokens] = await model.all_to_all(grad_activations[tokens], layer, group=parts)
                grad_weights["new"], grad_activations[layer - 1] = model.backward_route(
                    layer, inp, grad, grad_activations[tokens], weights[layer]
                )
                del grad_activations[tokens]
            else:
                grad_weights["new"], grad_activations[layer - 1] = model.backward(layer, inp, grad, weights[layer])
            del inp, grad, activations[layer], grad_activations[layer]
            add(layer)
        del grad_activations[-1]

    for key in list(weights):
        layer, group = (key[1], replicas) if isinstance(key, tuple) else (key, everyone)
        grad_weights[key] = await model.all_reduce(grad_weights[key], layer, group=group)
        weights[key], opt_states[key] = model.update(layer, grad_weights[key], weights[key], opt_states[key])
        model.set_final_weight(layer, weights[key])
    return model
