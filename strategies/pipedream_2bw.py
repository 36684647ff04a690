"""PipeDream-2BW (Narayanan et al. 2021, figure 3): a pipeline that never drains, with two versions of the weights."""

from collections.abc import Awaitable, Sequence

import minitrain as mt
from minitrain.lib import Model, WeightGrad
from minitrain.search.schedules.pipeline import Messages, from_neighbours

from ._batch import add, microbatches, require_multiple, require_range, share, stage_layers
from ._tied import ends_of, tied_layers


@mt.delayed_steps("num_steps", delay=1, alike=True)
async def pipedream_2bw(
    model: Model,
    num_steps: int = 2,
    microbatch_size: int | None = None,
    pp: int | None = None,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Train pipelines of pp stages without a flush; num_layers must be a multiple of pp where layers are alike.

    W(t+1) = W(t) - rate x gradient at W(t-1). A step of the run is a round of num_steps, of which global_batch_size has
    the samples; the pipelines fill and drain once in it. A step has at least as many microbatches as stages.

    Args:
        model: the rank.
        num_steps: optimizer steps of a round.
        microbatch_size: samples a microbatch; if None, as many as make pp microbatches of a step.
        pp: stages of a pipeline; world_size if None. The others are replicas, which sum the gradients of each step.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        overlap_messages: whether messages between stages are hidden behind compute; a rank waits for each if False.
    """
    model.recompute = recompute
    require_range("pp", pp, model.world_size, "pipedream_2bw")
    pp = pp or model.world_size
    require_multiple("world_size", model.world_size, "pp", pp, "pipedream_2bw")
    mesh = model.mesh(pp=pp, dp=model.world_size // pp)
    replicas, stage, before, after = mesh.group("dp"), mesh.coord("pp"), mesh.peer("pp", -1), mesh.peer("pp", +1)
    layers = stage_layers(model, stage, pp, microbatch_size, layers_per_stage, "pp", "pipedream_2bw")
    batch = model.global_batch_size // num_steps
    if microbatch_size is None:
        require_multiple("the samples of a step", batch, "world_size", model.world_size, "pipedream_2bw")
        microbatch_size = batch // model.world_size
    require_range("microbatch_size", microbatch_size, batch, "pipedream_2bw")
    of_step = replicas.size * microbatch_size
    require_multiple("the samples of a step", batch, "replicas x microbatch_size", of_step, "pipedream_2bw")
    per_step = batch // of_step
    if per_step < pp:
        raise mt.StrategyError(
            f"a step of pipedream_2bw must have at least a microbatch for each of {pp} stages, so that two versions of "
            f"the weights suffice, got {per_step}; use microbatch_size={max(1, batch // model.world_size)}"
        )
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    messages = Messages(model, from_neighbours(model, before, after), overlap=overlap_messages)
    batches: list[range] = []
    for step in range(num_steps):
        own = share(model.global_batch_size, num_steps * replicas.size, step * replicas.size + replicas.index)
        batches += microbatches(own, microbatch_size, "pipedream_2bw")
    reductions: dict[int, Awaitable[WeightGrad]] = {}
    tied = [layer for layer in tied_layers(model) if layer in layers]
    sums: list[Awaitable[WeightGrad]] = []

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
            if (i + 1) % per_step == 0 and replicas.size > 1:
                reductions[layer] = model.launch(model.all_reduce(grad_weights.pop(layer), layer, group=replicas))
        if before is not None:
            await messages.send(before, grad_activations[layers[0] - 1])
        del grad_activations[layers[0] - 1]

    def take_step(layer: int, grad: WeightGrad, step: int) -> None:
        weights[layer, step + 1], opt_states[layer] = model.update(layer, grad, weights[layer, step], opt_states[layer])
        weights.pop((layer, step - 1), None)

    async def update(step: int) -> None:
        """Make the next version, once the step's last microbatch is back: nothing needs the last but one any more."""
        await update_tied()
        for layer in layers:
            if layer in reductions:
                grad_weights[layer] = await reductions.pop(layer)
            if layer not in tied:
                take_step(layer, grad_weights.pop(layer), step)
        for layer in tied:  # beside the next step, which needs the version before
            grad_weights["tied", layer] = grad_weights.pop(layer)
            use = model.table_gradient(layer, grad_weights["tied", layer])
            grad_weights["table"] = add(grad_weights.get("table"), use)
        if len(tied) == 1:
            sums.append(model.launch(model.all_reduce(grad_weights.pop("table"), tied[0], group=ends_of(mesh))))

    async def update_tied() -> None:
        """Make the next version of embedding or head, whose table's gradient is summed over both meanwhile."""
        if sums:
            grad_weights["table"] = await sums.pop()
        for layer in tied if "table" in grad_weights else ():
            grad = model.with_table(layer, grad_weights.pop(("tied", layer)), grad_weights["table"])
            take_step(layer, grad, max(step for of, step in weights if of == layer))
        grad_weights.pop("table", None)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    for layer in layers:
        weights[layer, 0] = model.local_copy(layer, weights.pop(layer))

    warmup = min(pp - 1 - stage, len(batches))
    order = [("F", i) for i in range(warmup)]
    for i in range(warmup, len(batches)):  # steady, from step to step
        order += [("F", i), ("B", i - warmup)]
    order += [("B", i) for i in range(len(batches) - warmup, len(batches))]
    for kind, i in messages.ahead(order):
        if any((layer, version(i)) not in weights for layer in tied):
            await update_tied()
        await (forward if kind == "F" else backward)(i)
        if kind == "B" and (i + 1) % per_step == 0:
            await update(i // per_step)
    await messages.all_sent()

    await update_tied()
    for layer in layers:
        weights.pop((layer, num_steps - 1))
        weights[layer] = weights.pop((layer, num_steps))
        model.set_final_weight(layer, weights[layer])
    return model
