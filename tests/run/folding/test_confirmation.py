"""Ranks of a folded run that are executed in full: they agree, or the run is refused with what differs."""

from __future__ import annotations

import functools
import itertools
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest

import minitrain as mt
from minitrain.run.folding import driver
from minitrain.run.folding import model as folded_model

SIZES: dict[str, Any] = {"world_size": 16, "num_layers": 32, "global_batch_size": 64}


@pytest.fixture
def of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let shipped strategies count as one's own, and note the ranks that are executed."""
    executed: list[int] = []
    confirm_rank = driver._confirm_rank

    async def noted(prepared: Any, run: Any, of_class: Any, rank: int) -> None:
        executed.append(rank)
        await confirm_rank(prepared, run, of_class, rank)

    for module in (driver, folded_model):
        monkeypatch.setattr(module, "is_shipped", lambda _: False)
    monkeypatch.setattr(driver, "_confirm_rank", noted)
    return executed


@pytest.mark.few(8)
@pytest.mark.parametrize("name", sorted(mt.strategies()))
def test_ranks_of_every_shipped_strategy_do_what_their_class_does(name: str, of_somebody_else: list[int]) -> None:
    if name == "single":
        pytest.skip("has one rank")
    run = mt.simulate(name, world_size=8, num_layers=16, global_batch_size=32, fold=True)
    assert {0, 7} <= set(of_somebody_else) <= set(range(8))
    assert not run.is_folded or set(run.representatives) <= set(of_somebody_else)  # type: ignore[attr-defined]  # of a folded run


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("megatron", {"tp": 4, "pp": 2, "workload": "tiny"}),
        ("megatron", {"tp": 2, "sequence_parallel": True, "workload": "tiny", "memory_by_kind": True}),
        ("megatron", {"tp": 2, "cp": 2, "recompute": "full", "workload": "llama3-8b", "global_batch_size": 16}),
        ("megatron", {"tp": 4, "pp": 2, "recompute": "selective", "workload": "mixtral-8x7b", "global_batch_size": 16}),
        ("fsdp", {"replicas": 4, "workload": "tiny", "steps": 3}),
        ("moe", {"workload": "mixtral-8x7b", "world_size": 8, "global_batch_size": 8}),
        ("pp_hsdp", {"pp": 4, "strict_memory": True}),
    ],
)
def test_real_models_too(name: str, options: dict[str, Any], of_somebody_else: list[int]) -> None:
    sizes = {key: value for key, value in SIZES.items() if key != "num_layers" or "workload" not in options}
    assert mt.simulate(name, **sizes | options, fold=True).is_folded
    assert len(of_somebody_else) >= 2


async def _train(model: mt.Model, again: bool = False, fewer: bool = False) -> mt.Model:
    """Train data parallel; with `again`, one forward is made twice; with `fewer`, one sample is enough."""
    size = model.global_batch_size // model.world_size
    begin = model.rank * size
    model.weights[0], model.opt_states[0] = model.load_weights(0)
    model.activations[0] = model.get_input_activation(mt.span(begin, begin + (1 if fewer else size)))
    for _ in range(2 if again else 1):
        model.activations[1] = model.forward(0, model.activations[0], model.weights[0])
    model.grad_activations[0] = model.loss(model.activations[1])
    model.grad_weights[0], _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
    model.grad_weights[0] = await model.all_reduce(model.grad_weights[0], 0)
    weight, _ = model.update(0, model.grad_weights[0], model.weights[0], model.opt_states[0])
    model.set_final_weight(0, weight)
    return model


def _counted() -> Callable[[mt.Model], Any]:
    count = itertools.count()

    async def counted(model: mt.Model) -> mt.Model:
        return await _train(model, again=next(count) > 0)

    return counted


def _counted_to_eight() -> Callable[[mt.Model], Any]:
    count = itertools.count()

    async def counted_to_eight(model: mt.Model) -> mt.Model:
        return await _train(model, again=next(count) > 8)

    return counted_to_eight


class _Turns:
    num_taken = 0


def _turn() -> int:
    _Turns.num_taken += 1
    return _Turns.num_taken


async def _takes_turns(model: mt.Model) -> mt.Model:
    async def train() -> mt.Model:
        return await _train(model, again=_turn() > 8)

    return await train()


class _Callable:
    def __init__(self) -> None:
        self.ranks = [lambda: None]  # which cannot be pickled
        self.num_ranks = 0

    async def __call__(self, model: mt.Model) -> mt.Model:
        self.num_ranks += 1
        return await _train(model, again=self.num_ranks > 8)


def _drawn() -> Callable[[mt.Model], Any]:
    source = random.Random(3)

    async def drawn(model: mt.Model) -> mt.Model:
        return await _train(model, again=source.random() < 0.5)

    return drawn


def _by_type() -> Callable[[mt.Model], Any]:
    async def by_type(model: mt.Model) -> mt.Model:
        return await _train(model, again=type(model.rank) is int)

    return by_type


def _other_collective() -> Callable[[mt.Model], Any]:
    async def other_collective(model: mt.Model) -> mt.Model:
        if isinstance(model.rank, int):
            await model.barrier()
        return await _train(model)

    return other_collective


def _other_gradient() -> Callable[[mt.Model], Any]:
    async def other_gradient(model: mt.Model) -> mt.Model:
        return await _train(model, fewer=isinstance(model.rank, int))

    return other_gradient


def _waits_for_a_rank() -> Callable[[mt.Model], Any]:
    async def waits_for_a_rank(model: mt.Model) -> mt.Model:
        if isinstance(model.rank, int):
            await model.receive((model.rank + 1) % model.world_size)
        return await _train(model)

    return waits_for_a_rank


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (_counted, "its event 2 is"),
        (_drawn, "its event"),
        (_by_type, "its event 2 is"),
        (_other_collective, "barrier of NoneType, where its class calls all_reduce"),
        (_other_gradient, "all_reduce of "),
        (_waits_for_a_rank, "receive from rank 1, which its class does not call"),
    ],
)
def test_a_strategy_that_is_another_one_on_other_ranks_is_refused(make: Any, told: str) -> None:
    with pytest.raises(mt.StrategyError, match=told) as refused:
        mt.simulate(make(), world_size=16, num_layers=1, global_batch_size=64, fold=True)
    assert "was executed by itself too" in str(refused.value)
    assert refused.value.rank in range(16)


@pytest.mark.parametrize(
    ("strategy", "shared"),
    [
        (_counted_to_eight(), "count"),
        (functools.partial(_counted_to_eight()), "count"),
        (_takes_turns, "num_taken"),
        (_Callable(), "num_ranks"),
    ],
)
def test_ranks_that_change_what_they_share_do_not_fold(strategy: Any, shared: str) -> None:
    with pytest.raises(mt.StrategyError, match=f"ranks share {shared} and have changed it"):
        mt.simulate(strategy, world_size=16, num_layers=1, global_batch_size=64, fold=True)


def test_a_counter_that_cannot_be_pickled_as_since_python_3_14_is_seen_to_count(monkeypatch: Any) -> None:
    monkeypatch.delattr(pickle, "dumps")
    with pytest.raises(mt.StrategyError, match="ranks share count and have changed it"):
        mt.simulate(_counted_to_eight(), world_size=16, num_layers=1, global_batch_size=64, fold=True)


def test_a_strategy_of_ones_own_that_does_the_same_everywhere_folds() -> None:
    sizes: dict[str, Any] = {"num_layers": 1, "global_batch_size": 4096}
    run = mt.simulate(_train, world_size=4096, **sizes, fold=True)
    assert run.is_folded
    assert run.step_time == mt.simulate("ddp", world_size=4096, **sizes).step_time
