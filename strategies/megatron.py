"""Megatron-LM: tensor x sequence x pipeline x data parallelism (Narayanan et al. 2021; Korthikanti et al. 2022)."""

from collections.abc import MutableMapping, Sequence
from typing import Any

from minitrain.errors import StrategyError
from minitrain.lib import Model
from minitrain.tensors.parts import kept_whole, share_of_sequence

from ._batch import add, microbatches_of, require_multiple, require_range, require_shares, stage_layers


async def megatron(
    model: Model,
    microbatch_size: int | None = None,
    tp: int = 1,
    pp: int = 1,
    num_chunks: int = 1,
    sequence_parallel: bool = False,
    zero: int = 0,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    scatter_gather: bool = False,
    overlap_replicas: bool = False,
    overlap_parts: bool = False,
    overlap_messages: bool = False,
    batch_messages: bool = False,
) -> Model:
    """Train pipelines whose layers are divided by tensor parallelism, and replicas that share the global_batch_size.

    Ranks of a tensor-parallel group are neighbours; beyond them come replicas, then stages. With several chunks the
    pipeline is interleaved: microbatches go through a rank's chunks in rounds of pp, so their number must be a multiple
    of pp.

    Args:
        model: the rank; its chunk c is stage c x pp + its place in the pipeline.
        microbatch_size: samples a microbatch; if None, such that a pipeline has pp microbatches.
        tp: parts that a layer is divided into; heads, MLP columns and experts' columns must be multiples.
        pp: ranks of a pipeline.
        num_chunks: stages a rank.
        sequence_parallel: whether activations between layers are shards of the sequence.
        zero: 1 to shard the optimizer state among the replicas, 0 to keep it whole.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        scatter_gather: whether each rank of a tensor-parallel group sends a share of an activation to the next stage,
            where the shares are gathered (section 4.1), instead of all of it. Shards of the sequence are shares anyway.
        overlap_replicas: whether a layer's gradients are summed over the replicas as soon as the last microbatch has
            made them and, with zero, its weights gathered under the first forward pass instead of after the update.
        overlap_parts: whether the gradient of a layer's input is summed over the parts while the gradient of its weight
            is computed.
        overlap_messages: whether messages between stages are hidden behind compute: a rank goes on while it sends, and
            expects what its next step needs while it computes.
        batch_messages: whether a step's result goes out while what the next step needs comes in, as Megatron-LM's
            batched messages do; one after the other if False. Of no effect where messages are hidden.
    """
    model.recompute = recompute
    for name, value, most in (("tp", tp, model.world_size), ("pp", pp, model.world_size)):
        require_range(name, value, most, "megatron")
    require_range("num_chunks", num_chunks, model.num_layers, "megatron")
    if zero not in (0, 1):
        raise StrategyError(f"zero must be 0 or 1 for megatron, got {zero!r}; use pp_zero3 for more")
    require_multiple("world_size", model.world_size, "tp x pp", tp * pp, "megatron")
    mesh = model.mesh(pp=pp, dp=model.world_size // (tp * pp), tp=tp)
    parts, replicas, place = mesh.group("tp"), mesh.group("dp"), mesh.coord("pp")
    before, after = mesh.peer("pp", -1, wrap=True), mesh.peer("pp", +1, wrap=True)
    require_shares(model, "replicas", replicas.size, "megatron")
    if microbatch_size is None:
        require_shares(model, "replicas x pp", replicas.size * pp, "megatron")
        microbatch_size = max(1, model.global_batch_size // (replicas.size * pp))
    batches = microbatches_of(model, replicas.size, replicas.index, microbatch_size, "megatron")
    if num_chunks > 1:
        require_multiple("num_microbatches", len(batches), "pp", pp, "megatron")
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    num_stages, num_layers = pp * num_chunks, model.num_layers
    layers_of = [
        stage_layers(model, stage, num_stages, microbatch_size, layers_per_stage, "pp x num_chunks", "megatron")
        for stage in range(place, num_stages, pp)
    ]
    shards_sequence = sequence_parallel and tp > 1
    sends_shares = scatter_gather and tp > 1 and not shards_sequence
    recomputes = recompute == "full" and tp > 1 and not model.layers_are_alike  # with the sums between its parts

    async def whole(store: MutableMapping[Any, Any], tensor: Any, border: int) -> Any:
        """Return what a layer takes: shards of the sequence are gathered (g in the paper's figure)."""
        if not shards_sequence or border in (0, num_layers):
            return tensor
        store["whole"] = await model.all_gather(tensor, border, group=parts)
        return store["whole"]

    async def total(partial: Any, border: int) -> Any:
        """Return the sum over the parts of a layer, in shards of the sequence if these are wanted (g's conjugate)."""
        if tp == 1:
            return partial
        return await sum_of(partial, border)

    def sum_of(partial: Any, border: int) -> Any:
        """Return the operation that makes that sum."""
        if shards_sequence and border not in (0, num_layers):
            return model.reduce_scatter(partial, border, group=parts)
        return model.all_reduce(partial, border, group=parts)

    async def cover_sequence(layer: int) -> None:
        """Complete a gradient: for norms and biases, a rank has seen a shard of the sequence."""
        if shards_sequence and layer > 0:
            grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=parts)

    def sum_over_replicas(layer: int) -> Any:
        """Return the operation that sums a layer's gradient over the replicas, in shards with zero."""
        reduce = model.reduce_scatter if zero else model.all_reduce
        return reduce(grad_weights.pop(layer), layer, group=replicas)

    async def pass_on(tensor: Any, peer: int, tag: Any) -> None:
        """Send an activation or a gradient to another stage: a share of it where each part's rank sends one."""
        sending = model.send(peer, share_of_sequence(tensor, parts.index, tp) if sends_shares else tensor, tag=tag)
        if overlap_messages:
            await all_sent()
        if overlap_messages or batch_messages:
            sends.append(model.launch(sending))
        else:
            await sending

    async def all_sent() -> None:
        """Wait until what was sent is out."""
        while sends:
            await sends.pop()

    async def passed(peer: int, border: int, tag: Any) -> Any:
        """Return what another stage has passed on."""
        tensor = await (expected.pop(tag) if tag in expected else model.receive(peer, tag=tag))
        return kept_whole(await model.all_gather(tensor, border, group=parts)) if sends_shares else tensor

    def turn(step: int) -> tuple[int, int]:
        """Return the chunk and the microbatch of a rank's step: a round through each chunk in turn."""
        round_, within = divmod(step, num_stages)
        return within // pp, round_ * pp + within % pp

    def expect(kind: str, step: int) -> None:
        """Begin to receive what a step needs from another stage."""
        chunk, i = turn(step)
        stage = (chunk if kind == "F" else num_chunks - 1 - chunk) * pp + place
        peer = before if kind == "F" else after
        if pp > 1 and stage != (0 if kind == "F" else num_stages - 1):
            expected[kind, stage, i] = model.launch(model.receive(peer, tag=(kind, stage, i)))

    async def forward(step: int) -> None:
        chunk, i = turn(step)
        layers, stage = layers_of[chunk], chunk * pp + place
        if stage == 0:
            activations[0, i] = model.get_input_activation(batches[i])
        elif pp > 1:
            activations[layers[0], i] = await passed(before, layers[0], ("F", stage, i))
        for layer in layers:
            if layer in gathers:
                weights[layer] = await gathers.pop(layer)
            inp = await whole(activations, activations[layer, i], layer)
            activations[layer + 1, i] = await total(model.forward(layer, inp, weights[layer]), layer + 1)
            del inp
            activations.pop("whole", None)
        if stage < num_stages - 1 and pp > 1:
            await pass_on(activations.pop((layers.stop, i)), after, ("F", stage + 1, i))

    async def backward(step: int) -> None:
        chunk, i = turn(step)
        chunk = num_chunks - 1 - chunk
        layers, stage = layers_of[chunk], chunk * pp + place
        if stage == num_stages - 1:
            grad_activations[layers[-1], i] = model.loss(activations.pop((num_layers, i)))
        elif pp > 1:
            grad_activations[layers[-1], i] = await passed(after, layers.stop, ("B", stage, i))
        for layer in reversed(layers):
            inp = await whole(activations, activations[layer, i], layer)
            if recomputes and 0 < layer < num_layers - 1:
                await total(model.forward(layer, inp, weights[layer], recompute="none"), layer + 1)
            grad = await whole(grad_activations, grad_activations[layer, i], layer + 1)
            if overlap_parts and tp > 1 and layer > 0:
                summing = model.launch(sum_of(model.backward_input(layer, inp, grad, weights[layer]), layer))
                grad_weights["new"] = model.backward_weight(layer, inp, grad, weights[layer])
                grad_activations[layer - 1, i] = await summing
            else:
                grad_weights["new"], grad_activations["new"] = model.backward(layer, inp, grad, weights[layer])
            del inp, grad
            for store in (activations, grad_activations):
                store.pop("whole", None)
                del store[layer, i]
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
            if "new" in grad_activations:
                grad_inp = grad_activations.pop("new")
                if layer > 0:
                    grad_activations[layer - 1, i] = await total(grad_inp, layer)
                del grad_inp
            if overlap_replicas and replicas.size > 1 and i == len(batches) - 1:
                await cover_sequence(layer)
                reductions[layer] = model.launch(sum_over_replicas(layer))
        if stage > 0 and pp > 1:
            await pass_on(grad_activations.pop((layers[0] - 1, i)), before, ("B", stage - 1, i))

    sends: list[Any] = []
    expected: dict[Any, Any] = {}
    reductions: dict[int, Any] = {}
    gathers: dict[int, Any] = {}
    for layers in layers_of:
        for layer in layers:
            weights[layer], opt_states[layer] = model.load_weights(layer, part=parts.index, num_parts=tp)
            if zero:
                opt_states[layer] = opt_states[layer].shard(replicas.index, replicas.size)
            if zero and overlap_replicas:  # the step begins with what the one before has updated
                weights[layer] = weights[layer].shard(replicas.index, replicas.size)
                gathers[layer] = model.launch(model.all_gather(weights[layer], layer, group=replicas))

    num_steps = len(batches) * num_chunks
    warmup = pp - 1 - place if num_chunks == 1 else (num_chunks - 1) * pp + 2 * (pp - 1 - place)
    warmup = min(warmup, num_steps)
    steps = [("F", step) for step in range(warmup)]
    for step in range(warmup, num_steps):  # steady
        steps += [("F", step), ("B", step - warmup)]
    steps += [("B", step) for step in range(num_steps - warmup, num_steps)]  # cooldown
    for (kind, step), following in zip(steps, [*steps[1:], None], strict=True):
        if overlap_messages and following:
            expect(*following)
        await (forward if kind == "F" else backward)(step)
        if batch_messages and not overlap_messages:
            if following:
                expect(*following)
            await all_sent()
    await all_sent()

    for layers in layers_of:
        for layer in layers:
            if layer in reductions:
                grad_weights[layer] = await reductions.pop(layer)
            else:
                await cover_sequence(layer)
                if replicas.size > 1 or zero:
                    grad_weights[layer] = await sum_over_replicas(layer)
            if zero:
                weights[layer] = weights[layer].shard(replicas.index, replicas.size)
            weights[layer], opt_states[layer] = model.update(
                layer, grad_weights[layer], weights[layer], opt_states[layer]
            )
            del grad_weights[layer]
            if zero and not overlap_replicas:
                weights[layer] = await model.all_gather(weights[layer], layer, group=replicas)
            model.set_final_weight(layer, weights[layer])
    return model
