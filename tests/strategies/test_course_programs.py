"""Programs as courses on distributed training write them: positional calls, five stores, `asyncio.gather`, the log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import minitrain.lib as lib
from minitrain.lib import Dist, Model


def basic() -> Any:
    """One device, all layers, one batch."""
    model = Model()
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for l in range(model.num_layers):  # noqa: E741
        weights[l], opt_states[l] = model.load_weights(l)
    activations[0] = model.get_input_activation(range(model.global_batch_size))
    for l in range(model.num_layers):  # noqa: E741
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    grad_activations[model.num_layers - 1] = model.loss(activations[model.num_layers])
    del activations[model.num_layers]
    for l in range(model.num_layers - 1, -1, -1):  # noqa: E741
        grad_weights[l], grad_activations[l - 1] = model.backward(l, activations[l], grad_activations[l], weights[l])
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        model.set_final_weight(l, weights[l])
        del grad_weights[l], activations[l], grad_activations[l]
    return model


def test_the_basic_program_trains_on_the_default_model() -> None:
    model = basic()
    Model.check([model])
    types = [event.typ for event in model.log]
    assert types == ["load_weights"] * 2 + ["forward"] * 2 + ["loss"] + ["backward", "update"] * 2
    assert model.log[-1].time + model.log[-1].duration == model.time
    assert max(event.memory for event in model.log) <= model.peak_memory


async def dist_data_parallel(model: Model) -> Model:
    """Every rank one sample, gradients all-reduced layer by layer."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    batch = range(model.rank, model.rank + 1)
    for l in range(model.num_layers):  # noqa: E741
        weights[l], opt_states[l] = model.load_weights(l)
    activations[0] = model.get_input_activation(batch)
    for l in range(model.num_layers):  # noqa: E741
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    grad_activations[model.num_layers - 1] = model.loss(activations[model.num_layers])
    for l in range(model.num_layers - 1, -1, -1):  # noqa: E741
        grad_weights[l], grad_activations[l - 1] = model.backward(l, activations[l], grad_activations[l], weights[l])
        grad_weights[l] = await model.all_reduce(grad_weights[l], l)
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        model.set_final_weight(l, weights[l])
        del grad_weights[l], activations[l + 1], grad_activations[l]
    return model


async def fsdp(model: Model) -> Model:
    """Everything in shards, weights gathered for each layer in both passes."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for l in range(model.num_layers):  # noqa: E741
        weights[l], opt_states[l] = model.load_weights(l, model.rank, model.dist.world_size)
    activations[0] = model.get_input_activation([model.rank])
    for l in range(model.num_layers):  # noqa: E741
        weights[l, "full"] = await model.all_gather(weights[l], l)
        activations[l + 1] = model.forward(l, activations[l], weights[l, "full"])
        del weights[l, "full"]
    grad_activations[model.num_layers - 1] = model.loss(activations[model.num_layers])
    for l in range(model.num_layers - 1, -1, -1):  # noqa: E741
        weights[l, "full"] = await model.all_gather(weights[l], l)
        grad, grad_activations[l - 1] = model.backward(l, activations[l], grad_activations[l], weights[l, "full"])
        grad_weights[l] = await model.reduce_scatter(grad, l)
        del weights[l, "full"]
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        model.set_final_weight(l, weights[l])
    return model


async def naive_pipeline(model: Model) -> Model:
    """Two layers a stage, the whole batch at once; the last stage sends the gradient back."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    per_rank = model.num_layers // model.dist.world_size
    mine = list(range(model.rank * per_rank, (model.rank + 1) * per_rank))
    for l in mine:  # noqa: E741
        weights[l], opt_states[l] = model.load_weights(l)
    first, last = model.rank == 0, model.rank == model.dist.world_size - 1
    activations[mine[0]] = (
        model.get_input_activation(range(model.global_batch_size)) if first else await model.receive(model.rank - 1)
    )
    for l in mine:  # noqa: E741
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    if last:
        grad_activations[mine[-1]] = model.loss(activations[model.num_layers])
    else:
        await model.send(model.rank + 1, activations[mine[-1] + 1])
        grad_activations[mine[-1]] = await model.receive(model.rank + 1)
    for l in reversed(mine):  # noqa: E741
        grad_weights[l], grad_activations[l - 1] = model.backward(l, activations[l], grad_activations[l], weights[l])
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        model.set_final_weight(l, weights[l])
    if not first:
        await model.send(model.rank - 1, grad_activations[mine[0] - 1])
    return model


@pytest.mark.parametrize("program", [dist_data_parallel, fsdp, naive_pipeline])
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_distributed_programs_run_unchanged(program: Any, gpus: int) -> None:
    async def main() -> list[Model]:
        dist = Dist(gpus)
        return list(await asyncio.gather(*[program(Model(i, dist, 2 * gpus, gpus)) for i in range(gpus)]))

    models = asyncio.run(main())
    Model.check(models)
    assert max(m.log[-1].time + m.log[-1].duration for m in models) == max(m.time for m in models)
    everyone = {s for m in models for event in m.log if event.typ == "forward" for s in event.samples}
    assert everyone == set(range(gpus))


def test_top_level_await_as_in_a_notebook_gives_the_same_log_every_time() -> None:
    async def main() -> Any:
        dist = Dist(4)
        return await asyncio.gather(*[fsdp(Model(rank, dist, 4, 4)) for rank in range(4)])

    first, second = asyncio.run(main()), asyncio.run(main())
    assert [list(model.log) for model in first] == [list(model.log) for model in second]


def test_check_refuses_a_model_without_final_weights() -> None:
    with pytest.raises(AssertionError, match="layer 0 has no final weight on any rank; call"):
        Model.check([lib.Model()])
