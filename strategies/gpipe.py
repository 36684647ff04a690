"""GPipe (Huang et al. 2019): pipeline parallelism, all microbatches forward, then all backward."""

from collections.abc import Sequence

from minitrain.lib import Model

from ._batch import add, microbatches, require_multiple, stage_layers


async def gpipe(
    model: Model,
    microbatch_size: int | None = None,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
) -> Model:
    """Train a pipeline of world_size stages; layers that are alike go in equal shares.

    Args:
        model: the rank, which is the stage.
        microbatch_size: samples a microbatch; global_batch_size / world_size, a whole number, if None.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    stage, num_stages = model.rank, model.world_size
    layers = stage_layers(model, stage, num_stages, microbatch_size, layers_per_stage, "world_size", "gpipe")
    if microbatch_size is None:
        require_multiple("global_batch_size", model.global_batch_size, "world_size", num_stages, "gpipe")
        microbatch_size = model.global_batch_size // num_stages
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    batches = microbatches(range(model.global_batch_size), microbatch_size, "gpipe")

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for i, samples in enumerate(batches):
        if stage == 0:
            activations[layers[0], i] = model.get_input_activation(samples)
        else:
            activations[layers[0], i] = await model.receive(stage - 1)
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        if stage < num_stages - 1:
            await model.send(stage + 1, activations.pop((layers.stop, i)))

    for i in range(len(batches)):
        if stage == num_stages - 1:
            grad_activations[layers[-1]] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations[layers[-1]] = await model.receive(stage + 1)
        for layer in reversed(layers):
            grad_weights["new"], grad_activations[layer - 1] = model.backward(
                layer, activations[layer, i], grad_activations[layer], weights[layer]
            )
            del activations[layer, i], grad_activations[layer]
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        if stage > 0:
            await model.send(stage - 1, grad_activations[layers[0] - 1])
        del grad_activations[layers[0] - 1]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        model.set_final_weight(layer, weights[layer])
    return model
