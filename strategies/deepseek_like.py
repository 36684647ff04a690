"""DeepSeek-V3's step: pipeline x expert x data parallelism, tokens travelling beside compute (DeepSeek-AI 2024)."""

from collections.abc import Coroutine, Generator, MutableMapping, Sequence
from itertools import chain
from typing import Any

from minitrain import schedules
from minitrain.engine.operations import Launched
from minitrain.errors import StrategyError
from minitrain.lib import Model
from minitrain.schedules import Action
from minitrain.search.schedules.pipeline import Messages

from ._batch import add, layers_of_stages, microbatches, require_multiple, require_range, share
from ._experts import load_layers, without_travel

Turn = Generator[tuple[MutableMapping[Any, Any], Any, Launched[Any]], None, None]
"""What a rank computes until tokens travel; it yields their exchange, and the store and place where they arrive."""


async def deepseek_like(
    model: Model,
    microbatch_size: int | None = None,
    pp: int | None = None,
    ep: int = 1,
    zero: int = 0,
    imbalance: float | str | Sequence[float] = 1,
    capacity_factor: float | None = None,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    overlap_messages: bool = True,
) -> Model:
    """Run DualPipeV on pipelines of pp ranks whose experts are divided among ep of them (section 3.2, figures 4 and 5).

    The order of actions is that of `minitrain.schedules.dualpipe_v`: rank r of a pipeline holds stages r and
    2 pp - 1 - r. Where a forward and a backward are a pair, each computes while the tokens of the other travel. Ranks
    of a group that exchanges tokens are neighbours; beyond them come replicas, then the pipeline. It takes 2 pp
    microbatches or more of equal size, so global_batch_size must be a multiple of those of all pipelines, and
    num_layers of 2 pp where layers are alike.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; if None, such that a pipeline has 2 pp microbatches.
        pp: ranks of a pipeline; world_size / ep if None.
        ep: parts that the experts are divided into.
        zero: 1 to shard optimizer states among the ranks that hold the same, 0 to keep them whole.
        imbalance: how many times the mean the busiest expert gets; or a number for each expert, to which its tokens are
            proportional; or a file with these on a line for each layer with experts, or on one for all.
        capacity_factor: how many times the mean an expert takes at most, further tokens being dropped; None for all.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective", "full", or modules (see `Model.forward`). Of
            layers with experts only modules are that are less than all of it, so that no token travels again.
        overlap_messages: whether messages between stages are hidden behind compute; a rank waits for each if False.
    """
    name = "deepseek_like"
    model.recompute, of_experts = recompute, without_travel(recompute)
    require_range("ep", ep, model.world_size, name)
    require_range("pp", pp, model.world_size, name)
    if zero not in (0, 1):
        raise StrategyError(f"zero must be 0 or 1 for {name}, got {zero!r}")
    pp = pp or max(1, model.world_size // ep)
    require_multiple("world_size", model.world_size, "pp x ep", pp * ep, name)
    mesh = model.mesh(pp=pp, dp=model.world_size // (pp * ep), ep=ep)
    place, everyone, parts, replicas = mesh.coord("pp"), mesh.group("dp", "ep"), mesh.group("ep"), mesh.group("dp")
    require_multiple("global_batch_size", model.global_batch_size, "dp x ep", everyone.size, name)
    samples_here = share(model.global_batch_size, everyone.size, everyone.index)
    if microbatch_size is None:
        require_multiple("global_batch_size", model.global_batch_size, "dp x ep x 2 pp", everyone.size * 2 * pp, name)
        microbatch_size = len(samples_here) // (2 * pp)
    batches = microbatches(samples_here, microbatch_size, name)
    if len(batches) < 2 * pp:
        raise StrategyError(
            f"num_microbatches ({len(batches)}) must be at least 2 pp ({2 * pp}) for {name}; use smaller microbatches"
        )
    schedule = schedules.dualpipe_v(pp, len(batches))
    stages = layers_of_stages(model, 2 * pp, microbatch_size, layers_per_stage, "2 pp", name)
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()

    def incoming(action: Action) -> Coroutine[Any, Any, Any] | None:
        """Return the receive of what an action needs from another rank."""
        source = schedule.placement.get(action.stage + (-1 if action.kind == "F" else 1), place)
        if action.kind == "W" or source == place:
            return None
        tag = "F" if action.kind == "F" else "B", action.stage, action.microbatch
        return model.receive(mesh.peer("pp", source - place, wrap=True), tag=tag)

    messages = Messages(model, incoming, overlap=overlap_messages)

    def forward(stage: int, i: int) -> Turn:
        for layer in stages[stage]:
            if model.has_experts(layer):
                tokens, made = ("tokens", layer, i), ("made", layer, i)
                activations[tokens] = model.route(
                    layer,
                    activations[layer, i],
                    weights[layer],
                    ep,
                    imbalance=imbalance,
                    capacity_factor=capacity_factor,
                    recompute=of_experts,
                )
                yield activations, tokens, model.launch(model.all_to_all(activations[tokens], layer, group=parts))
                activations[made] = model.forward(
                    layer, activations[tokens], weights["experts", layer], recompute=of_experts
                )
                yield activations, made, model.launch(model.all_to_all(activations[made], layer, group=parts))
                activations[layer + 1, i] = model.combine(
                    layer, activations[layer, i], activations[made], weights[layer]
                )
            else:
                activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])

    def backward(stage: int, i: int, kind: str) -> Turn:
        """Go back through a stage, kind B, or without the weights' gradients, kind I."""
        for layer in reversed(stages[stage]):
            inp, grad = activations[layer, i], grad_activations[layer, i]
            if model.has_experts(layer):
                tokens, made = ("tokens", layer, i), ("made", layer, i)
                grad_activations[made] = model.backward_combine(layer, inp, activations[made], grad)
                del activations[made]
                yield grad_activations, made, model.launch(model.all_to_all(grad_activations[made], layer, group=parts))
                grad_activations[tokens] = model.backward_input(
                    layer, activations[tokens], grad_activations[made], weights["experts", layer]
                )
                travelling = model.launch(model.all_to_all(grad_activations[tokens], layer, group=parts))
                if kind == "B":
                    backward_experts(layer, i)
                yield grad_activations, tokens, travelling
                grad_weights["new"], grad_activations[layer - 1, i] = model.backward_route(
                    layer, inp, grad, grad_activations[tokens], weights[layer]
                )
                del grad_activations[tokens]
            elif kind == "B":
                grad_weights["new"], grad_activations[layer - 1, i] = model.backward(layer, inp, grad, weights[layer])
            else:
                grad_activations[layer - 1, i] = model.backward_input(layer, inp, grad, weights[layer])
            del inp, grad
            if "new" in grad_weights:
                del activations[layer, i], grad_activations[layer, i]
                grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))

    def backward_weight(stage: int, i: int) -> None:
        """Compute the weights' gradients that kind I has left out."""
        for layer in reversed(stages[stage]):
            if model.has_experts(layer):
                backward_experts(layer, i)
            else:
                grad_weights["new"] = model.backward_weight(layer, activations[layer, i], grad_activations[layer, i])
                del activations[layer, i], grad_activations[layer, i]
                grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))

    def backward_experts(layer: int, i: int) -> None:
        tokens, made, experts = ("tokens", layer, i), ("made", layer, i), ("experts", layer)
        grad_weights["new"] = model.backward_weight(layer, activations[tokens], grad_activations[made])
        del activations[tokens], grad_activations[made]
        grad_weights[experts] = add(grad_weights.get(experts), grad_weights.pop("new"))

    async def run(cell: Sequence[Action]) -> None:
        """Run an action, or a pair of them by turns: one computes until its tokens travel, then the other."""
        turns: list[tuple[Action, Turn | None, Any]] = [(action, None, None) for action in cell]
        while turns:
            action, turn, travelling = turns.pop(0)
            if action.kind == "W":
                backward_weight(action.stage, action.microbatch)
                continue
            if turn is None:
                turn = await begin(action)
            else:
                store, key, tokens = travelling
                store[key] = await tokens
            travelling = next(turn, None)
            if travelling is not None:
                turns.append((action, turn, travelling))
            elif action.kind == "F":
                await send(action.stage + 1, "F", action.microbatch, activations, stages[action.stage].stop)
            else:
                await send(action.stage - 1, "B", action.microbatch, grad_activations, stages[action.stage][0] - 1)

    async def begin(action: Action) -> Turn:
        """Store what a forward or a backward begins with: an input, a loss, or what another rank has sent."""
        kind, stage, i = action.kind, action.stage, action.microbatch
        first, last = stages[stage][0], stages[stage][-1]
        if kind == "F" and first == 0:
            activations[0, i] = model.get_input_activation(batches[i])
        elif kind != "F" and last == model.num_layers - 1:
            grad_activations[last, i] = model.loss(activations.pop((last + 1, i)))
        elif schedule.placement[stage + (-1 if kind == "F" else 1)] != place:
            store, layer = (activations, first) if kind == "F" else (grad_activations, last)
            store[layer, i] = await messages.received(action)
        return forward(stage, i) if kind == "F" else backward(stage, i, kind)

    async def send(stage: int, way: str, i: int, store: MutableMapping[Any, Any], layer: int) -> None:
        """Pass a tensor on to the rank of another stage; the gradient of the model's input is dropped."""
        dest = schedule.placement.get(stage, place)
        if dest != place:
            peer = mesh.peer("pp", dest - place, wrap=True)
            await messages.send(peer, store.pop((layer, i)), tag=(way, stage, i))
        elif stage < 0:
            del store[layer, i]

    layers = chain(stages[place], stages[2 * pp - 1 - place])
    held = load_layers(model, layers, everyone, parts, replicas, shard_states=zero == 1)

    cells = schedule.rows[place]
    for action in cells[0]:
        messages.expect(action)
    for cell, following in zip(cells, [*cells[1:], ()], strict=True):
        for action in following:
            messages.expect(action)
        await run(cell)
    await messages.all_sent()

    for key, (layer, group) in held.items():
        if zero:
            grad_weights[key] = await model.reduce_scatter(grad_weights[key], layer, group=group)
            weights[key] = weights[key].shard(group.index, group.size)
        else:
            grad_weights[key] = await model.all_reduce(grad_weights[key], layer, group=group)
        weights[key], opt_states[key] = model.update(layer, grad_weights[key], weights[key], opt_states[key])
        del grad_weights[key]
        if zero:
            weights[key] = await model.all_gather(weights[key], layer, group=group)
        model.set_final_weight(layer, weights[key])
    return model
