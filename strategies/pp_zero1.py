"""1F1B pipelines with the optimizer state sharded among replicas: pipeline x ZeRO stage 1 (Megatron-LM)."""

from collections.abc import Sequence

from minitrain.lib import Model
from minitrain.search.schedules.pipeline import Messages, from_neighbours

from ._batch import add, microbatches_of, require_multiple, require_range, require_shares, stage_layers
from ._tied import ends_of, sum_tied


async def pp_zero1(
    model: Model,
    microbatch_size: int | None = None,
    pp: int = 2,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Train world_size / pp replicas of a 1F1B pipeline of pp stages, which share the optimizer state.

    num_layers must be a multiple of pp where layers are alike, world_size too, and global_batch_size of world_size.
    What replicas exchange does not grow with the number of microbatches, which makes this the usual partner of a
    pipeline.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; global_batch_size / world_size if None.
        pp: stages of the pipeline.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        overlap_messages: whether messages between stages are hidden behind compute; a rank waits for each if False.
    """
    model.recompute = recompute
    require_range("pp", pp, model.num_layers, "pp_zero1")
    require_multiple("world_size", model.world_size, "pp", pp, "pp_zero1")
    require_shares(model, "world_size", model.world_size, "pp_zero1")
    mesh = model.mesh(pp=pp, dp=model.world_size // pp)
    replicas = mesh.group("dp")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    stage, before, after = mesh.coord("pp"), mesh.peer("pp", -1), mesh.peer("pp", +1)
    messages = Messages(model, from_neighbours(model, before, after), overlap=overlap_messages)
    layers = stage_layers(model, stage, pp, microbatch_size, layers_per_stage, "pp", "pp_zero1")
    size = microbatch_size or max(1, model.global_batch_size // model.world_size)
    batches = microbatches_of(model, replicas.size, replicas.index, size, "pp_zero1")

    async def forward(i: int) -> None:
        if before is None:
            activations[layers[0], i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await messages.received(("F", i))
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        if after is not None:
            await messages.send(after, activations.pop((layers.stop, i)))

    async def backward(i: int) -> None:
        if after is None:
            grad_activations[layers[-1]] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations[layers[-1]] = await messages.received(("B", i))
        for layer in reversed(layers):
            grad_weights["new"], grad_activations[layer - 1] = model.backward(
                layer, activations[layer, i], grad_activations[layer], weights[layer]
            )
            del activations[layer, i], grad_activations[layer]
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        if before is not None:
            await messages.send(before, grad_activations[layers[0] - 1])
        del grad_activations[layers[0] - 1]

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
        opt_states[layer] = opt_states[layer].shard(replicas.index, replicas.size)

    warmup = min(pp - 1 - stage, len(batches))
    order = [("F", i) for i in range(warmup)]
    for i in range(warmup, len(batches)):  # steady
        order += [("F", i), ("B", i - warmup)]
    order += [("B", i) for i in range(len(batches) - warmup, len(batches))]  # cooldown
    for kind, i in messages.ahead(order):
        await (forward if kind == "F" else backward)(i)
    await messages.all_sent()

    await sum_tied(model, grad_weights, ends_of(mesh))
    for layer in layers:
        grad_weights[layer] = await model.reduce_scatter(grad_weights[layer], layer, group=replicas)
        weights[layer] = weights[layer].shard(replicas.index, replicas.size)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        weights[layer] = await model.all_gather(weights[layer], layer, group=replicas)
        model.set_final_weight(layer, weights[layer])
    return model
