"""One device, gradient accumulation: the step that every other strategy must reproduce."""

from minitrain.errors import StrategyError
from minitrain.lib import Model

from ._batch import add, microbatches
from ._tied import sum_tied


async def single(model: Model, microbatch_size: int | None = None, recompute: str = "none") -> Model:
    """Train on one device, microbatch by microbatch; needs world_size 1.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; the whole batch if None.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    if model.world_size != 1:
        raise StrategyError(f"world_size ({model.world_size}) must be 1 for single; use 1")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for samples in microbatches(range(model.global_batch_size), microbatch_size, "single"):
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

    await sum_tied(model, grad_weights)
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        model.set_final_weight(layer, weights[layer])
    return model
