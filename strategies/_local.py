"""What strategies share whose replicas take optimizer steps of their own between two meetings."""

from collections.abc import Awaitable, Coroutine
from typing import Any

from minitrain.lib import Model

from ._batch import add, microbatches, require_multiple, share
from ._tied import sum_tied


async def train_locally(
    model: Model,
    local_steps: int,
    replicas: int | None,
    microbatch_size: int | None,
    strategy: str,
    momentum: bool,
    compression: str = "none",
    fragments: int = 1,
    overlap: int = 0,
    mixing: float = 0.0,
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
        fragments: in how many parts the layers meet, in turn.
        overlap: how many steps before its meeting a part is sent.
        mixing: what share of its own weight a replica keeps.
    """
    replicas = replicas or model.world_size
    require_multiple("world_size", model.world_size, "replicas", replicas, strategy)
    shares = local_steps * model.world_size
    require_multiple("global_batch_size", model.global_batch_size, "local_steps x world_size", shares, strategy)
    mesh = model.mesh(replica=replicas, dp=model.world_size // replicas)
    across, within = mesh.group("replica"), mesh.group("dp")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    meets = [(layer * fragments // len(layers) + 1) * local_steps // fragments for layer in layers]
    goes_on = fragments > 1 or overlap > 0 or mixing > 0  # with its own weights, in the next round
    sent: dict[int, Awaitable[Any]] = {}

    def send(layer: int) -> Coroutine[Any, Any, Any]:
        own = weights["local", layer] if goes_on else weights.pop(("local", layer))
        own = own.shard(within.index, within.size) if within.size > 1 else own
        grad_weights["outer", layer] = model.outer_gradient(layer, weights[layer], own)
        if compression == "none":
            return model.all_reduce(grad_weights["outer", layer], layer, group=across)
        state = model.load_compression(layer, weights[layer])
        packed, opt_states["sent", layer] = model.compress(layer, grad_weights.pop(("outer", layer)), state)
        return (model.all_reduce if packed.how.sums else model.all_gather)(packed, layer, group=across)

    async def received(layer: int) -> Any:
        found = await (sent.pop(layer) if overlap else send(layer))
        if compression == "none":
            return found
        if found.how.sums:
            found, opt_states["sent", layer] = model.second_factor(layer, found, opt_states["sent", layer])
            found = await model.all_reduce(found, layer, group=across)
        found, opt_states["sent", layer] = model.decompress(layer, found, opt_states["sent", layer])
        return found

    async def meet(layer: int) -> None:
        grad_weights["outer", layer] = await received(layer)
        state = (opt_states["outer", layer],) if momentum else ()
        found = model.outer_update(layer, grad_weights.pop(("outer", layer)), weights[layer], *state)
        if momentum:
            weights[layer], opt_states["outer", layer] = found
        else:
            weights[layer] = found
        del found
        if within.size > 1:
            weights[layer] = await model.all_gather(weights[layer], layer, group=within)
        if goes_on:
            weights["local", layer] = model.mix(layer, weights[layer], weights["local", layer])

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

        for layer in layers if within.size > 1 else ():
            grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=within)
        await sum_tied(model, grad_weights)
        for layer in layers:
            weights["local", layer], opt_states[layer] = model.update(
                layer, grad_weights.pop(layer), weights["local", layer], opt_states[layer]
            )
        for layer in layers:
            if overlap and meets[layer] - overlap == step + 1:
                sent[layer] = model.launch(send(layer))
            if meets[layer] == step + 1:
                await meet(layer)

    for layer in layers:
        if goes_on:
            model.set_final_weight(layer, weights["local", layer])
        model.set_final_weight(layer, weights[layer])
    return model
