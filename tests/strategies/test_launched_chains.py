"""An all_reduce in three launched operations, one network tier after the other, beside the backward pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import TensorTypeError
from minitrain.learn.recorder import Recorder
from minitrain.learn.replay import replayed
from minitrain.machine import load_config
from minitrain.run.folding.expansion import FoldedRun
from minitrain.tensors import HIDDEN_SIZE
from tests.folded_runs import require_identical
from tests.whatif.test_price import require_equal_to_separate

H100 = load_config("h100_80g_nvl8")
WEIGHT_BYTES = 2 * HIDDEN_SIZE**2
SIZES: dict[str, Any] = {"world_size": 16, "num_layers": 6, "hardware": H100, "network": "hierarchical"}


async def forward_and_loss(model: mt.Model) -> None:
    """Load the weights, and take this rank's samples as far as the loss."""
    share = model.global_batch_size // model.world_size
    samples = mt.span(model.rank * share, (model.rank + 1) * share)
    model.activations[0] = model.get_input_activation(samples)
    for k in range(model.num_layers):
        model.weights[k], model.opt_states[k] = model.load_weights(k)
        model.activations[k + 1] = model.forward(k, model.activations[k], model.weights[k])
    model.grad_activations["here"] = model.loss(model.activations.pop(model.num_layers))


def backward(model: mt.Model, k: int) -> Any:
    """Take the gradient back through a layer, and return that of its weight."""
    grad, model.grad_activations["here"] = model.backward(
        k, model.activations[k], model.grad_activations["here"], model.weights[k]
    )
    del model.activations[k]
    return grad


def update(model: mt.Model, k: int, grad: Any) -> None:
    model.weights[k], model.opt_states[k] = model.update(k, grad, model.weights[k], model.opt_states[k])
    model.set_final_weight(k, model.weights[k])


async def staged(model: mt.Model) -> mt.Model:
    """Take each gradient one operation further with each layer that is computed."""
    mesh = model.mesh(outer=2, inner=model.world_size // 2)
    inner, outer = mesh.group("inner"), mesh.group("outer")
    await forward_and_loss(model)
    works: dict[int, Any] = {}
    for k in range(model.num_layers - 1, -3, -1):
        grad = backward(model, k) if k >= 0 else None
        if k + 2 in works:
            works[k + 2] = model.launch(model.all_gather(await works[k + 2], k + 2, group=inner))
        if k + 1 in works:
            works[k + 1] = model.launch(model.all_reduce(await works[k + 1], k + 1, group=outer))
        if k >= 0:
            works[k] = model.launch(model.reduce_scatter(grad, k, group=inner))
    for k in reversed(range(model.num_layers)):
        update(model, k, await works.pop(k))
    return model


async def one_by_one(model: mt.Model) -> mt.Model:
    """Await each operation at once."""
    mesh = model.mesh(outer=2, inner=model.world_size // 2)
    inner, outer = mesh.group("inner"), mesh.group("outer")
    await forward_and_loss(model)
    for k in reversed(range(model.num_layers)):
        shard = await model.reduce_scatter(backward(model, k), k, group=inner)
        shard = await model.all_reduce(shard, k, group=outer)
        update(model, k, await model.all_gather(shard, k, group=inner))
    return model


def link_times() -> list[float]:
    """Return the times of a reduce_scatter in a node, an all_reduce of a shard across nodes, and an all_gather, s."""
    node, rack = H100.networks
    return [
        node.time("reduce_scatter", WEIGHT_BYTES, 8),
        rack.time("all_reduce", WEIGHT_BYTES / 8, 2),
        node.time("all_gather", WEIGHT_BYTES, 8),
    ]


def last_backward_end(run: mt.Run) -> float:
    return max(event.end for event in run.logs[0] if event.typ == "backward")


def test_a_chain_awaited_at_once_takes_the_sum_of_its_tiers() -> None:
    run = mt.simulate(one_by_one, **SIZES, global_batch_size=512)
    assert sum(run.breakdown.exposed[:1]) == pytest.approx(6 * sum(link_times()), rel=1e-12)


def test_a_staged_chain_hides_behind_computing_but_for_its_last_two_layers() -> None:
    run = mt.simulate(staged, **SIZES, global_batch_size=512)
    scatter, reduce, gather = link_times()
    backwards = [event for event in run.logs[0] if event.typ == "backward"]
    assert all(event.duration > gather + scatter and event.duration > reduce for event in backwards)
    assert all(after.time == before.end for before, after in pairwise(backwards))
    end = max(event.end for event in run.logs[0] if event.typ == "all_gather")
    left = max(reduce, gather + scatter) + max(reduce, gather) + gather
    assert end == pytest.approx(last_backward_end(run) + left, rel=1e-12)


@pytest.mark.parametrize("batch", [16, 64, 512])
def test_staging_is_never_slower_than_awaiting_at_once(batch: int) -> None:
    staged_run, awaited = (mt.simulate(strategy, **SIZES, global_batch_size=batch) for strategy in (staged, one_by_one))
    assert staged_run.step_time < awaited.step_time


def test_a_staged_chain_is_proven() -> None:
    assert mt.prove(staged, world_size=4, num_layers=4, global_batch_size=8)


def test_a_staged_chain_folds() -> None:
    assert isinstance(require_identical(staged, **SIZES, global_batch_size=64), FoldedRun)


async def handed_on(model: mt.Model) -> mt.Model:
    """Launch each chain at once, whose operations take the results of those before them."""
    mesh = model.mesh(outer=2, inner=model.world_size // 2)
    inner, outer = mesh.group("inner"), mesh.group("outer")
    await forward_and_loss(model)
    works: dict[int, Any] = {}
    for k in reversed(range(model.num_layers)):
        shard = model.launch(model.reduce_scatter(backward(model, k), k, group=inner))
        total: Any = model.launch(model.all_reduce(shard, k, group=outer))
        works[k] = model.launch(model.all_gather(total, k, group=inner))
    for k in reversed(range(model.num_layers)):
        update(model, k, await works.pop(k))
    return model


@pytest.mark.parametrize("batch", [16, 64, 512])
def test_handing_results_on_never_blocks_and_is_faster_than_awaiting_at_once(batch: int) -> None:
    run, awaited = (mt.simulate(strategy, **SIZES, global_batch_size=batch) for strategy in (handed_on, one_by_one))
    assert run.step_time < awaited.step_time
    backwards = [event for event in run.logs[0] if event.typ == "backward"]
    assert all(after.time == before.end for before, after in pairwise(backwards))
    assert [model.final_weights for model in run.models] == [model.final_weights for model in awaited.models]


def test_chains_of_one_group_do_not_pass_one_another() -> None:
    run = mt.simulate(handed_on, **SIZES, global_batch_size=16)
    begun = {(event.typ, event.layer): event for event in run.logs[0]}
    for k in range(5):
        assert begun["reduce_scatter", k].time == begun["all_gather", k + 1].end
    total = 6 * sum(link_times())
    assert begun["all_gather", 0].end == pytest.approx(begun["reduce_scatter", 5].time + total, rel=1e-12)


def test_a_chain_of_handed_on_results_is_proven() -> None:
    assert mt.prove(handed_on, world_size=4, num_layers=4, global_batch_size=8)


@pytest.mark.parametrize("network", ["flat", "hierarchical"])
def test_a_chain_of_handed_on_results_folds(network: str) -> None:
    sizes = {**SIZES, "network": network}
    assert isinstance(require_identical(handed_on, **sizes, global_batch_size=64), FoldedRun)


def test_chains_of_ranks_that_meet_other_classes_fold() -> None:
    """A pipeline of two stages keeps its stages apart: the later stage's chains wait for messages."""

    async def strategy(model: mt.Model) -> mt.Model:
        mesh = model.mesh(stage=2, outer=2, inner=2)
        shard = mesh.group("inner").index
        piece = model.load_weights(0, shard, 2)[0]
        if mesh.coord("stage") == 0:
            await model.launch(model.send(mesh.peer("stage", 1), piece))  # type: ignore[arg-type]  # there is one
            return model
        coming = model.launch(model.receive(mesh.peer("stage", -1)))  # type: ignore[arg-type]  # likewise
        whole: Any = model.launch(model.all_gather(coming, 0, group=mesh.group("inner")))
        own = model.launch(model.all_gather(piece, 0, group=mesh.group("inner")))
        model.load_weights(1)
        await own
        model.weights[0] = await whole
        return model

    sizes: dict[str, Any] = {"world_size": 8, "num_layers": 4, "global_batch_size": 8, "check": False}
    run = require_identical(strategy, **sizes)
    assert isinstance(run, FoldedRun)
    assert [event.after for event in run.logs[7]] == [(), (), (1,), (), ()]


def test_a_chain_of_handed_on_results_is_priced_on_many_machines_as_on_each() -> None:
    sizes: dict[str, Any] = {"world_size": 16, "num_layers": 6, "global_batch_size": 64}
    vary: dict[str, Any] = {
        "hardware": ["h100_80g_nvl8", "a100_80g", "h100_80g_nvl8"],
        "networks[0].bandwidth": [450.0, 300.0, 9.0],
    }
    for fold in (False, True):
        require_equal_to_separate(mt.price(handed_on, vary=vary, **sizes, fold=fold))


def test_a_chain_of_handed_on_results_is_graded_as_it_ran() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 8, "strict": True}
    recorder = Recorder()
    run = mt.simulate(handed_on, **sizes, observers=[recorder])
    again = mt.simulate(replayed(json.loads(json.dumps(recorder.programs)), "again"), **sizes, numerics="numpy")
    events = [[(event.typ, event.time, event.memory, event.after) for event in one.events] for one in (run, again)]
    assert events[0] == events[1]
    assert again.peak_memory_per_rank == run.peak_memory_per_rank


def test_a_chain_of_handed_on_results_is_the_same_run_strict_and_as_totals() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 8}
    run, strict, totals = (mt.simulate(handed_on, **sizes, **how) for how in ({}, {"strict": True}, {"log": "summary"}))
    assert [event.time for event in strict.events] == [event.time for event in run.events]
    assert (totals.step_time, totals.peak_memory_per_rank) == (run.step_time, run.peak_memory_per_rank)


NOT_TENSORS: dict[str, Callable[[mt.Model, Any], Any]] = {
    "forward": lambda model, work: model.forward(0, model.get_input_activation([0]), work),
    "a store": lambda model, work: model.grad_weights.update({0: work}),
    "offload": lambda model, work: model.launch(model.offload(work)),
}


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("taker", NOT_TENSORS)
def test_only_communication_takes_a_launched_operation_for_its_result(taker: str, fold: bool) -> None:
    async def strategy(model: mt.Model) -> mt.Model:
        await forward_and_loss(model)
        NOT_TENSORS[taker](model, model.launch(model.all_reduce(backward(model, model.num_layers - 1), 0)))
        return model

    with pytest.raises(TensorTypeError, match="got Launched"):
        mt.simulate(strategy, world_size=4, num_layers=2, global_batch_size=4, fold=fold)
