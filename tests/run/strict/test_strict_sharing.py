"""Tensors that share a buffer in a strict run: which of them may be used, and what counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model

H2 = 4096**2


def strict(program: Callable[[Model], Awaitable[Any]], world_size: int = 1) -> mt.Run:
    sizes: dict[str, Any] = {"world_size": world_size, "num_layers": 1, "global_batch_size": 4, "check": False}
    return mt.simulate(program, strict=True, hardware=mt.FixedPredictor(), **sizes)


def ledger(model: Model) -> Any:
    return model._meter


def gradient(model: Model, samples: list[int]) -> Any:
    """Return the gradient of the only layer, and leave the stores with its weight and state alone."""
    if 0 not in model.weights:
        model.weights[0], model.opt_states[0] = model.load_weights(0)
    model.activations[0] = model.get_input_activation(samples)
    model.grad_activations[0] = model.loss(model.forward(0, model.activations[0], model.weights[0]))
    grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
    del model.activations[0], model.grad_activations[0]
    return grad


def test_what_was_added_stays_usable_until_the_sum_is_overwritten() -> None:
    async def program(model: Model) -> Model:
        left = gradient(model, [2 * model.rank])
        total = left + gradient(model, [2 * model.rank + 1])
        again = left + gradient(model, [3 - 2 * model.rank])
        assert again.samples == {2 * model.rank, 3 - 2 * model.rank}
        reduced = await model.all_reduce(left, 0)
        for stale in (left, total, again):
            with pytest.raises(mt.LawError, match=r"was overwritten by all_reduce at test_strict_sharing.py:\d+"):
                stale.shard(0, 2)
        assert reduced.shard(0, 2).samples == {0, 2}
        return model

    strict(program, world_size=2)


def test_a_shard_that_is_cut_twice_is_one_buffer() -> None:
    async def program(model: Model) -> Model:
        grad = gradient(model, [0, 1, 2, 3])
        weight, state = model.weights.pop(0), model.opt_states.pop(0)
        first, second = weight.shard(0, 2), weight.shard(0, 2)
        new, _ = model.update(0, grad, second, state.shard(0, 2))
        for stale in (first, second, weight):
            with pytest.raises(mt.LawError, match=r"was overwritten by update at test_strict_sharing.py:\d+"):
                model.set_final_weight(0, stale)
        model.set_final_weight(0, new)
        del weight, first, second, stale, grad, state, _
        assert ledger(model).units == H2 / 2 * 2**40
        return model

    strict(program)


def test_a_bucket_may_bring_a_gradient_twice() -> None:
    async def program(model: Model) -> Model:
        grad = gradient(model, [model.rank])
        before = ledger(model).units
        first, second = await model.all_reduce([grad, grad], 0)
        assert ledger(model).units == before
        assert first + gradient(model, [2 + model.rank]) != second
        return model

    strict(program, world_size=2)


def test_cutting_again_and_again_leaves_nothing_behind() -> None:
    async def program(model: Model) -> Model:
        weight, _ = model.load_weights(0)
        for shard in range(100):
            weight.shard(shard % 4, 4)
        assert len(weight._origin.views) <= 1
        return model

    strict(program)


def test_a_store_that_refuses_a_key_holds_nothing() -> None:
    async def program(model: Model) -> Model:
        weight, _ = model.load_weights(0)
        with pytest.raises(TypeError, match="unhashable"):
            model.weights[[0]] = weight
        assert (ledger(model).stored, model.memory()) == (0, 0)
        return model

    strict(program)
