"""A rank's own tasks train on real processes: their operations come in the order of the simulation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import minitrain as mt

SIZES: dict[str, Any] = {"num_layers": 4, "global_batch_size": 8, "steps": 3, "dtype": "float64", "force": True}


def backwards(model: Any) -> Any:
    """Go forward, and yield each layer whose gradient is there on the way back."""
    num_layers = model.num_layers
    for k in range(num_layers):
        model.weights[k], model.opt_states[k] = model.load_weights(k)
    model.activations[0] = model.get_input_activation(model.samples_of_rank())
    for k in range(num_layers):
        model.activations[k + 1] = model.forward(k, model.activations[k], model.weights[k])
    model.grad_activations[0] = model.loss(model.activations.pop(num_layers))
    for k in reversed(range(num_layers)):
        made = model.backward(k, model.activations[k], model.grad_activations[0], model.weights[k])
        model.grad_weights[k], model.grad_activations[0] = made
        del model.activations[k]
        yield k


def update(model: Any, k: int) -> None:
    """Take the step of a layer."""
    made = model.update(k, model.grad_weights.pop(k), model.weights[k], model.opt_states[k])
    model.weights[k], model.opt_states[k] = made
    model.set_final_weight(k, model.weights[k])


async def beside(model: Any) -> Any:
    """Reduce each gradient in a task of its own, beside the backward passes that follow."""

    async def reduce(k: int) -> None:
        model.grad_weights[k] = await model.all_reduce(model.grad_weights[k], k)

    tasks = []
    for k in backwards(model):
        tasks.append(asyncio.create_task(reduce(k)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    for k in range(model.num_layers):
        update(model, k)
    return model


async def together(model: Any) -> Any:
    """Reduce and update all layers in tasks that begin together."""

    async def step(k: int) -> None:
        model.grad_weights[k] = await model.all_reduce(model.grad_weights[k], k)
        update(model, k)

    layers = list(backwards(model))
    await asyncio.gather(*map(step, layers))
    return model


async def in_a_queue(model: Any) -> Any:
    """Let one task reduce what another one puts into a queue, and a third one update what the second has done."""
    ready: asyncio.Queue[int | None] = asyncio.Queue()
    reduced: asyncio.Queue[int | None] = asyncio.Queue()

    async def reducer() -> None:
        while (k := await ready.get()) is not None:
            model.grad_weights[k] = await model.all_reduce(model.grad_weights[k], k)
            await reduced.put(k)
        await reduced.put(None)

    async def updater() -> None:
        while (k := await reduced.get()) is not None:
            update(model, k)

    async with asyncio.TaskGroup() as group:
        group.create_task(reducer())
        group.create_task(updater())
        for k in backwards(model):
            await ready.put(k)
            await asyncio.sleep(0)
        await ready.put(None)
    return model


async def launched_elsewhere(model: Any) -> Any:
    """Launch in one task and await in others, in another order."""
    works: dict[int, Any] = {}
    is_launched = asyncio.Event()

    async def finish(k: int) -> None:
        await is_launched.wait()
        model.grad_weights[k] = await works[k]

    async def looks_on(k: int) -> None:
        await is_launched.wait()
        assert (await works[k]).layer == k

    tasks = [asyncio.create_task(task(k)) for k in (2, 0, 3, 1) for task in (finish, looks_on)]
    for k in backwards(model):
        works[k] = model.launch(model.all_reduce(model.grad_weights[k], k))
    is_launched.set()
    await asyncio.gather(*tasks)
    for k in range(model.num_layers):
        update(model, k)
    return model


async def in_two_groups(model: Any) -> Any:
    """Meet in groups of a mesh and send messages in tasks, which ranks begin in orders of their own."""
    mesh = model.mesh(outer=2, inner=model.world_size // 2)

    async def reduce(k: int) -> None:
        model.grad_weights[k] = await model.all_reduce(model.grad_weights[k], k)
        update(model, k)

    async def message(k: int) -> None:
        peer = model.rank ^ 1
        await asyncio.gather(model.send(peer, model.weights[k].shard(0, 4), tag=k), model.receive(peer, tag=k))

    layers = list(backwards(model))
    await asyncio.gather(*(model.barrier(group=mesh.group(axis)) for axis in ("inner", "outer")))
    await asyncio.gather(*(message(k) for k in (layers if model.rank % 2 else layers[::-1])))
    await asyncio.gather(*map(reduce, layers))
    return model


@pytest.mark.ci
@pytest.mark.parametrize(
    ("strategy", "world_size"),
    [(beside, 2), (together, 2), (in_a_queue, 2), (launched_elsewhere, 2), (in_two_groups, 4)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.one_in(3)
def test_tasks_train_as_the_plain_strategy_does(strategy: Any, world_size: int) -> None:
    run = mt.train(strategy, world_size=world_size, **SIZES)
    plain = mt.train("ddp", world_size=world_size, **SIZES)
    assert run.losses == pytest.approx(plain.losses, rel=1e-12)
    simulated = mt.simulate(strategy, world_size=world_size, num_layers=4, global_batch_size=8)
    for log, predicted in zip(run.logs, simulated.logs, strict=True):
        assert [(event.typ, event.layer) for event in log] == [(event.typ, event.layer) for event in predicted]
