"""The reference of exercise 17: Buckets of gradients, summed beside the backward."""

from typing import Any

from minitrain.lib import Model


async def ddp_overlap(model: Model, microbatch_size: int, bucket_size: int) -> Model:
    """Sum gradients in buckets of some layers, beside the backward of the last microbatch."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, share = range(model.num_layers), model.global_batch_size // model.world_size
    mine = range(model.rank * share, (model.rank + 1) * share)
    batches = [mine[i : i + microbatch_size] for i in range(0, share, microbatch_size)]
    bucket: list[Any] = []
    launched: list[Any] = []
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for samples in batches:
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        grad_activations["out"] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            grad_weights["new"], grad_activations["out"] = model.backward(
                layer, activations[layer], grad_activations["out"], weights[layer]
            )
            del activations[layer]
            new = grad_weights.pop("new")
            grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new
            del new
            if samples == batches[-1]:
                bucket.append(grad_weights.pop(layer))
                if len(bucket) == bucket_size or layer == 0:
                    launched.append(model.launch(model.all_reduce(bucket, layer)))
                    bucket = []

    while launched:
        for grad in await launched.pop(0):
            grad_weights[grad.layer] = grad
            weights[grad.layer], opt_states[grad.layer] = model.update(
                grad.layer, grad, weights[grad.layer], opt_states[grad.layer]
            )
            del grad_weights[grad.layer]
            model.set_final_weight(grad.layer, weights[grad.layer])
        del grad
    return model
