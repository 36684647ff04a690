"""Context parallelism by a gather: every rank gets the keys and values of a sequence (Llama 3, section 3.3.2)."""

from collections.abc import Sequence
from typing import Any

from minitrain.engine.protocol import Mesh
from minitrain.lib import Model

from ._batch import add, microbatches, share
from ._context import context_mesh, shards_of
from ._tied import sum_tied, tied_layers


async def gathered_context(
    model: Model,
    microbatch_size: int | None = None,
    cp: int | None = None,
    tp: int = 1,
    balanced: bool = True,
    recompute: str = "none",
) -> Model:
    """Train on shards of the sequence; the queries of each rank see the gathered keys and values of all.

    Keys and values are small where several heads of queries share them. They are gathered once more for backward,
    beside the output projection, and their gradients are summed by a reduce_scatter, which leaves each rank its own.

    Args:
        model: the rank.
        microbatch_size: samples a microbatch; all of a replica if None.
        cp: ranks that share a sequence; all that are left beside tp if None.
        tp: parts that a layer is divided into; heads and columns must be multiples.
        balanced: whether a rank has two shards of the sequence, one from each end, so that the causal mask leaves all
            ranks the same work; one shard if False.
        recompute: what backward computes again: "none", "selective" or "full" (see `Model.forward`).
    """
    mesh = context_mesh(model, cp, tp, "gathered_context")
    replicas, sequence = mesh.group("dp"), mesh.group("cp")
    shards = shards_of(mesh.coord("cp"), sequence.size, balanced=balanced)
    samples_here = share(model.global_batch_size, replicas.size, replicas.index)
    batches = microbatches(samples_here, microbatch_size, "gathered_context")
    return await gathered_step(model, mesh, [(batch, *shards) for batch in batches], recompute)


async def gathered_step(model: Model, mesh: Mesh, inputs: Sequence[tuple[Any, ...]], recompute: str) -> Model:
    """Train on microbatches, each given as the arguments of `get_input_shard`, or by its samples alone if not cut."""
    model.recompute = recompute
    parts, sequence, tp = mesh.group("tp"), mesh.group("cp"), mesh.group("tp").size
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()

    async def total(partial: Any, border: int) -> Any:
        """Return the sum over the parts of a layer."""
        return partial if tp == 1 else await model.all_reduce(partial, border, group=parts)

    async def attention(layer: int, recompute: Any) -> Any:
        x, weight = activations[layer], weights[layer]
        activations["own", layer] = model.keys_values(layer, x, weight, recompute=recompute)
        activations["all"] = await model.all_gather(activations["own", layer], layer, group=sequence)
        activations["attended"] = model.attend(layer, x, activations["all"])
        del activations["all"]
        if recompute == "full":  # keys and values will be made, and gathered, again
            del activations["own", layer]
        return model.project(layer, x, weight, activations.pop("attended"))

    async def attention_backward(layer: int) -> tuple[Any, Any]:
        if recompute == "full":
            await attention(layer, "none")
        x, weight = activations[layer], weights[layer]
        gathering = model.launch(model.all_gather(activations["own", layer], layer, group=sequence))
        grad_activations["attended"] = model.backward_project(layer, x, grad_activations[layer], weight)
        activations["all"] = await gathering
        grad_activations["queries"], grad_activations["all"] = model.backward_attend(
            layer, x, grad_activations["attended"], activations["all"]
        )
        del activations["all"], activations["own", layer], grad_activations["attended"]
        grad_activations["own"] = await model.reduce_scatter(grad_activations.pop("all"), layer, group=sequence)
        grads = grad_activations.pop("queries"), grad_activations.pop("own")
        return model.backward_keys_values(layer, x, weight, *grads)

    for layer in range(model.num_layers):
        weights[layer], opt_states[layer] = model.load_weights(layer, part=parts.index, num_parts=tp)

    for samples, *cut in inputs:
        activations[0] = model.get_input_shard(samples, *cut) if cut else model.get_input_activation(samples)
        for layer in range(model.num_layers):
            if cut and model.has_attention(layer):
                activations["new"] = await attention(layer, recompute)
            else:
                activations["new"] = model.forward(layer, activations[layer], weights[layer])
            activations[layer + 1] = await total(activations.pop("new"), layer + 1)
        grad_activations[model.num_layers - 1] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(range(model.num_layers)):
            if cut and model.has_attention(layer):
                grad_weights["new"], grad_activations["new"] = await attention_backward(layer)
            else:
                grad_weights["new"], grad_activations["new"] = model.backward(
                    layer, activations[layer], grad_activations[layer], weights[layer]
                )
            del activations[layer], grad_activations[layer]
            of_kind = bool(cut), layer  # what is cut is summed over its shards before anything else is added
            grad_weights[of_kind] = add(grad_weights.get(of_kind), grad_weights.pop("new"))
            if layer > 0:
                grad_activations[layer - 1] = await total(grad_activations.pop("new"), layer)
            else:
                del grad_activations["new"]

    async def reduce(layer: int) -> None:  # one sum over samples and over the sequence
        for is_cut in (True, False):
            if (own := (is_cut, layer)) in grad_weights:
                grad_weights[own] = await model.all_reduce(grad_weights[own], layer, group=mesh.group("dp", "cp"))
                grad_weights[layer] = add(grad_weights.get(layer), grad_weights.pop(own))

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
