"""Experts among ranks beside data parallelism (GShard, Lepikhin et al. 2020; Rajbhandari et al. 2022)."""

from collections.abc import Sequence

from minitrain.errors import StrategyError
from minitrain.lib import Model

from ._batch import add, microbatches, require_multiple, require_range, share
from ._experts import load_layers, without_travel


async def moe(
    model: Model,
    microbatch_size: int | None = None,
    ep: int = 1,
    zero: int = 0,
    imbalance: float | str | Sequence[float] = 1,
    capacity_factor: float | None = None,
    recompute: str = "none",
) -> Model:
    """Train data parallel, and divide the experts among neighbours; global_batch_size must be a multiple of world_size.

    Every rank holds the whole model but for the experts, of which it holds one of ep parts. Groups of ep ranks exchange
    tokens; world_size must be a multiple of ep, and so must the number of experts. Layers without experts are trained
    as `ddp` trains them.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; the rank's whole share if None.
        ep: parts that the experts are divided into.
        zero: 1 to shard optimizer states among the ranks that hold the same, 0 to keep them whole.
        imbalance: how many times the mean the busiest expert gets; or a number for each expert, to which its tokens are
            proportional; or a file with these on a line for each layer with experts, or on one for all.
        capacity_factor: how many times the mean an expert takes at most, further tokens being dropped; None for all.
        recompute: what backward computes again: "none", "selective", "full", or modules (see `Model.forward`). Of
            layers with experts only modules are that are less than all of it, so that no token travels again.
    """
    model.recompute, of_experts = recompute, without_travel(recompute)
    require_range("ep", ep, model.world_size, "moe")
    if zero not in (0, 1):
        raise StrategyError(f"zero must be 0 or 1 for moe, got {zero!r}")
    require_multiple("world_size", model.world_size, "ep", ep, "moe")
    require_multiple("global_batch_size", model.global_batch_size, "world_size", model.world_size, "moe")
    mesh = model.mesh(dp=model.world_size // ep, ep=ep)
    everyone, parts, replicas = mesh.group("dp", "ep"), mesh.group("ep"), mesh.group("dp")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    samples_here = share(model.global_batch_size, model.world_size, model.rank)
    held = load_layers(model, layers, everyone, parts, replicas, shard_states=zero == 1)

    for samples in microbatches(samples_here, microbatch_size, "moe"):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            if model.has_experts(layer):
                tokens, made = ("tokens", layer), ("made", layer)
                activations[tokens] = model.route(
                    layer,
                    activations[layer],
                    weights[layer],
                    ep,
                    imbalance=imbalance,
                    capacity_factor=capacity_factor,
                    recompute=of_experts,
                )
                activations[tokens] = await model.all_to_all(activations[tokens], layer, group=parts)
                activations[made] = model.forward(
                    layer, activations[tokens], weights["experts", layer], recompute=of_experts
                )
                activations[made] = await model.all_to_all(activations[made], layer, group=parts)
                activations[layer + 1] = model.combine(layer, activations[layer], activations[made], weights[layer])
            else:
                activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])

        grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
        for layer in reversed(layers):
            if model.has_experts(layer):
                tokens, made = ("tokens", layer), ("made", layer)
                grad_activations[made] = model.backward_combine(
                    layer, activations[layer], activations[made], grad_activations[layer]
                )
                del activations[made]
                grad_activations[made] = await model.all_to_all(grad_activations[made], layer, group=parts)
                grad_weights["new"], grad_activations[tokens] = model.backward(
                    layer, activations[tokens], grad_activations[made], weights["experts", layer]
                )
                del activations[tokens], grad_activations[made]
                grad_weights["experts", layer] = add(grad_weights.get(("experts", layer)), grad_weights.pop("new"))
                grad_activations[tokens] = await model.all_to_all(grad_activations[tokens], layer, group=parts)
                grad_weights["new"], grad_activations[layer - 1] = model.backward_route(
                    layer, activations[layer], grad_activations[layer], grad_activations[tokens], weights[layer]
                )
                del grad_activations[tokens]
            else:
                grad_weights["new"], grad_activations[layer - 1] = model.backward(
                    layer, activations[layer], grad_activations[layer], weights[layer]
                )
            del activations[layer], grad_activations[layer]
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        del grad_activations[-1]

    for key, (layer, group) in held.items():
        if zero:
            grad_weights[key] = await model.reduce_scatter(grad_weights[key], layer, group=group)
            weights[key] = weights[key].shard(group.index, group.size)
        else:
            grad_weights[key] = await model.all_reduce(grad_weights[key], layer, group=group)

    for key, (layer, group) in held.items():
        weights[key], opt_states[key] = model.update(layer, grad_weights[key], weights[key], opt_states[key])
        del grad_weights[key]
        if zero:
            weights[key] = await model.all_gather(weights[key], layer, group=group)
        model.set_final_weight(layer, weights[key])
    return model
