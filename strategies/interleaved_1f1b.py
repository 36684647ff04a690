"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2): each rank holds several stages, in a loop over the ranks."""

from collections.abc import Coroutine, Sequence
from typing import Any

from minitrain.lib import Model
from minitrain.search.schedules.pipeline import Messages

from ._batch import add, microbatches, require_multiple, require_range, share, stage_layers


async def interleaved_1f1b(
    model: Model,
    microbatch_size: int | None = None,
    num_chunks: int = 2,
    pp: int | None = None,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Train looped pipelines of pp ranks; num_layers must be a multiple of pp x num_chunks where layers are alike.

    The bubble is 1/num_chunks of 1F1B's, for num_chunks times the messages. Microbatches go through a rank's chunks in
    rounds of pp, so their number must be a multiple of pp.

    Args:
        model: the rank; its chunk c is stage c x pp + its place in the pipeline.
        microbatch_size: samples a microbatch; global_batch_size / world_size, a whole number, if None.
        num_chunks: stages a rank.
        pp: ranks of a pipeline, a divisor of world_size; world_size if None. Further ranks are replicas.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        overlap_messages: whether messages between stages are hidden behind compute; a rank waits for each if False.
    """
    model.recompute = recompute
    require_range("num_chunks", num_chunks, model.num_layers, "interleaved_1f1b")
    require_range("pp", pp, model.world_size, "interleaved_1f1b")
    name, pp = "world_size" if pp is None else "pp", pp or model.world_size
    require_multiple("world_size", model.world_size, "pp", pp, "interleaved_1f1b")
    num_stages = pp * num_chunks
    batch_size = model.global_batch_size
    if microbatch_size is None:
        require_multiple("global_batch_size", batch_size, "world_size", model.world_size, "interleaved_1f1b")
    mesh = model.mesh(pp=pp, dp=model.world_size // pp)
    replicas, place = mesh.group("dp"), mesh.coord("pp")
    require_multiple("global_batch_size", batch_size, "replicas", replicas.size, "interleaved_1f1b")
    before, after = mesh.peer("pp", -1, wrap=True), mesh.peer("pp", +1, wrap=True)
    samples_here = share(batch_size, replicas.size, replicas.index)
    batches = microbatches(samples_here, microbatch_size or len(samples_here) // pp, "interleaved_1f1b")
    require_multiple("num_microbatches", len(batches), name, pp, "interleaved_1f1b")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    of = f"{name} x num_chunks"
    layers_of = {
        stage: stage_layers(model, stage, num_stages, microbatch_size, layers_per_stage, of, "interleaved_1f1b")
        for stage in range(place, num_stages, pp)
    }

    def turn(kind: str, step: int) -> tuple[str, int, int]:
        """Return the stage and the microbatch of a rank's step: a round through each chunk in turn."""
        round_, within = divmod(step, num_stages)
        chunk = within // pp if kind == "F" else num_chunks - 1 - within // pp
        return kind, chunk * pp + place, round_ * pp + within % pp

    def incoming(step: tuple[str, int, int]) -> Coroutine[Any, Any, Any] | None:
        """Return the receive that a step begins with: of the stage before, or of the one after it."""
        kind, stage, _ = step
        if pp == 1 or stage == (0 if kind == "F" else num_stages - 1):
            return None
        return model.receive(before if kind == "F" else after, tag=step)

    messages = Messages(model, incoming, overlap=overlap_messages)

    async def forward(stage: int, i: int) -> None:
        layers = layers_of[stage]
        if stage == 0:
            activations[0, i] = model.get_input_activation(batches[i])
        elif pp > 1:
            activations[layers[0], i] = await messages.received(("F", stage, i))
        for layer in layers:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        if stage < num_stages - 1 and pp > 1:
            await messages.send(after, activations.pop((layers.stop, i)), tag=("F", stage + 1, i))

    async def backward(stage: int, i: int) -> None:
        layers = layers_of[stage]
        if stage == num_stages - 1:
            grad_activations[layers[-1], i] = model.loss(activations.pop((layers.stop, i)))
        elif pp > 1:
            grad_activations[layers[-1], i] = await messages.received(("B", stage, i))
        for layer in reversed(layers):
            grad_weights["new"], grad_activations[layer - 1, i] = model.backward(
                layer, activations[layer, i], grad_activations[layer, i], weights[layer]
            )
            del activations[layer, i], grad_activations[layer, i]
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
        if stage == 0:
            del grad_activations[-1, i]
        elif pp > 1:
            await messages.send(before, grad_activations.pop((layers[0] - 1, i)), tag=("B", stage - 1, i))

    for layers in layers_of.values():
        for layer in layers:
            weights[layer], opt_states[layer] = model.load_weights(layer)

    num_steps = len(batches) * num_chunks
    warmup = min((num_chunks - 1) * pp + 2 * (pp - 1 - place), num_steps)
    order = [turn("F", step) for step in range(warmup)]
    for step in range(warmup, num_steps):  # steady
        order += [turn("F", step), turn("B", step - warmup)]
    order += [turn("B", step) for step in range(num_steps - warmup, num_steps)]  # cooldown
    for kind, stage, i in messages.ahead(order):
        await (forward if kind == "F" else backward)(stage, i)
    await messages.all_sent()

    for layers in layers_of.values():
        for layer in layers:
            if replicas.size > 1:
                grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=replicas)
            weights[layer], opt_states[layer] = model.update(
                layer, grad_weights[layer], weights[layer], opt_states[layer]
            )
            del grad_weights[layer]
            model.set_final_weight(layer, weights[layer])
    return model
