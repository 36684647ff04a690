"""A strategy that is made of drawn choices: how each layer's weight is kept, its gradient made and summed, and when."""

from __future__ import annotations

import json
from typing import Any

from minitrain.lib import Model


async def drawn(model: Model, plan: str = "") -> Model:
    """Train data parallel, each layer as a plan says.

    Args:
        model: the rank.
        plan: JSON with `microbatches`, `recompute`, the `order` of updates, and for each of the `layers`: what is
            sharded ("none", "states", "all"), whether its gradient is summed "once", "launched", "halved" (a
            reduce_scatter and an all_gather), or "by_mesh" (a chain over two axes); whether its backward is split, its
            input is offloaded, and whether the ranks meet after it.
    """
    drawn_plan: dict[str, Any] = json.loads(plan)
    layers = [_Layer(model, k, **each) for k, each in enumerate(drawn_plan["layers"])]
    model.recompute = drawn_plan["recompute"]
    for layer in layers:
        layer.load()
    for samples in model.microbatches(len(model.samples_of_rank()) // drawn_plan["microbatches"]):
        model.activations[0] = model.get_input_activation(samples)
        for layer in layers:
            await layer.forward()
        model.grad_activations["one"] = model.loss(model.activations.pop(len(layers)))
        for layer in reversed(layers):
            await layer.backward()
        del model.grad_activations["one"]
    for layer in layers:
        layer.begin_sum()
    for k in drawn_plan["order"]:
        await layers[k].update()
    return model


class _Layer:
    """One layer of a rank."""

    def __init__(self, model: Model, k: int, shards: str, sums: str, splits: bool, offloads: bool, meets: bool) -> None:
        self.model, self.k = model, k
        self.shards, self.sums, self.splits, self.offloads, self.meets = shards, sums, splits, offloads, meets
        self.work: Any = None

    def load(self) -> None:
        """Load the weight and the optimizer's state, or this rank's shards."""
        model, k, mine = self.model, self.k, (self.model.rank, self.model.world_size)
        model.weights[k], model.opt_states[k] = model.load_weights(k, *(mine if self.shards == "all" else ()))
        if self.shards == "states":
            model.opt_states[k] = model.opt_states[k].shard(*mine)

    async def _whole(self) -> Any:
        model, k = self.model, self.k
        if self.shards != "all":
            return model.weights[k]
        model.weights["whole"] = await model.all_gather(model.weights[k], k)
        return model.weights["whole"]

    async def forward(self) -> None:
        """Go forward, and perhaps move the input to the host."""
        model, k = self.model, self.k
        model.activations[k + 1] = model.forward(k, model.activations[k], await self._whole())
        model.weights.pop("whole", None)
        if self.offloads:
            model.host[k] = await model.offload(model.activations[k])
            del model.activations[k]
        if self.meets:
            await model.barrier()

    async def backward(self) -> None:
        """Go back, and add the gradient to those of the microbatches before."""
        model, k, grad = self.model, self.k, self.model.grad_activations["one"]
        if self.offloads:
            model.activations[k] = await model.fetch(model.host[k])
            del model.host[k]
        weight = await self._whole()
        if self.splits:
            model.grad_activations["next"] = model.backward_input(k, model.activations[k], grad, weight)
            model.grad_weights["new"] = model.backward_weight(k, model.activations[k], grad, weight)
        else:
            both = model.backward(k, model.activations[k], grad, weight)
            model.grad_weights["new"], model.grad_activations["next"] = both
        model.grad_activations["one"] = model.grad_activations.pop("next")
        model.weights.pop("whole", None)
        del model.activations[k]
        new: Any = model.grad_weights.pop("new")
        model.grad_weights[k] = model.grad_weights.pop(k) + new if k in model.grad_weights else new

    def begin_sum(self) -> None:
        """Launch the sum where that is not awaited at once."""
        model, k = self.model, self.k
        if self.sums == "launched":
            grad = model.grad_weights.pop(k)
            sums = model.all_reduce if self.shards == "none" else model.reduce_scatter
            self.work = model.launch(sums(grad, k))
        elif self.sums == "by_mesh" and self.shards == "none":
            mesh = model.mesh(outer=2, inner=model.world_size // 2)
            inner, outer = mesh.group("inner"), mesh.group("outer")
            part = model.launch(model.reduce_scatter(model.grad_weights.pop(k), k, group=inner))
            total = model.launch(model.all_reduce(part, k, group=outer))
            self.work = model.launch(model.all_gather(total, k, group=inner))

    async def _sum(self) -> Any:
        model, k = self.model, self.k
        if self.work is not None:
            return await self.work
        if self.shards != "none":
            return await model.reduce_scatter(model.grad_weights.pop(k), k)
        if self.sums != "halved":
            return await model.all_reduce(model.grad_weights.pop(k), k)
        model.grad_weights[k] = await model.reduce_scatter(model.grad_weights.pop(k), k)
        return await model.all_gather(model.grad_weights.pop(k), k)

    async def update(self) -> None:
        """Take the optimizer's step."""
        model, k = self.model, self.k
        model.grad_weights[k] = await self._sum()
        weight: Any = model.weights.pop(k)
        if self.shards == "states":
            weight = weight.shard(model.rank, model.world_size)
        model.weights[k], model.opt_states[k] = model.update(k, model.grad_weights.pop(k), weight, model.opt_states[k])
        if self.shards == "states":
            model.weights[k] = await model.all_gather(model.weights[k], k)
        model.set_final_weight(k, model.weights[k])
