"""Data parallelism that sums gradients under the backward pass, in buckets of layers (Li et al. 2020, section 3.2)."""

from minitrain.lib import Model

from ._batch import add, microbatches_of, require_range, require_shares
from ._tied import sum_tied, tied_layers


async def ddp_overlap(
    model: Model, microbatch_size: int | None = None, bucket_size: int = 1, recompute: str = "none"
) -> Model:
    """Train data parallel with overlap; global_batch_size must be a multiple of world_size.

    In the last microbatch, a bucket is launched as soon as the gradients of its layers are final. Larger buckets pay
    the latency less often, but leave less compute to hide the last one.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; the rank's whole share if None.
        bucket_size: layers a bucket, 1 to num_layers.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    require_shares(model, "world_size", model.world_size, "ddp_overlap")
    require_range("bucket_size", bucket_size, model.num_layers, "ddp_overlap")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    batches = microbatches_of(model, model.world_size, model.rank, microbatch_size, "ddp_overlap")
    bucket, launched, tied = [], [], tied_layers(model)

    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

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

            if samples == batches[-1]:
                if layer not in tied:
                    bucket.append(grad_weights[layer])
                if layer == 0:  # the gradient of a table that embedding and head share is final now
                    bucket += [grad_weights[one] for one in reversed(tied)]
                if len(bucket) == bucket_size or layer == 0:
                    launched.append(model.launch(model.all_reduce(bucket, layer)))
                    bucket = []
        del grad_activations[-1]

    def update(layer: int) -> None:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        model.set_final_weight(layer, weights[layer])

    for work in launched:
        for grad in await work:
            grad_weights[grad.layer] = grad
            if grad.layer not in tied:
                update(grad.layer)
    await sum_tied(model, grad_weights)
    for layer in tied:
        update(layer)
    return model
