"""FSDP (Zhao et al. 2023, figures 1 and 5): a unit is whole while it is at work, and the next is gathered meanwhile."""

from collections import deque
from collections.abc import Awaitable, Hashable, Iterable, MutableMapping
from typing import Any

from minitrain.errors import StrategyError
from minitrain.lib import Model, Weight, WeightGrad

from ._batch import add, microbatches_of, require_multiple, require_range, require_shares
from ._parts import Parts
from ._tied import reduce_tied, tied_layers


async def fsdp(
    model: Model,
    microbatch_size: int | None = None,
    replicas: int = 1,
    tp: int = 1,
    sequence_parallel: bool = False,
    reshard_after_forward: bool = True,
    recompute: str = "none",
    offload: str | None = None,
    offloaded_layers: int | None = None,
    overlap_replicas: bool = True,
    no_sync: bool = False,
) -> Model:
    """Shard everything, a unit at a time; global_batch_size must be a multiple of replicas x shards.

    A unit is a transformer layer, the embedding, the head, or one layer where all are alike. While it is at work, the
    weights of the next unit are gathered and the gradients of the one before are reduced. With replicas, each copy of
    the model is in shards, and the shards of gradients are summed over the copies (hybrid sharding).

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; the rank's whole share if None.
        replicas: copies of the model; world_size / (replicas x tp) ranks share one.
        tp: parts that a layer is divided into, of which each is in shards; heads and columns must be multiples.
        sequence_parallel: whether activations between the parts' layers are shards of the sequence.
        reshard_after_forward: whether backward gathers a unit again, or it stays whole from its forward on. The last
            unit stays in any case, as backward begins with it.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
        offload: what lies in the host's memory while it is not at work: "activations", "optimizer" (the state), or
            None. Each moves beside the unit before the one that needs it. With "optimizer_step" the state stays there
            and the host takes the step, as DeepSpeed's `offload_optimizer` does (ZeRO-Offload, figure 4): gradients
            leave as they are reduced, come back to have those of the next microbatch added
            (`DeepSpeedZeroOptimizer_Stage3.partition_grads`), and weights come back when the host has updated them.
            With "parameters" the weights stay there too, and shards come to the device for each gather: PyTorch's
            `CPUOffloadPolicy`, DeepSpeed's `offload_param` beside `offload_optimizer`.
        offloaded_layers: transformer layers, from the first on, whose activations are offloaded; all but the last unit
            if None.
        overlap_replicas: whether gradients are summed over the copies beside the backward of the units before, or all
            of them after it, as XLA does without `xla_tpu_enable_data_parallel_all_reduce_opt`.
        no_sync: whether each rank adds up whole gradients, which are reduced in the last microbatch alone, as under
            PyTorch's `no_sync` and `set_requires_gradient_sync(False)`.
    """
    model.recompute = recompute
    require_range("replicas", replicas, model.world_size, "fsdp")
    require_range("tp", tp, model.world_size, "fsdp")
    if offload not in (None, "activations", "optimizer", "optimizer_step", "parameters"):
        choices = '"activations", "optimizer", "optimizer_step", "parameters" or None'
        raise StrategyError(f"offload must be {choices} for fsdp, got {offload!r}")
    if offloaded_layers is not None and offload != "activations":
        raise StrategyError(f'offloaded_layers is of offload="activations" for fsdp, got offload={offload!r}')
    require_multiple("world_size", model.world_size, "replicas x tp", replicas * tp, "fsdp")
    mesh = model.mesh(replica=replicas, dp=model.world_size // (replicas * tp), tp=tp)
    shards, copies, parts = mesh.group("dp"), mesh.group("replica"), Parts(model, mesh.group("tp"), sequence_parallel)
    num_shares = replicas * shards.size
    require_shares(model, "replicas x shards", num_shares, "fsdp")
    batches = microbatches_of(model, num_shares, model.rank // tp, microbatch_size, "fsdp", in_step=True)
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    units, num_layers, tied = model.blocks, model.num_layers, tied_layers(model)
    first = int(not model.layers_are_alike)  # behind the embedding
    require_range("offloaded_layers", offloaded_layers, len(units), "fsdp")
    moved = () if offload != "activations" else units[:-1]  # backward begins with the last unit
    moved = moved if offloaded_layers is None else moved[first : first + offloaded_layers]
    kept = units[-1:] if reshard_after_forward else units  # whole between forward and backward
    to_gather = deque([*units, *(unit for unit in reversed(units) if unit not in kept)] * len(batches))
    gathers: deque[Awaitable[list[Weight]]] = deque()
    reductions: deque[Awaitable[list[WeightGrad]]] = deque()
    sums: deque[Awaitable[list[WeightGrad]]] = deque()
    to_sum: deque[list[int]] = deque()  # units whose gradients the copies are to sum
    offloads: deque[tuple[MutableMapping[Any, Any], int, Awaitable[Any]]] = deque()
    fetches: deque[tuple[int, Awaitable[Any]]] = deque()
    leaving: dict[int, Awaitable[Any]] = {}  # gradients on their way to the host
    coming: dict[int, Awaitable[Any]] = {}  # and back
    updated: dict[int, Awaitable[Any]] = {}  # weights that come to be handed in
    lie_on_host, is_shared = offload == "parameters", replicas * tp > 1  # with ranks that sum at the end
    steps_on_host, gathers_all = lie_on_host or offload == "optimizer_step", lie_on_host or shards.size > 1
    before = dict(zip(units[1:], units, strict=False))  # the unit before each

    def whole(layer: int) -> Hashable:
        """Return the key of a layer's whole weight; a lone shard is whole already."""
        return ("whole", layer) if gathers_all else layer

    def own(layer: int) -> Any:
        """Return the rank's shard, or what brings it."""
        return model.launch(model.fetch(model.host["weight", layer])) if lie_on_host else weights[layer]

    def gather_next() -> None:
        if to_gather and gathers_all:
            unit = to_gather.popleft()
            gathers.append(model.launch(model.all_gather([*map(own, unit)], unit[0], group=shards)))

    async def unshard(unit: range) -> None:
        """Wait for the weights of a unit, and gather those of the next one meanwhile."""
        if whole(unit[0]) not in weights:
            for weight in await gathers.popleft():
                weights[whole(weight.layer)] = weight
            gather_next()

    def reshard(unit: range) -> None:
        for layer in unit if gathers_all else ():
            del weights[whole(layer)]

    def reduce(unit: range, is_last: bool) -> None:
        new = [grad_weights.pop(("new", layer)) for layer in unit]
        if unit[0] in tied:  # whole until both uses of the table are there
            grad_weights[unit[0]] = add(grad_weights.get(unit[0]), new.pop())
            return
        if no_sync:
            new = [add(grad_weights.pop(("whole", grad.layer), None), grad) for grad in new]
            if not is_last:
                grad_weights.update((("whole", grad.layer), grad) for grad in new)
                return
        reductions.append(model.launch(model.reduce_scatter(new, unit[0], group=shards)))

    async def finish_reduction(is_last: bool) -> None:
        unit = []
        for grad in await reductions.popleft():
            unit.append(grad.layer)
            grad_weights["shard"] = grad
            if grad.layer in coming:
                grad_weights[grad.layer] = await coming.pop(grad.layer)
                del model.host["grad", grad.layer]
            grad_weights[unit[-1]] = add(grad_weights.get(unit[-1]), grad_weights.pop("shard"))
        if steps_on_host and not is_shared:
            await free_gradients()
            leave(unit)
        if is_last and replicas > 1:  # of the step: each copy has seen all its samples
            to_sum.append(unit)
            if overlap_replicas:
                sum_copies()

    def sum_copies() -> None:
        while to_sum:
            unit = to_sum.popleft()
            sums.append(model.launch(model.all_reduce([grad_weights[layer] for layer in unit], unit[0], group=copies)))

    def leave(layers: Iterable[int]) -> None:
        leaving.update((layer, model.launch(model.offload(grad_weights[layer]))) for layer in layers)

    async def free_gradients() -> None:
        """Wait for gradients that have left, and free them."""
        for layer in [*leaving]:
            model.host["grad", layer] = await leaving.pop(layer)
            del grad_weights[layer]

    async def update_on_host(layer: int) -> None:
        grad, weight = model.host["grad", layer], model.host["weight", layer]
        await model.update_on_host(grad, weight, model.host[layer])
        del model.host["grad", layer], grad
        if lie_on_host:
            updated[layer] = model.launch(model.fetch(weight))
            return
        del weights[layer]
        weights[layer] = await model.fetch(weight)
        model.set_final_weight(layer, weights[layer])

    def start_offload(unit: range, store: MutableMapping[Any, Any]) -> None:
        offloads.extend((store, layer, model.launch(model.offload(store[layer]))) for layer in unit)

    async def finish_offloads() -> None:
        while offloads:
            store, layer, work = offloads.popleft()
            model.host[layer] = await work
            del store[layer]

    def start_fetch(unit: range) -> None:
        fetches.extend((layer, model.launch(model.fetch(model.host[layer]))) for layer in unit)

    async def finish_fetches(unit: range, store: MutableMapping[Any, Any]) -> None:
        for _ in unit:
            layer, work = fetches.popleft()
            store[layer] = await work
            del model.host[layer]

    async def forward(layer: int) -> None:
        inp = await parts.gather(activations, activations[layer], layer)
        activations[layer + 1] = await parts.sum(model.forward(layer, inp, weights[whole(layer)]), layer + 1)
        parts.release(activations)

    async def backward(layer: int) -> None:
        inp = await parts.gather(activations, activations[layer], layer)
        grad = await parts.gather(grad_activations, grad_activations[layer], layer + 1)
        grad_weights["new", layer], grad_activations["new"] = model.backward(layer, inp, grad, weights[whole(layer)])
        del inp, grad
        parts.release(activations, grad_activations)
        del activations[layer], grad_activations[layer]
        if layer > 0:
            grad_activations[layer - 1] = await parts.sum(grad_activations.pop("new"), layer)
        else:
            del grad_activations["new"]

    for layer in range(num_layers):
        weights[layer], opt_states[layer] = model.load_weights(
            layer, shards.index, shards.size, part=parts.index, num_parts=tp
        )
        if offload == "optimizer" or steps_on_host:
            await finish_offloads()
            start_offload(range(layer, layer + 1), opt_states)
        if steps_on_host:
            model.host["weight", layer] = await model.offload(weights[layer])
        if lie_on_host:
            del weights[layer]
    await finish_offloads()
    gather_next()

    for samples in batches:
        is_last = samples == batches[-1]
        activations[0] = model.get_input_activation(samples)
        for unit in units:
            await unshard(unit)
            for layer in unit:
                await forward(layer)
            if unit not in kept:
                reshard(unit)
            await finish_offloads()
            if unit in moved:
                start_offload(unit, activations)

        grad_activations[num_layers - 1] = model.loss(activations.pop(num_layers))
        for unit in reversed(units):
            await unshard(unit)
            if unit in moved:
                await finish_fetches(unit, activations)
            if before.get(unit) in moved:
                await finish_offloads()
                start_fetch(before[unit])
            for layer in reversed(unit):
                if steps_on_host and ("grad", layer) in model.host:
                    coming[layer] = model.launch(model.fetch(model.host["grad", layer]))
                await backward(layer)
            reshard(unit)
            if reductions:
                await finish_reduction(is_last)
            reduce(unit, is_last)
        if reductions:
            await finish_reduction(is_last)
        await free_gradients()
    sum_copies()
    await reduce_tied(model, grad_weights, shards)
    for layer in reversed(tied) if replicas > 1 else ():
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=copies)

    if offload == "optimizer":
        start_fetch(units[-1])
    for unit in reversed(units):
        for grad in await sums.popleft() if sums and unit[0] not in tied else ():
            grad_weights[grad.layer] = grad
        if offload == "optimizer":
            await finish_fetches(unit, opt_states)
            start_fetch(before.get(unit, range(0)))
        for layer in unit:
            if layer > 0 and layer in grad_weights:  # norms and biases have seen a shard of the sequence on each rank
                grad_weights[layer] = await parts.sum_common(grad_weights[layer], layer)
            if steps_on_host:
                leave([layer] if layer in grad_weights and layer not in leaving else ())
                continue
            weights[layer], opt_states[layer] = model.update(
                layer, grad_weights[layer], weights[layer], opt_states[layer]
            )
            del grad_weights[layer]
            model.set_final_weight(layer, weights[layer])
        await finish_offloads()
        if offload == "optimizer":
            start_offload(unit, opt_states)
    await finish_offloads()
    await free_gradients()
    for layer in (layer for unit in reversed(units) for layer in unit if steps_on_host):
        await update_on_host(layer)
    for layer, work in updated.items():
        model.set_final_weight(layer, await work)
    return model
