"""A sum for one rank: in time, memory, laws, numbers, grades and on real processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import minitrain as mt
from minitrain.learn.recorder import Recorder
from minitrain.learn.replay import replayed
from minitrain.machine.given_durations import FixedPredictor
from minitrain.operations.collectives import COLLECTIVES, all_gather, at_root

simulate: Any = mt.simulate
prove: Any = mt.prove
SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 3, "global_batch_size": 8}


async def served(model: Any, launched: bool = False) -> Any:
    """Let each rank update some of the layers, by the gradients of all, and give the weights to all."""
    layers, works = range(model.num_layers), {}
    for k in layers:
        model.weights[k], model.opt_states[k] = model.load_weights(k)
        if k % model.world_size != model.rank:
            del model.opt_states[k]
    model.activations[0] = model.get_input_activation(model.samples_of_rank())
    for k in layers:
        model.activations[k + 1] = model.forward(k, model.activations[k], model.weights[k])
    model.grad_activations[0] = model.loss(model.activations.pop(model.num_layers))
    for k in reversed(layers):
        made = model.backward(k, model.activations[k], model.grad_activations[0], model.weights[k])
        model.grad_weights[k], model.grad_activations[0] = made
        del model.activations[k], made
        total = model.reduce(model.grad_weights[k], k % model.world_size, k)
        works[k] = model.launch(total) if launched else done(await total)
        del total
    for k in layers:
        total = await works.pop(k)
        del model.grad_weights[k]
        if total is not None:
            model.grad_weights[k] = total
            made = model.update(k, model.grad_weights.pop(k), model.weights[k], model.opt_states[k])
            model.weights[k], model.opt_states[k] = made
            del made
        del total
        model.weights[k] = await model.broadcast(model.weights[k], k % model.world_size, k)
        model.set_final_weight(k, model.weights[k])
    return model


async def served_together(model: Any, launched: bool = False) -> Any:
    """Let rank 1 update all layers, by the gradients of all in one bucket, and give the weights to all in another."""
    layers = list(range(model.num_layers))
    for k in layers:
        model.weights[k], model.opt_states[k] = model.load_weights(k)
    model.activations[0] = model.get_input_activation(model.samples_of_rank())
    for k in layers:
        model.activations[k + 1] = model.forward(k, model.activations[k], model.weights[k])
    model.grad_activations[0] = model.loss(model.activations.pop(model.num_layers))
    for k in reversed(layers):
        made = model.backward(k, model.activations[k], model.grad_activations[0], model.weights[k])
        model.grad_weights[k], model.grad_activations[0] = made
        del made
    total = model.reduce([model.grad_weights.pop(k) for k in layers], 1)
    sums = await (model.launch(total) if launched else total)
    for k in layers if model.rank == 1 else ():
        model.grad_weights[k] = sums[k]
        made = model.update(k, model.grad_weights[k], model.weights[k], model.opt_states[k])
        model.weights[k], model.opt_states[k] = made
    assert model.rank == 1 or sums == [None] * len(layers)
    del sums, total
    whole = await model.broadcast([model.weights[k] for k in layers] if model.rank == 1 else None, 1)
    for k in layers:
        model.weights[k] = whole[k]
        model.set_final_weight(k, model.weights[k])
    return model


@pytest.mark.parametrize("launched", [False, True])
def test_each_tensor_of_a_bucket_is_summed_for_the_root(launched: bool) -> None:
    run = simulate(served_together, launched=launched, **SIZES)
    one = simulate(served, **{**SIZES, "num_layers": 1})
    assert sum(event.typ == "reduce" for event in run.events) == 4
    assert next(event.size_bytes for event in run.events if event.typ == "reduce") == 3 * next(
        event.size_bytes for event in one.events if event.typ == "reduce"
    )
    assert simulate(served_together, launched=launched, strict=True, **SIZES).step_time == run.step_time
    assert prove(served_together, launched=launched, **SIZES).largest < 1e-12


async def done(value: Any) -> Any:
    """Return a value when awaited."""
    return value


def seconds(run: mt.Run) -> dict[str, float]:
    """Return how long an operation of each type takes."""
    return {event.typ: event.end - event.time for event in run.events}


def test_it_takes_as_long_as_the_broadcast_of_as_many_bytes() -> None:
    mine = seconds(simulate(served, **SIZES))
    assert mine["reduce"] == pytest.approx(mine["broadcast"])
    assert mine["reduce"] < seconds(simulate("ddp", **SIZES))["all_reduce"]
    assert seconds(simulate(served, hardware=FixedPredictor(reduce=7.0), **SIZES))["reduce"] == pytest.approx(7)


@pytest.mark.parametrize("launched", [False, True])
def test_all_lives_agree(launched: bool) -> None:
    plain = simulate(served, launched=launched, **SIZES)
    for way in ({"strict": True}, {"log": "summary"}):
        run = simulate(served, launched=launched, **way, **SIZES)
        assert run.last_clock == plain.last_clock
    assert max(prove(served, launched=launched, **SIZES).differences.values()) < 1e-12
    recorder = Recorder()
    simulate(served, launched=launched, strict=True, observers=[recorder], **SIZES)
    again = simulate(replayed(recorder.programs, "served"), **SIZES)
    assert [event.typ for event in again.events] == [event.typ for event in plain.events]
    assert again.last_clock == plain.last_clock


def test_real_processes_sum_at_the_root() -> None:
    pytest.importorskip("torch")
    sizes: dict[str, Any] = {**SIZES, "world_size": 2, "steps": 3, "dtype": "float64", "force": True}
    losses = [mt.train(strategy, **sizes).losses for strategy in (served, served_together, "ddp")]
    assert losses[0] == pytest.approx(losses[2], rel=1e-12)
    assert losses[1] == pytest.approx(losses[2], rel=1e-12)


def test_real_processes_refuse_a_collective_by_name_that_they_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = pytest.importorskip("minitrain.training.wire", reason="torch is not installed")
    require_known = pytest.importorskip("minitrain.training.ranks").require_known
    require_known([*COLLECTIVES, "forward"])
    monkeypatch.delattr(wire.Started, "_reduce")  # what a root alone gets, all may get
    require_known(COLLECTIVES)
    monkeypatch.delattr(wire.Started, "_barrier")
    with pytest.raises(mt.MinitrainError, match="real processes have no barrier; leave it out"):
        require_known(COLLECTIVES)


def test_ranks_name_one_root_of_their_group() -> None:
    async def other_roots(model: Any) -> Any:
        weight, _ = model.load_weights(0)
        await model.reduce(weight, model.rank)
        return model

    async def no_member(model: Any) -> Any:
        await model.reduce(model.load_weights(0)[0], 3, group=[model.rank])
        return model

    async def nothing(model: Any) -> Any:
        await model.reduce(None, 0)
        return model

    sizes = {**SIZES, "world_size": 2, "check": False}
    for strategy, message in (
        (other_roots, "reduce"),
        (no_member, "the destination of a reduce must be in the group"),
        (nothing, "needs a tensor, got None"),
    ):
        with pytest.raises(mt.MinitrainError, match=message):
            simulate(strategy, **sizes)


def test_what_was_reduced_is_used_up() -> None:
    async def uses_it_again(model: Any) -> Any:
        model.weights[0], model.opt_states[0] = model.load_weights(0)
        model.activations[0] = model.get_input_activation([model.rank])
        model.grad_activations[0] = model.loss(model.forward(0, model.activations[0], model.weights[0]))
        grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
        model.grad_weights[0] = grad
        await model.reduce(grad, 1, 0)
        if model.rank == 0:
            await model.reduce(grad, 0, 0, group=[0])
        return model

    sizes: dict[str, Any] = {"world_size": 2, "num_layers": 1, "global_batch_size": 2, "check": False}
    with pytest.raises(mt.LawError, match="overwritten"):
        simulate(uses_it_again, strict=True, **sizes)


async def gathered(model: Any, bucket: bool = False, launched: bool = False, dest: int = 1, whole: bool = True) -> Any:
    """Put the shards of weights together on one rank, by the record of `reduce`, and give them to all."""
    layers = range(model.num_layers)
    for k in layers:
        weight, _ = model.load_weights(k)
        model.weights[k] = weight.shard(model.rank if whole else 0, model.world_size)
        del weight
    for given in [layers] if bucket else [[k] for k in layers]:
        shards = [model.weights[k] for k in given]
        operation = model.reduce(shards if bucket else shards[0], dest, given[0])
        made = await (model.launch(operation) if launched else operation)
        del shards, operation
        whole_weights = await model.broadcast(made if model.rank == dest else None, dest, given[0])
        del made
        for k, weight in zip(given, whole_weights if bucket else [whole_weights], strict=True):
            model.weights[k] = weight
        del whole_weights, weight
    return model


@pytest.fixture
def gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `reduce` be another collective with a root, which has a record alone: it gathers."""
    record = replace(COLLECTIVES["reduce"], law=at_root(all_gather), gives="union", priced_by="result")
    monkeypatch.setitem(COLLECTIVES, "reduce", replace(record, to_root="all_gather"))


@pytest.mark.usefixtures("gather")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("launched", [False, True])
def test_a_record_is_all_that_another_collective_with_a_root_needs(launched: bool, strict: bool) -> None:
    sizes: dict[str, Any] = {**SIZES, "check": False, "strict": strict}
    single, bucket = (simulate(gathered, bucket=each, launched=launched, **sizes) for each in (False, True))
    for run, count in ((single, 1), (bucket, SIZES["num_layers"])):
        sent = {event.typ: event.size_bytes for event in run.events}
        assert sent["reduce"] == sent["broadcast"] == count * 4096**2 * 2
        assert seconds(run)["reduce"] == pytest.approx(seconds(run)["broadcast"])


@pytest.mark.usefixtures("gather")
def test_what_a_root_gathers_must_be_whole() -> None:
    with pytest.raises(mt.CollectiveMismatchError, match="must together bring every shard"):
        simulate(gathered, whole=False, check=False, **SIZES)
