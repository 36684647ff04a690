"""Three dimensions: 1F1B pipelines x replicas x shards of ZeRO stage 3."""

from collections.abc import Sequence

from minitrain.lib import Model
from minitrain.search.schedules.pipeline import Messages, from_neighbours

from ._batch import add, microbatches_of, require_multiple, require_range, require_shares, stage_layers
from ._tied import ends_of, reduce_tied, tied_layers


async def pp_hsdp(
    model: Model,
    microbatch_size: int | None = None,
    pp: int = 2,
    shard_size: int = 2,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Train on a mesh of pp stages x replicas x shards, shards next to one another.

    num_layers must be a multiple of pp where layers are alike, world_size of pp x shard_size, and global_batch_size of
    world_size. Weights are gathered among the shards alone; each rank's shard of the gradient is summed over the
    replicas once a step.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; global_batch_size / world_size if None.
        pp: stages of the pipeline.
        shard_size: ranks that share one copy of a stage.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        overlap_messages: whether messages between stages are hidden behind compute; a rank waits for each if False.
    """
    model.recompute = recompute
    require_range("pp", pp, model.num_layers, "pp_hsdp")
    require_range("shard_size", shard_size, model.world_size, "pp_hsdp")
    require_multiple("world_size", model.world_size, "pp x shard_size", pp * shard_size, "pp_hsdp")
    require_shares(model, "world_size", model.world_size, "pp_hsdp")
    mesh = model.mesh(pp=pp, replica=model.world_size // (pp * shard_size), shard=shard_size)
    shards, replicas, stage_ranks = mesh.group("shard"), mesh.group("replica"), mesh.group("replica", "shard")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    stage, before, after = mesh.coord("pp"), mesh.peer("pp", -1), mesh.peer("pp", +1)
    messages = Messages(model, from_neighbours(model, before, after), overlap=overlap_messages)
    layers = stage_layers(model, stage, pp, microbatch_size, layers_per_stage, "pp", "pp_hsdp")
    size = microbatch_size or max(1, model.global_batch_size // model.world_size)
    batches = microbatches_of(model, stage_ranks.size, stage_ranks.index, size, "pp_hsdp", in_step=True)

    async def forward(i: int) -> None:
        if before is None:
            activations[layers[0], i] = model.get_input_activation(batches[i])
        else:
            activations[layers[0], i] = await messages.received(("F", i))
        for layer in layers:
            weights["full"] = await model.all_gather(weights[layer], layer, group=shards)
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights["full"])
            del weights["full"]
        if after is not None:
            await messages.send(after, activations.pop((layers.stop, i)))

    async def backward(i: int) -> None:
        if after is None:
            grad_activations[layers[-1]] = model.loss(activations.pop((layers.stop, i)))
        else:
            grad_activations[layers[-1]] = await messages.received(("B", i))
        for layer in reversed(layers):
            weights["full"] = await model.all_gather(weights[layer], layer, group=shards)
            grad_weights["new"], grad_activations[layer - 1] = model.backward(
                layer, activations[layer, i], grad_activations[layer], weights["full"]
            )
            del activations[layer, i], grad_activations[layer], weights["full"]
            if layer not in tied_layers(model):
                grad_weights["new"] = await model.reduce_scatter(grad_weights.pop("new"), layer, group=shards)
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        if before is not None:
            await messages.send(before, grad_activations[layers[0] - 1])
        del grad_activations[layers[0] - 1]

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, shards.index, shards.size)

    warmup = min(pp - 1 - stage, len(batches))
    order = [("F", i) for i in range(warmup)]
    for i in range(warmup, len(batches)):  # steady
        order += [("F", i), ("B", i - warmup)]
    order += [("B", i) for i in range(len(batches) - warmup, len(batches))]  # cooldown
    for kind, i in messages.ahead(order):
        await (forward if kind == "F" else backward)(i)
    await messages.all_sent()

    await reduce_tied(model, grad_weights, shards, ends_of(mesh))
    for layer in layers:
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=replicas)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        model.set_final_weight(layer, weights[layer])
    return model
