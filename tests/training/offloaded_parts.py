"""Strategies of tests whose divided tensors wait in the host's memory: parts of layers, and a sequence's keys."""

from __future__ import annotations

from typing import Any

from minitrain.lib import Model


async def _there(model: Any, store: Any, key: Any) -> None:
    """Move a tensor of a store to the host."""
    model.host[id(store), key] = await model.offload(store.pop(key))


async def _back(model: Any, store: Any, key: Any) -> None:
    """Move it back."""
    store[key] = await model.fetch(model.host[id(store), key])
    del model.host[id(store), key]


async def _updated(model: Any, grads: dict[int, Any]) -> Model:
    for layer, grad in grads.items():
        for store in (model.weights, model.opt_states):
            await _there(model, store, layer)
            await model.write(model.host[id(store), layer])
            await _back(model, store, layer)
        weight, state = model.update(layer, grad, model.weights[layer], model.opt_states[layer])
        model.weights[layer], model.opt_states[layer] = weight, state
        model.set_final_weight(layer, weight)
    return model  # type: ignore[no-any-return]  # of any model


async def offloaded_tensor_parallel(model: Any) -> Model:
    """Divide layers; inputs, weights and gradients wait in the host's memory."""
    parts, grads = model.world_size, {}
    for layer in range(model.num_layers):
        loaded = model.load_weights(layer, part=model.rank, num_parts=parts)
        model.weights[layer], model.opt_states[layer] = loaded
    samples = range(model.global_batch_size)
    model.activations[0] = model.get_input_activation(samples)
    for layer in range(model.num_layers):
        model.activations["new"] = model.forward(layer, model.activations[layer], model.weights[layer])
        await _there(model, model.activations, layer)
        await _there(model, model.weights, layer)
        model.activations[layer + 1] = await model.all_reduce(model.activations.pop("new"), layer + 1)
    model.grad_activations["one"] = model.loss(model.activations.pop(model.num_layers))
    for layer in reversed(range(model.num_layers)):
        await _back(model, model.activations, layer)
        await _back(model, model.weights, layer)
        model.grad_weights["new"], model.grad_activations["new"] = model.backward(
            layer, model.activations[layer], model.grad_activations["one"], model.weights[layer]
        )
        del model.activations[layer], model.grad_activations["one"]
        if layer > 0:
            await _there(model, model.grad_activations, "new")
            await _back(model, model.grad_activations, "new")
            model.grad_activations["one"] = await model.all_reduce(model.grad_activations.pop("new"), layer)
        await _there(model, model.grad_weights, "new")
        await _back(model, model.grad_weights, "new")
        grads[layer] = model.grad_weights.pop("new")
    return await _updated(model, grads)


async def offloaded_context(model: Any) -> Model:
    """Cut sequences; inputs, keys and values wait in the host's memory."""
    grads = {}
    for layer in range(model.num_layers):
        model.weights[layer], model.opt_states[layer] = model.load_weights(layer, part=0, num_parts=1)
    model.activations[0] = model.get_input_shard(range(model.global_batch_size), [model.rank], model.world_size)
    for layer in range(model.num_layers):
        if model.has_attention(layer):
            inp = model.activations[layer]
            model.activations["own", layer] = model.keys_values(layer, inp, model.weights[layer])
            model.activations["all"] = await model.all_gather(model.activations["own", layer], layer)
            attended = model.attend(layer, inp, model.activations["all"])
            del model.activations["all"]
            await _there(model, model.activations, ("own", layer))
            model.activations[layer + 1] = model.project(layer, inp, model.weights[layer], attended)
            del inp, attended
        else:
            model.activations[layer + 1] = model.forward(layer, model.activations[layer], model.weights[layer])
        await _there(model, model.activations, layer)
    model.grad_activations["one"] = model.loss(model.activations.pop(model.num_layers))
    for layer in reversed(range(model.num_layers)):
        await _back(model, model.activations, layer)
        inp, weight, grad = model.activations[layer], model.weights[layer], model.grad_activations["one"]
        if model.has_attention(layer):
            await _back(model, model.activations, ("own", layer))
            model.activations["all"] = await model.all_gather(model.activations.pop(("own", layer)), layer)
            of_attended = model.backward_project(layer, inp, grad, weight)
            of_queries, of_keys = model.backward_attend(layer, inp, of_attended, model.activations["all"])
            del model.activations["all"]
            of_keys = await model.reduce_scatter(of_keys, layer)
            grads[layer], new = model.backward_keys_values(layer, inp, weight, of_queries, of_keys)
        else:
            grads[layer], new = model.backward(layer, inp, grad, weight)
        model.grad_activations["one"] = new
        del model.activations[layer], inp
    for layer, grad in grads.items():
        grads[layer] = await model.all_reduce(grad, layer)
    return await _updated(model, grads)
