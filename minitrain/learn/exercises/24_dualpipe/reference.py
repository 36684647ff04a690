"""The reference of exercise 24: DualPipe: a forward beside a backward."""

from collections.abc import MutableMapping
from typing import Any

from minitrain.lib import Model

Action = tuple[str, int, int]


async def dualpipe_v(model: Model, microbatch_size: int) -> Model:
    """Train with two stages a rank; messages of other actions travel while one computes."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, p, batch = model.rank, model.world_size, model.global_batch_size
    stages, per_stage = (rank, 2 * p - 1 - rank), model.num_layers // (2 * p)
    layers_of = [range(stage * per_stage, (stage + 1) * per_stage) for stage in stages]
    batches = [range(i, i + microbatch_size) for i in range(0, batch, microbatch_size)]
    for layer in (*layers_of[0], *layers_of[1]):
        weights[layer], opt_states[layer] = model.load_weights(layer)
    sends: list[Any] = []

    def elsewhere(stage: int) -> int | None:
        """Return the rank that has a stage, None for no stage or one's own."""
        found = min(stage, 2 * p - 1 - stage)
        return found if 0 <= stage < 2 * p and found != rank else None

    def start_receive(kind: str, chunk: int, i: int) -> Any:
        source = stages[chunk] + (-1 if kind == "F" else 1)
        peer = None if kind == "W" else elsewhere(source)
        return None if peer is None else model.launch(model.receive(peer, tag=(kind == "F", source, i)))

    def pass_on(is_forward: bool, chunk: int, store: MutableMapping[Any, Any], key: Any) -> None:
        peer = elsewhere(stages[chunk] + (1 if is_forward else -1))
        if peer is not None:
            sends.append(model.launch(model.send(peer, store.pop(key), tag=(is_forward, stages[chunk], key[1]))))

    def forward(chunk: int, i: int) -> None:
        if stages[chunk] == 0:
            activations[0, i] = model.get_input_activation(batches[i])
        for layer in layers_of[chunk]:
            activations[layer + 1, i] = model.forward(layer, activations[layer, i], weights[layer])
        pass_on(True, chunk, activations, (layers_of[chunk].stop, i))

    def backward(kind: str, chunk: int, i: int) -> None:
        if stages[chunk] == 2 * p - 1:
            grad_activations[model.num_layers - 1, i] = model.loss(activations.pop((model.num_layers, i)))
        for layer in reversed(layers_of[chunk]):
            if kind == "I":
                grad_activations[layer - 1, i] = model.backward_input(
                    layer, activations[layer, i], grad_activations[layer, i], weights[layer]
                )
            else:
                grad_weights["new"], grad_activations[layer - 1, i] = model.backward(
                    layer, activations[layer, i], grad_activations[layer, i], weights[layer]
                )
                free_and_add(layer, i)
        pass_on(False, chunk, grad_activations, (layers_of[chunk][0] - 1, i))
        grad_activations.pop((-1, i), None)

    def backward_weight(chunk: int, i: int) -> None:
        for layer in reversed(layers_of[chunk]):
            grad_weights["new"] = model.backward_weight(layer, activations[layer, i], grad_activations[layer, i])
            free_and_add(layer, i)

    def free_and_add(layer: int, i: int) -> None:
        del activations[layer, i], grad_activations[layer, i]
        new = grad_weights.pop("new")
        grad_weights[layer] = grad_weights[layer] + new if layer in grad_weights else new

    order = order_of(rank, p, len(batches))
    coming = start_receive(*order[0])
    for place, (kind, chunk, i) in enumerate(order):
        if coming is not None and kind == "F":
            activations[layers_of[chunk][0], i] = await coming
        elif coming is not None:
            grad_activations[layers_of[chunk][-1], i] = await coming
        coming = start_receive(*order[place + 1]) if place + 1 < len(order) else None
        if kind == "F":
            forward(chunk, i)
        elif kind == "W":
            backward_weight(chunk, i)
        else:
            backward(kind, chunk, i)
        while len(sends) > 1:
            await sends.pop(0)
    while sends:
        await sends.pop(0)

    for layer in (*layers_of[0], *layers_of[1]):
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


def order_of(rank: int, p: int, num_microbatches: int) -> list[Action]:
    """Return a rank's actions: kind, chunk and microbatch of each."""
    after = p - 1 - rank
    phases = [
        ("F0", 2 * after),
        ("F0 F1", rank + 1),
        ("I1 W F1", after),
        ("F0 B1 F1 B0", num_microbatches - p - after),
        ("B1 F1 B0", after),
        ("B1 B0", (rank + 1) // 2),
        ("B1 I0", (rank + 1) % 2),
        ("I1 I0", (rank + 1) // 2),
        ("W I0", after),
        ("W", rank + 1),
    ]
    begun = {"F0": 0, "F1": 0, "B0": 0, "B1": 0}
    put_off: list[tuple[int, int]] = []
    order: list[Action] = []
    for actions, times in phases:
        for action in actions.split() * times:
            if action == "W":
                order.append(("W", *put_off.pop(0)))
                continue
            counter = action.replace("I", "B")
            order.append((action[0], int(action[1]), begun[counter]))
            if action[0] == "I":
                put_off.append((int(action[1]), begun[counter]))
            begun[counter] += 1
    return order
