"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2): each rank holds several stages, in a loop over the ranks."""

from minitrain.lib import Model

from ._batch import add, microbatches, require_multiple, require_range, share


async def interleaved_1f1b(model: Model, microbatch_size: int | None = None, num_chunks: int = 2) -> Model:
    """Train a looped pipeline; num_layers must be a multiple of world_size x num_chunks.

    The bubble is 1/num_chunks of 1F1B's, for num_chunks times the messages. Microbatches go through a rank's chunks in
    rounds of world_size, so their number must be a multiple of world_size.

    Args:
        model: the rank; its chunk c is stage c x world_size + rank.
        microbatch_size: samples a microbatch; global_batch_size / world_size if None, which must divide then.
        num_chunks: stages a rank.
    """
    rank, world_size = model.rank, model.world_size
    require_range("num_chunks", num_chunks, model.num_layers, "interleaved_1f1b")
    num_stages = world_size * num_chunks
    require_multiple("num_layers", model.num_layers, "world_size x num_chunks", num_stages, "interleaved_1f1b")
    if microbatch_size is None:
        require_multiple("global_batch_size", model.global_batch_size, "world_size", world_size, "interleaved_1f1b")
        microbatch_size = model.global_batch_size // world_size
    batches = microbatches(range(model.global_batch_size), microbatch_size, "interleaved_1f1b")
    require_multiple("num_microbatches", len(batches), "world_size", world_size, "interleaved_1f1b")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers_of = [share(model.num_layers, num_stages, chunk * world_size + rank) for chunk in range(num_chunks)]
    before, after = (rank - 1) % world_size, (rank + 1) % world_size

    def turn(step: int) -> tuple[int, int]:
        """Return the chunk and the microbatch of a rank's step: a round through each chunk in turn."""
        round_, within = divmod(step, num_stages)
        return within // world_size, round_ * world_size + within % world_size

    async def forward(step: int) -> None:
        chunk, i = turn(step)
        layers, stage = layers_of[chunk], chunk * world_size + rank
        if stage == 0:
            activations[0, i] = model.get_input_activation(batches[i])
        elif before != rank:
            activations[layers[0], i] = await model.receive(before, tag=("F", stage, i))
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        if stage < num_stages - 1 and after != rank:
            await model.send(after, activations.pop((layers.stop, i)), tag=("F", stage + 1, i))

    async def backward(step: int) -> None:
        chunk, i = turn(step)
        chunk = num_chunks - 1 - chunk
        layers, stage = layers_of[chunk], chunk * world_size + rank
        if stage == num_stages - 1:
            grad_activations[layers[-1], i] = model.loss(activations.pop((layers.stop, i)))
        elif after != rank:
            grad_activations[layers[-1], i] = await model.receive(after, tag=("B", stage, i))
        for layer in reversed(layers):
            grad_weights["new"], grad_activations[layer - 1, i] = model.backward(
                layer, activations[layer, i], grad_activations[layer, i], weights[layer]
            )
            del activations[layer, i], grad_activations[layer, i]
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        if stage == 0:
            del grad_activations[-1, i]
        elif before != rank:
            await model.send(before, grad_activations.pop((layers[0] - 1, i)), tag=("B", stage - 1, i))

    for layers in layers_of:
        for layer in layers:
            weights[layer], opt_states[layer] = model.load_weights(layer)

    num_steps = len(batches) * num_chunks
    warmup = min((num_chunks - 1) * world_size + 2 * (world_size - 1 - rank), num_steps)
    for step in range(warmup):
        await forward(step)
    for step in range(warmup, num_steps):  # steady
        await forward(step)
        await backward(step - warmup)
    for step in range(num_steps - warmup, num_steps):  # cooldown
        await backward(step)

    for layers in layers_of:
        for layer in layers:
            weights[layer], opt_states[layer] = model.update(
                layer, grad_weights[layer], weights[layer], opt_states[layer]
            )
            del grad_weights[layer]
            model.set_final_weight(layer, weights[layer])
    return model
