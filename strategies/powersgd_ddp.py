"""Data parallelism with compressed gradients (PowerSGD, Vogels et al. 2019, algorithms 1 and 2)."""

from collections.abc import Awaitable
from typing import Any

import minitrain as mt
from minitrain.lib import Model

from ._batch import add, microbatches, require_multiple, share


@mt.approximate_steps("num_steps", "compression", alike=True)
async def powersgd_ddp(
    model: Model,
    compression: str = "powersgd:4",  # noqa: ARG001  (messages know it, by the declaration)
    num_steps: int = 2,
    microbatch_size: int | None = None,
    recompute: str = "none",
) -> Model:
    """Send gradients as factors; global_batch_size must be a multiple of num_steps x world_size.

    A step of the run is a round of num_steps, of which global_batch_size has the samples: what a step's messages lack
    is added to the gradients of the next, and its factors begin where the last ones ended. Messages go beside the
    backward of the layers before.

    Args:
        model: the rank.
        compression: "powersgd:4" (rank), "topk:0.01" (share), "int8", "fp8" or "int4" (by block, "int4:32+feedback").
        num_steps: optimizer steps of a round.
        microbatch_size: samples a microbatch; the rank's whole share of a step if None.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    shares = num_steps * model.world_size
    require_multiple("global_batch_size", model.global_batch_size, "num_steps x world_size", shares, "powersgd_ddp")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    sent: dict[int, Awaitable[Any]] = {}

    def launch(layer: int, packed: Any) -> None:
        meet = model.all_reduce if packed.how.sums else model.all_gather
        sent[layer] = model.launch(meet(packed, layer))

    async def second_factor(layer: int) -> None:
        state: Any = opt_states.get(("sent", layer))
        if layer in sent and state.how.phases > 1:
            packed, opt_states["sent", layer] = model.second_factor(
                layer, await sent.pop(layer), opt_states["sent", layer]
            )
            launch(layer, packed)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
        opt_states["sent", layer] = model.load_compression(layer, weights[layer])

    for step in model.steps():
        own_share = share(model.global_batch_size, shares, step * model.world_size + model.rank)
        batches = microbatches(own_share, microbatch_size, "powersgd_ddp")
        for samples in batches:
            activations[0] = model.get_input_activation(samples)
            for layer in layers:
                activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])

            grad_activations[layers[-1]] = model.loss(activations.pop(len(layers)))
            for layer in reversed(layers):
                grad_weights["new"], grad_activations[layer - 1] = model.backward(
                    layer, activations[layer], grad_activations[layer], weights[layer]
                )
                del activations[layer], grad_activations[layer]
                grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
                if samples is batches[-1]:
                    packed, opt_states["sent", layer] = model.compress(
                        layer, grad_weights.pop(layer), opt_states["sent", layer]
                    )
                    launch(layer, packed)
                    del packed
                    await second_factor(layer + 1)
            del grad_activations[-1]
        await second_factor(0)

        for layer in reversed(layers):
            grad_weights[layer], opt_states["sent", layer] = model.decompress(
                layer, await sent.pop(layer), opt_states["sent", layer]
            )
            weights[layer], opt_states[layer] = model.update(
                layer, grad_weights.pop(layer), weights[layer], opt_states[layer]
            )

    for layer in layers:
        model.set_final_weight(layer, weights[layer])
    return model
