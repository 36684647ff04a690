"""What strategies share whose replicas take optimizer steps of their own between two meetings."""

from minitrain.engine.transport.groups import Group
from minitrain.lib import Model, Weight, WeightGrad

from ._batch import add, microbatches, require_multiple, share


async def train_locally(
    model: Model,
    local_steps: int,
    replicas: int | None,
    microbatch_size: int | None,
    strategy: str,
    momentum: bool,
    compression: str = "none",
) -> Model:
    """Take local steps, and take the common weight on by their mean.

    Args:
        model: the rank.
        local_steps: how many steps each replica takes alone.
        replicas: how many there are; each rank is one if None.
        microbatch_size: samples a microbatch; the rank's whole share of a local step if None.
        strategy: name of the strategy, for errors.
        momentum: whether the outer optimizer has a state.
        compression: how outer gradients are sent; "none" sends them exactly.
    """
    replicas = replicas or model.world_size
    require_multiple("world_size", model.world_size, "replicas", replicas, strategy)
    shares = local_steps * model.world_size
    require_multiple("global_batch_size", model.global_batch_size, "local_steps x world_size", shares, strategy)
    mesh = model.mesh(replica=replicas, dp=model.world_size // replicas)
    across, within = mesh.group("replica"), mesh.group("dp")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    for layer in layers:
        weights["local", layer] = model.local_copy(layer, weights[layer])
        if within.size > 1:  # the ranks of a replica share what the replicas meet with
            weights[layer] = weights[layer].shard(within.index, within.size)
        if momentum:
            opt_states["outer", layer] = model.load_outer_state(layer, weights[layer])

    for step in range(local_steps):
        own_share = share(model.global_batch_size, shares, step * model.world_size + model.rank)
        for samples in microbatches(own_share, microbatch_size, strategy):
            activations[0] = model.get_input_activation(samples)
            for layer in layers:
                activations[layer + 1] = model.forward(layer, activations[layer], weights["local", layer])

            grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
            for layer in reversed(layers):
                grad_weights["new"], grad_activations[layer - 1] = model.backward(
                    layer, activations[layer], grad_activations[layer], weights["local", layer]
                )
                del activations[layer], grad_activations[layer]
                grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
            del grad_activations[-1]

        for layer in layers:
            if within.size > 1:
                grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=within)
            weights["local", layer], opt_states[layer] = model.update(
                layer, grad_weights.pop(layer), weights["local", layer], opt_states[layer]
            )

    for layer in layers:
        own = weights.pop(("local", layer))
        own = own.shard(within.index, within.size) if within.size > 1 else own
        grad_weights[layer] = model.outer_gradient(layer, weights[layer], own)
        del own
        if compression == "none":
            grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=across)
        else:
            grad_weights[layer] = await _compressed(model, layer, grad_weights.pop(layer), weights[layer], across)
        if momentum:
            weights[layer], opt_states["outer", layer] = model.outer_update(
                layer, grad_weights.pop(layer), weights[layer], opt_states["outer", layer]
            )
        else:
            weights[layer] = model.outer_update(layer, grad_weights.pop(layer), weights[layer])
        if within.size > 1:
            weights[layer] = await model.all_gather(weights[layer], layer, group=within)
        model.set_final_weight(layer, weights[layer])
    return model


async def _compressed(model: Model, layer: int, grad: WeightGrad, weight: Weight, across: Group) -> WeightGrad:
    """Return the outer gradient that the messages of all replicas stand for."""
    state = model.load_compression(layer, weight)
    packed, state = model.compress(layer, grad, state)
    del grad
    if packed.how.sums:
        packed = await model.all_reduce(packed, layer, group=across)
        packed, state = model.second_factor(layer, packed, state)
        packed = await model.all_reduce(packed, layer, group=across)
    else:
        packed = await model.all_gather(packed, layer, group=across)
    found, model.opt_states["sent", layer] = model.decompress(layer, packed, state)
    return found
