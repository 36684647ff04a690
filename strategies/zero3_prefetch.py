"""ZeRO stage 3 that hides its communication under compute, as FSDP does (Zhao et al. 2023, section 3.3)."""

from collections import deque
from collections.abc import Awaitable

from minitrain.lib import Model, Weight, WeightGrad

from ._batch import add, microbatches_of, require_range, require_shares
from ._tied import reduce_tied, tied_layers


async def zero3_prefetch(
    model: Model, microbatch_size: int | None = None, lookahead: int = 1, recompute: str = "none"
) -> Model:
    """Shard everything, with overlap; global_batch_size must be a multiple of world_size.

    While a layer is at work, the weights of the next `lookahead` layers are gathered, and the gradient of the layer
    before it is reduced. Each of them takes the memory of a whole weight.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; the rank's whole share if None.
        lookahead: layers gathered ahead, 1 to num_layers.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    require_shares(model, "world_size", model.world_size, "zero3_prefetch")
    require_range("lookahead", lookahead, model.num_layers, "zero3_prefetch")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    num_ranks, rank = model.world_size, model.rank
    batches = microbatches_of(model, num_ranks, rank, microbatch_size, "zero3_prefetch", in_step=True)
    to_gather = deque([*layers, *reversed(layers)] * len(batches))
    gathers: deque[Awaitable[Weight]] = deque()
    reductions: deque[Awaitable[WeightGrad]] = deque()

    def launch_gather() -> None:
        if to_gather:
            layer = to_gather.popleft()
            gathers.append(model.launch(model.all_gather(weights[layer], layer)))

    async def finish_reduction() -> None:
        grad_weights["shard"] = await reductions.popleft()
        layer = grad_weights["shard"].layer
        grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("shard"))

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)
    for _ in range(lookahead):
        launch_gather()

    for samples in batches:
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            weights["full"] = await gathers.popleft()
            launch_gather()
            activations[layer + 1] = model.forward(layer, activations[layer], weights["full"])
            del weights["full"]

        if reductions:  # the last one of the microbatch before
            await finish_reduction()
        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            weights["full"] = await gathers.popleft()
            launch_gather()
            grad_weights["full"], grad_activations[layer - 1] = model.backward(
                layer, activations[layer], grad_activations[layer], weights["full"]
            )
            del activations[layer], grad_activations[layer], weights["full"]
            if reductions:
                await finish_reduction()
            if layer in tied_layers(model):
                grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("full"))
            else:
                reductions.append(model.launch(model.reduce_scatter(grad_weights.pop("full"), layer)))
        del grad_activations[-1]
    if reductions:
        await finish_reduction()
    await reduce_tied(model, grad_weights)

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        model.set_final_weight(layer, weights[layer])
    return model
