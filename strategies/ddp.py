"""Distributed data parallelism (Li et al. 2020): every rank holds the whole model and a share of the batch."""

from minitrain.lib import Model

from ._batch import add, microbatches_of, require_shares
from ._tied import sum_tied


async def ddp(model: Model, microbatch_size: int | None = None, recompute: str = "none") -> Model:
    """Train data parallel; global_batch_size must be a multiple of world_size.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; the rank's whole share if None.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    require_shares(model, "world_size", model.world_size, "ddp")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for samples in microbatches_of(model, model.world_size, model.rank, microbatch_size, "ddp"):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])

        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            grad_weights["new"], grad_activations[layer - 1] = model.backward(
                layer, activations[layer], grad_activations[layer], weights[layer]
            )
            del activations[layer], grad_activations[layer]
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        del grad_activations[-1]

    for layer in layers:
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)

    await sum_tied(model, grad_weights)
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        model.set_final_weight(layer, weights[layer])
    return model
