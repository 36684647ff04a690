"""An all_reduce in three launched operations, one network tier after the other, beside the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import TensorTypeError
from minitrain.folding.run import FoldedRun
from minitrain.hardware import load_config
from minitrain.tensors import HIDDEN_SIZE
from tests.folded_runs import require_identical

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


def make_unawaited(op: str) -> Any:
    """Return a strategy that gives an operation the launched one before it."""

    async def strategy(model: mt.Model) -> mt.Model:
        await forward_and_loss(model)
        work: Any = model.launch(model.reduce_scatter(backward(model, model.num_layers - 1), 0))
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: model.all_reduce(work, 0),
            "all_gather": lambda: model.all_gather([work], 0),
            "all_to_all": lambda: model.all_to_all(work, 0),
            "broadcast": lambda: model.broadcast(work, model.rank, 0),
            "send": lambda: model.send((model.rank + 1) % model.world_size, work),
        }
        model.launch(calls[op]())
        return model

    return strategy


GIVEN = ["all_reduce", "all_gather", "all_to_all", "broadcast", "send"]
MODES: dict[str, dict[str, Any]] = {"full": {"fold": False}, "strict": {"strict": True}, "folded": {"fold": True}}
CASES = [(op, mode) for mode in MODES for op in (GIVEN if mode != "folded" else GIVEN[:3])]  # the others name ranks


@pytest.mark.parametrize(("op", "mode"), CASES)
def test_a_launched_operation_is_no_tensor_and_the_error_says_to_await_it(op: str, mode: str) -> None:
    expected = f"{op} on rank . needs a tensor, got the launched reduce_scatter: give it `await work`"
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 2, "global_batch_size": 4}
    with pytest.raises(TensorTypeError, match=expected):
        mt.simulate(make_unawaited(op), **sizes, **MODES[mode])
