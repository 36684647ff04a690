"""ZB-H1 (Qi et al. 2023, section 2.1): 1F1B with the backward split, weight gradients filling the cooldown."""

from collections.abc import Sequence

from minitrain.lib import Model
from minitrain.search.schedules.pipeline import Messages, from_neighbours

from ._batch import add, microbatches, require_multiple, stage_layers
from ._tied import sum_tied


async def zb_h1(
    model: Model,
    microbatch_size: int | None = None,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Train a pipeline of world_size stages; num_layers must be a multiple of it where all layers are alike.

    The stage before waits for gradients of activations alone. Each weight gradient is taken `stage` backwards later,
    so that every stage holds activations of up to num_stages microbatches, and the last ones fill the bubble.

    Args:
        model: the rank, which is the stage.
        microbatch_size: samples a microbatch; global_batch_size / world_size, a whole number, if None.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        overlap_messages: whether messages between stages are hidden behind compute; a rank waits for each if False.
    """
    model.recompute = recompute
    stage, num_stages = model.rank, model.world_size
    before, after = stage - 1 if stage > 0 else None, stage + 1 if stage < num_stages - 1 else None
    layers = stage_layers(model, stage, num_stages, microbatch_size, layers_per_stage, "world_size", "zb_h1")
    if microbatch_size is None:
        require_multiple("global_batch_size", model.global_batch_size, "world_size", num_stages, "zb_h1")
        microbatch_size = model.global_batch_size // num_stages
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    messages = Messages(model, from_neighbours(model, before, after), overlap=overlap_messages)
    batches = microbatches(range(model.global_batch_size), microbatch_size, "zb_h1")

    async def forward(i: int) -> None:
        if before is None:
            activations[layers[0], i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await messages.received(("F", i))
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        if after is not None:
            await messages.send(after, activations.pop((layers.stop, i)))

    async def backward_input(i: int) -> None:
        if after is None:
            grad_activations[layers[-1], i] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations[layers[-1], i] = await messages.received(("I", i))
        for layer in reversed(layers):
            grad_activations[layer - 1, i] = model.backward_input(
                layer, activations[layer, i], grad_activations[layer, i], weights[layer]
            )
        if before is not None:
            await messages.send(before, grad_activations[layers[0] - 1, i])
        del grad_activations[layers[0] - 1, i]

    async def backward_weight(i: int) -> None:
        for layer in reversed(layers):
            grad_weights["new"] = model.backward_weight(layer, activations[layer, i], grad_activations[layer, i])
            del activations[layer, i], grad_activations[layer, i]
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    warmup, delay = min(num_stages - 1 - stage, len(batches)), min(stage, len(batches))
    order = [("F", i) for i in range(warmup)]
    for i in range(len(batches)):  # steady, then cooldown
        if i + warmup < len(batches):
            order.append(("F", i + warmup))
        order.append(("I", i))
        if i >= delay:
            order.append(("W", i - delay))
    order += [("W", i) for i in range(len(batches) - delay, len(batches))]
    run = {"F": forward, "I": backward_input, "W": backward_weight}
    for kind, i in messages.ahead(order):
        await run[kind](i)
    await messages.all_sent()

    await sum_tied(model, grad_weights, ends=(0, num_stages - 1))
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        model.set_final_weight(layer, weights[layer])
    return model
