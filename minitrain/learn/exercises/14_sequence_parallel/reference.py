"""The reference of exercise 14: Sequence parallelism; strategies/megatron.py hides part of its sums."""

from collections.abc import MutableMapping
from typing import Any

from minitrain.lib import Model


async def sequence_parallel(model: Model, microbatch_size: int, tp: int) -> Model:
    """Train replicas whose layers are divided into tp parts, with shards of the sequence between them."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    mesh = model.mesh(dp=model.world_size // tp, tp=tp)
    parts, replicas = mesh.group("tp"), mesh.group("dp")
    layers = range(model.num_layers)
    share = model.global_batch_size // replicas.size
    first = replicas.index * share

    async def gather(store: MutableMapping[Any, Any], layer: int, border: int) -> Any:
        """Return the key of a whole tensor; at the model's ends it is whole already."""
        if border in (0, len(layers)):
            return layer
        store["whole"] = await model.all_gather(store[layer], border, group=parts)
        return "whole"

    async def scatter(partial: Any, border: int) -> Any:
        """Return this rank's shard of the sum over the parts, and the whole sum at the model's end."""
        if border == len(layers):
            return await model.all_reduce(partial, border, group=parts)
        return await model.reduce_scatter(partial, border, group=parts)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, part=parts.index, num_parts=tp)

    for start in range(first, first + share, microbatch_size):
        activations[0] = model.get_input_activation(range(start, min(start + microbatch_size, first + share)))
        for layer in layers:
            x = await gather(activations, layer, layer)
            activations[layer + 1] = await scatter(model.forward(layer, activations[x], weights[layer]), layer + 1)
            activations.pop("whole", None)

        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            x = await gather(activations, layer, layer)
            g = await gather(grad_activations, layer, layer + 1)
            new, grad_activations["in"] = model.backward(layer, activations[x], grad_activations[g], weights[layer])
            grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new
            for store in (activations, grad_activations):
                store.pop("whole", None)
                del store[layer]
            del new
            if layer > 0:
                grad_activations[layer - 1] = await scatter(grad_activations.pop("in"), layer)
        del grad_activations["in"]

    for layer in layers:
        if layer > 0:
            grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=parts)
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=replicas)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model
