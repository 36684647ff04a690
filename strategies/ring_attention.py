"""Ring attention: ranks share each sequence, and keys and values travel round a ring (Liu et al. 2023, figure 2)."""

from typing import Any

from minitrain.lib import Model

from ._batch import add, microbatches, share
from ._context import context_mesh, shards_of
from ._tied import sum_tied, tied_layers


async def ring_attention(
    model: Model,
    microbatch_size: int | None = None,
    cp: int | None = None,
    tp: int = 1,
    balanced: bool = True,
    recompute: str = "none",
) -> Model:
    """Train on shards of the sequence; the queries of each rank see one block of keys and values after the other.

    While queries see a block, it goes on to the next rank, and the block of the rank before comes in. Backward sends
    the blocks round again. What each rank adds to a block's gradient follows one step behind, and comes home at the
    end.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; all of a replica if None.
        cp: ranks that share a sequence; all that are left beside tp if None.
        tp: parts that a layer is divided into; heads and columns must be multiples.
        balanced: whether a rank has two shards of the sequence, one from each end, so that the causal mask leaves all
            ranks the same work; one shard if False.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    model.recompute = recompute
    mesh = context_mesh(model, cp, tp, "ring_attention")
    parts, replicas, cp = mesh.group("tp"), mesh.group("dp"), mesh.group("cp").size
    shards, num_shards = shards_of(mesh.coord("cp"), cp, balanced=balanced)
    samples_here = share(model.global_batch_size, replicas.size, replicas.index)
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()

    async def total(partial: Any, border: int) -> Any:
        """Return the sum over the parts of a layer."""
        return partial if tp == 1 else await model.all_reduce(partial, border, group=parts)

    def pass_on(tensor: Any, *tag: Any) -> tuple[Any, Any]:
        """Send to the next rank of the ring, and receive from the one before."""
        before, after = mesh.peer("cp", -1, wrap=True), mesh.peer("cp", +1, wrap=True)
        return model.launch(model.send(after, tensor, tag=tag)), model.launch(model.receive(before, tag=tag))

    async def attention(layer: int, recompute: Any) -> Any:
        x, weight = activations[layer], weights[layer]
        block = activations["own", layer] = model.keys_values(layer, x, weight, recompute=recompute)
        for step in range(cp):
            if step < cp - 1:
                sent, coming = pass_on(block, "block", layer, step)
            activations["attended"] = add(activations.pop("attended", None), model.attend(layer, x, block))
            if step < cp - 1:
                await sent
                block = activations["block"] = await coming
        activations.pop("block", None)
        if recompute == "full":  # keys and values will be made, and go round, again
            del block, activations["own", layer]
        return model.project(layer, x, weight, activations.pop("attended"))

    async def attention_backward(layer: int) -> tuple[Any, Any]:
        if recompute == "full":
            await attention(layer, "none")
        x, weight, block = activations[layer], weights[layer], activations["own", layer]
        grad_activations["attended"] = model.backward_project(layer, x, grad_activations[layer], weight)
        grad_sent: Any = None
        grad_coming: Any = None
        for step in range(cp):
            if step < cp - 1:
                sent, coming = pass_on(block, "block", layer, step)
            here, grad_activations["block"] = model.backward_attend(layer, x, grad_activations["attended"], block)
            grad_activations["queries"] = add(grad_activations.pop("queries", None), here)
            del here
            if step > 0:  # what the ranks before have added up
                await grad_sent
                grad_activations["block"] = await grad_coming + grad_activations.pop("block")
            if cp > 1:
                grad_sent, grad_coming = pass_on(grad_activations.pop("block"), "grad", layer, step)
            if step < cp - 1:
                await sent
                block = activations["block"] = await coming
        if cp > 1:  # the gradient of the rank's own block is home
            await grad_sent
            grad_activations["block"] = await grad_coming
        for store, name in ((activations, "block"), (activations, ("own", layer)), (grad_activations, "attended")):
            store.pop(name, None)
        grads = grad_activations.pop("queries"), grad_activations.pop("block")
        return model.backward_keys_values(layer, x, weight, *grads)

    for layer in range(model.num_layers):
        weights[layer], opt_states[layer] = model.load_weights(layer, part=parts.index, num_parts=tp)

    for batch in microbatches(samples_here, microbatch_size, "ring_attention"):
        activations[0] = model.get_input_shard(batch, shards, num_shards)
        for layer in range(model.num_layers):
            if model.has_attention(layer):
                activations["new"] = await attention(layer, recompute)
            else:
                activations["new"] = model.forward(layer, activations[layer], weights[layer])
            activations[layer + 1] = await total(activations.pop("new"), layer + 1)
        grad_activations[model.num_layers - 1] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(range(model.num_layers)):
            if model.has_attention(layer):
                grad_weights["new"], grad_activations["new"] = await attention_backward(layer)
            else:
                grad_weights["new"], grad_activations["new"] = model.backward(
                    layer, activations[layer], grad_activations[layer], weights[layer]
                )
            del activations[layer], grad_activations[layer]
            grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop("new"))
            if layer > 0:
                grad_activations[layer - 1] = await total(grad_activations.pop("new"), layer)
            else:
                del grad_activations["new"]

    async def reduce(layer: int) -> None:  # one sum over samples and over the sequence
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=mesh.group("dp", "cp"))

    for layer in tied_layers(model):
        await reduce(layer)
    await sum_tied(model, grad_weights)
    for layer in range(model.num_layers):
        if layer not in tied_layers(model):
            await reduce(layer)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        del grad_weights[layer]
        model.set_final_weight(layer, weights[layer])
    return model
