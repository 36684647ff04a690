"""Hybrid sharding (Zhao et al. 2023, section 3.2.2): ZeRO stage 3 inside a node, replicas across nodes."""

from math import gcd

from minitrain.lib import Model

from ._batch import add, microbatches_of, require_multiple, require_range, require_shares
from ._tied import reduce_tied, tied_layers


async def hsdp(
    model: Model, microbatch_size: int | None = None, shard_size: int | None = None, recompute: str = "none"
) -> Model:
    """Shard in groups of consecutive ranks; global_batch_size must be a multiple of world_size.

    Whole weights never cross nodes: only shards of the gradients do, once a step.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; the rank's whole share if None.
        shard_size: ranks that share one copy of the model, a divisor of world_size; if None, the largest one
            that also divides a node of 8.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    require_range("shard_size", shard_size, model.world_size, "hsdp")
    shard_size = shard_size or gcd(model.world_size, 8)
    require_multiple("world_size", model.world_size, "shard_size", shard_size, "hsdp")
    require_shares(model, "world_size", model.world_size, "hsdp")
    mesh = model.mesh(replica=model.world_size // shard_size, shard=shard_size)
    shards, replicas = mesh.group("shard"), mesh.group("replica")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, shards.index, shards.size)

    for samples in microbatches_of(model, model.world_size, model.rank, microbatch_size, "hsdp", in_step=True):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            weights["full"] = await model.all_gather(weights[layer], layer, group=shards)
            activations[layer + 1] = model.forward(layer, activations[layer], weights["full"])
            del weights["full"]

        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            weights["full"] = await model.all_gather(weights[layer], layer, group=shards)
            grad_weights["new"], grad_activations[layer - 1] = model.backward(
                layer, activations[layer], grad_activations[layer], weights["full"]
            )
            del activations[layer], grad_activations[layer], weights["full"]
            if layer not in tied_layers(model):
                grad_weights["new"] = await model.reduce_scatter(grad_weights.pop("new"), layer, group=shards)
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        del grad_activations[-1]
    await reduce_tied(model, grad_weights, shards)

    for layer in layers:
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=replicas)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        model.set_final_weight(layer, weights[layer])
    return model
