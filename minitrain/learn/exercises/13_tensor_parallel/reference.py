"""The reference of exercise 13: Tensor parallelism; strategies/megatron.py hides part of its sums."""

from minitrain.lib import Model


async def tensor_parallel(model: Model, microbatch_size: int, tp: int) -> Model:
    """Train replicas whose layers are divided into tp parts."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    mesh = model.mesh(dp=model.world_size // tp, tp=tp)
    parts, replicas = mesh.group("tp"), mesh.group("dp")
    layers = range(model.num_layers)
    share = model.global_batch_size // replicas.size
    first = replicas.index * share

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, part=parts.index, num_parts=tp)

    for start in range(first, first + share, microbatch_size):
        activations[0] = model.get_input_activation(range(start, min(start + microbatch_size, first + share)))
        for layer in layers:
            activations[layer + 1] = await model.all_reduce(
                model.forward(layer, activations[layer], weights[layer]), layer + 1, group=parts
            )

        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            grad_weights["new"], grad_activations["new"] = model.backward(
                layer, activations[layer], grad_activations[layer], weights[layer]
            )
            del activations[layer], grad_activations[layer]
            new = grad_weights.pop("new")
            grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new
            del new
            if layer > 0:
                grad_activations[layer - 1] = await model.all_reduce(grad_activations.pop("new"), layer, group=parts)
        del grad_activations["new"]

    for layer in layers:
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=replicas)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
