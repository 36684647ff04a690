"""PipeDream-2BW (Narayanan et al. 2021, figure 3): a pipeline that never drains, with two versions of the weights."""

from collections.abc import Sequence

import minitrain as mt
from minitrain.lib import Model
from minitrain.search.schedules.pipeline import Messages, from_neighbours

from ._batch import add, microbatches, require_multiple, stage_layers


@mt.delayed_steps("num_steps", delay=1)
async def pipedream_2bw(
    model: Model,
    num_steps: int = 2,
    microbatch_size: int | None = None,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Train a pipeline of world_size stages without a flush; num_layers must be a multiple where layers are alike.

    W(t+1) = W(t) - rate x gradient at W(t-1). A step of the run is a round of num_steps, of which global_batch_size has
    the samples; the pipeline fills and drains once in it. A step has at least as many microbatches as stages.

    Args:
        model: the rank, which is the stage.
        num_steps: optimizer steps of a round.
        microbatch_size: samples a microbatch; if None, as many as make world_size microbatches of a step.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        overlap_messages: whether messages between stages are hidden behind compute; a rank waits for each if False.
    """
    model.recompute = recompute
    stage, num_stages = model.rank, model.world_size
    before, after = stage - 1 if stage > 0 else None, stage + 1 if stage < num_stages - 1 else None
    layers = stage_layers(model, stage, num_stages, microbatch_size, layers_per_stage, "world_size", "pipedream_2bw")
    batch = model.global_batch_size // num_steps
    if microbatch_size is None:
        require_multiple("the samples of a step", batch, "world_size", num_stages, "pipedream_2bw")
        microbatch_size = batch // num_stages
    require_multiple("the samples of a step", batch, "microbatch_size", microbatch_size, "pipedream_2bw")
    per_step = batch // microbatch_size
    if per_step < num_stages:
        raise mt.StrategyError(
            f"a step of pipedream_2bw must have at least a microbatch for each of {num_stages} stages, so that two "
            f"versions of the weights suffice, got {per_step}; use microbatch_size={max(1, batch // num_stages)}"
        )
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    messages = Messages(model, from_neighbours(model, before, after), overlap=overlap_messages)
    batches = microbatches(range(model.global_batch_size), microbatch_size, "pipedream_2bw")

    def version(i: int) -> int:
        """Return which weights microbatch i goes through, forward and backward: those of the step before its own."""
        return max(0, i // per_step - 1)

    async def forward(i: int) -> None:
        if before is None:
            activations[layers[0], i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await messages.received(("F", i))
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer, version(i)])
        if after is not None:
            await messages.send(after, activations.pop((layers.stop, i)))

    async def backward(i: int) -> None:
        if after is None:
            grad_activations[layers[-1]] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations[layers[-1]] = await messages.received(("B", i))
        for layer in reversed(layers):
            grad_weights["new"], grad_activations[layer - 1] = model.backward(
                layer, activations[layer, i], grad_activations[layer], weights[layer, version(i)]
            )
            del activations[layer, i], grad_activations[layer]
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        if before is not None:
            await messages.send(before, grad_activations[layers[0] - 1])
        del grad_activations[layers[0] - 1]

    def update(step: int) -> None:
        """Make the next version, once the step's last microbatch is back: nothing needs the last but one any more."""
        for layer in layers:
            weights[layer, step + 1], opt_states[layer] = model.update(
                layer, grad_weights.pop(layer), weights[layer, step], opt_states[layer]
            )
            weights.pop((layer, step - 1), None)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    for layer in layers:
        weights[layer, 0] = model.local_copy(layer, weights.pop(layer))

    warmup = min(num_stages - 1 - stage, len(batches))
    order = [("F", i) for i in range(warmup)]
    for i in range(warmup, len(batches)):  # steady, from step to step
        order += [("F", i), ("B", i - warmup)]
    order += [("B", i) for i in range(len(batches) - warmup, len(batches))]
    for kind, i in messages.ahead(order):
        await (forward if kind == "F" else backward)(i)
        if kind == "B" and (i + 1) % per_step == 0:
            update(i // per_step)
    await messages.all_sent()

    for layer in layers:
        weights.pop((layer, num_steps - 1))
        weights[layer] = weights.pop((layer, num_steps))
        model.set_final_weight(layer, weights[layer])
    return model
