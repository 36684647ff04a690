"""What every collective leaves in memory, and the laws of what ranks put together, in a strict run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model, Weight

H2 = 4096**2


def strict(program: Callable[[Model], Awaitable[Any]], world_size: int = 2) -> mt.Run:
    sizes: dict[str, Any] = {"world_size": world_size, "num_layers": 1, "global_batch_size": 2, "check": False}
    return mt.simulate(program, strict=True, hardware=mt.FixedPredictor(), **sizes)


def held(model: Model) -> float:
    return float(model._meter.units / 2**40)


def weight(model: Model, shard: int = 0, num_shards: int = 1) -> Weight:
    return model.load_weights(0, shard, num_shards)[0]


def gradient(model: Model, samples: list[int], step: int = 0) -> Any:
    """Return a gradient from weights that have seen some updates."""
    model.weights[0], model.opt_states[0] = model.load_weights(0)
    for _ in range(step):
        grad = passes(model, [0, 1])
        model.weights[0], model.opt_states[0] = model.update(0, grad, model.weights[0], model.opt_states[0])
    return passes(model, samples)


def passes(model: Model, samples: list[int]) -> Any:
    model.activations[0] = model.get_input_activation(samples)
    model.grad_activations[0] = model.loss(model.forward(0, model.activations[0], model.weights[0]))
    return model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])[0]


@pytest.mark.parametrize("launched", [False, True])
def test_a_broadcast_gives_everybody_one_copy(launched: bool) -> None:
    async def program(model: Model) -> Model:
        mine = weight(model) if model.rank == 0 else None
        operation = model.broadcast(mine, 0)
        result = await (model.launch(operation) if launched else operation)
        assert held(model) == H2
        del mine
        assert (held(model), result.layer) == (H2, 0)
        return model

    assert strict(program).peak_memory == 2 * H2  # a weight is loaded with its state


@pytest.mark.parametrize("launched", [False, True])
def test_an_exchange_gives_a_copy_of_everything(launched: bool) -> None:
    async def program(model: Model) -> Model:
        mine = [weight(model, place, 2) for place in range(2)]
        operation = model.all_to_all(mine)
        result = await (model.launch(operation) if launched else operation)
        assert held(model) == 2 * H2
        del mine
        assert held(model) == H2
        assert [part.shards for part in result] == [{model.rank}, {model.rank}]
        return model

    strict(program)


@pytest.mark.parametrize("launched", [False, True])
def test_buckets_are_gathered_and_reduced_like_their_tensors(launched: bool) -> None:
    async def program(model: Model) -> Model:
        shards = [weight(model, model.rank, 2), weight(model, model.rank, 2)]
        operation = model.all_gather(shards, 0)
        work: Any = model.launch(operation) if launched else operation
        wholes = await work
        assert held(model) == 3 * H2
        assert not launched or all(again is whole for again, whole in zip(await work, wholes, strict=True))
        del shards, wholes
        grads = [gradient(model, [model.rank])]
        before = held(model)
        scattered = await model.reduce_scatter(grads, 0)
        assert held(model) == before
        del grads
        assert held(model) == before - H2 / 2
        assert scattered[0].samples == {0, 1}
        return model

    strict(program)


def test_a_lone_rank_keeps_what_it_gives() -> None:
    async def program(model: Model) -> Model:
        mine = weight(model)
        for operation in (model.all_reduce, model.all_gather, model.reduce_scatter):
            assert await operation(mine, 0) is mine
        assert await model.launch(model.broadcast(mine, model.rank)) is mine
        model.weights[0] = mine
        model.forward(0, model.get_input_activation([0]), mine)
        return model

    strict(program, world_size=1)


def test_two_tasks_may_await_one_launch() -> None:
    async def program(model: Model) -> Model:
        work = model.launch(model.all_gather(weight(model, model.rank, 2), 0))

        async def result() -> Any:
            return await work

        first, second = await asyncio.gather(result(), result())
        assert first is second
        return model

    strict(program)


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter"])
def test_sums_over_ranks_stem_from_one_step(op: str) -> None:
    async def program(model: Model) -> Model:
        grad = gradient(model, [model.rank], step=model.rank)
        await getattr(model, op)(grad, 0)
        return model

    message = rf"{op}: all gradients must stem .* rank 0 \(test_strict_.*\): step 0; rank 1 \(.*\): step 1"
    with pytest.raises(mt.LawError, match=message):
        strict(program)


def test_sums_on_a_rank_stem_from_one_step() -> None:
    async def program(model: Model) -> Model:
        early, late = gradient(model, [0]), gradient(model, [1], step=1)
        early + late
        return model

    with pytest.raises(
        mt.LawError, match=r"\+ on rank 0: both must stem from weights of the same step, got .* of step 0"
    ):
        strict(program, world_size=1)


def test_what_another_rank_alters_while_a_collective_waits_is_found() -> None:
    shared: dict[str, Any] = {}

    async def program(model: Model) -> Model:
        grad = gradient(model, [model.rank])
        if model.rank == 0:
            shared["grad"] = grad
        else:
            await asyncio.sleep(0)
            shared["grad"].samples = frozenset()
        await model.all_reduce(grad, 0)
        return model

    with pytest.raises(mt.LawError, match=r"all_reduce on rank 0: .*was altered: samples was \[0\] .* and is \[\] now"):
        strict(program)


def test_shards_are_compared_as_intervals() -> None:
    async def program(model: Model) -> Model:
        grad = gradient(model, [0, 1])
        quarters = [weight(model, i, 4) for i in (0, 1)]
        half = quarters[0].combine(quarters[1])
        state = model.load_weights(0, 0, 2)[1]
        model.update(0, grad.shard(0, 2), half, state)
        model.update(0, grad, *model.load_weights(0, 1, 2))
        with pytest.raises(mt.LawError, match="was updated already"):
            model.update(0, grad, *model.load_weights(0, 7, 8))
        return model

    strict(program, world_size=1)


def test_shards_of_what_was_updated_in_part_are_told_apart() -> None:
    async def program(model: Model) -> Model:
        grad = gradient(model, [0, 1])
        whole, state = model.weights[0], model.opt_states[0]
        same = whole.shard(0, 1)
        model.update(0, grad, same.shard(0, 4), state.shard(0, 4))
        model.update(0, grad, whole.shard(3, 4), state.shard(3, 4))
        whole.shard(1, 4)
        with pytest.raises(mt.LawError, match=r"was overwritten by update at test_strict_collectives.py:\d+"):
            whole.shard(0, 2)
        with pytest.raises(mt.LawError, match="which works in place; use its result"):
            model.forward(0, model.activations[0], whole)
        return model

    strict(program, world_size=1)


def test_a_tensor_from_before_the_run_is_no_tensor_of_it() -> None:
    before = Weight(0, 1, 0)

    async def program(model: Model) -> Model:
        model.weights[0] = before
        model.weights.popitem()
        model.weights[0] = before.shard(0, 1)
        model.forward(0, model.get_input_activation([0]), model.weights[0])
        return model

    with pytest.raises(mt.LawError, match="or before the run, or came through the transport"):
        strict(program, world_size=1)


def test_what_is_made_of_a_handmade_tensor_is_handmade() -> None:
    async def program(model: Model) -> Model:
        model.weights[0] = Weight(0, 1, 0).shard(0, 1)
        model.forward(0, model.get_input_activation([0]), model.weights[0])
        return model

    with pytest.raises(mt.LawError, match=r"was made by hand, .* is used at test_strict_collectives.py:\d+"):
        strict(program, world_size=1)


def test_cancelled_waits_do_not_disturb_the_audit() -> None:
    async def program(model: Model) -> Model:
        task = asyncio.create_task(model.receive(1 - model.rank, tag="never"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await model.barrier()
        await model.send(1 - model.rank, weight(model))
        await model.receive(1 - model.rank)
        return model

    assert strict(program).num_events == 10


def test_a_message_that_nobody_has_received_cannot_be_used() -> None:
    async def program(model: Model) -> Model:
        await model.send(1 - model.rank, weight(model))
        model.weights[0] = model.dist.queue[model.rank, 1 - model.rank].sent[0].value
        model.forward(0, model.get_input_activation([0]), model.weights[0])
        return model

    with pytest.raises(mt.LawError, match="is a message on its way; receive it"):
        strict(program)


def test_a_result_is_used_after_its_operation_was_awaited() -> None:
    is_early = True

    async def looks_behind(model: Any) -> Any:
        weights, *_ = model.storage()
        weights["mine"], _ = model.load_weights(0, model.rank, model.world_size)
        gathered = model.launch(model.all_gather(weights["mine"], 0))
        await model.barrier(group=[model.rank])
        while not gathered._operation.settled:
            await asyncio.sleep(0)
        weights["whole"] = gathered._operation.outcome
        if is_early:
            model.forward(0, model.get_input_activation([0]), weights["whole"])
        await gathered
        model.forward(0, model.get_input_activation([0]), weights["whole"])
        return model

    with pytest.raises(mt.LawError, match=r"forward on rank \d: Weight\(.*nobody has awaited; await that"):
        mt.simulate(looks_behind, world_size=2, num_layers=1, global_batch_size=1, strict=True, check=False)
    is_early = False
    mt.simulate(looks_behind, world_size=2, num_layers=1, global_batch_size=1, strict=True, check=False)
