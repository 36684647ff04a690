"""Every `model` satisfies `StrategyModel`, what a strategy may use of it: by names, parameters, and mypy."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.engine.model import Model, watched
from minitrain.engine.strategy_model import StrategyModel
from minitrain.operations.collectives import COLLECTIVES
from minitrain.operations.computations import COMPUTATIONS
from minitrain.run.folding.model import FoldedModel

USED = {name for name in (*dir(StrategyModel), *StrategyModel.__annotations__) if not name.startswith("_")}
OF_FINISHED_RANKS = {
    "check",
    "dist",
    "dropped_copies",
    "final_experts",
    "has_tied",
    "written",
    "final_locals",
    "final_weights",
    "holds",
    "log",
    "log_event",
    "memory_by_store",
    "memory_journal",
    "parts_of_loss",
    "pass_modes",
    "peak_by_kind",
    "peak_host_bytes",
    "peak_memory",
    "recomputed_flop",
    "routed_copies",
    "runtime_predictor",
    "status",
}
KINDS: dict[str, Callable[..., Model]] = {"plain": Model, "watched": watched(Model), "folded": FoldedModel}
STRATEGIES = Path(mt.strategies()["ddp"].__code__.co_filename).parent


def test_what_a_model_offers_is_what_a_strategy_may_use_or_is_to_be_read_of_finished_ranks() -> None:
    assert not USED & OF_FINISHED_RANKS
    assert set(dir(Model(num_layers=1))) == USED | OF_FINISHED_RANKS


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_has_the_methods_with_the_same_parameters(kind: str) -> None:
    for name in sorted(USED - StrategyModel.__annotations__.keys()):
        stated, found = getattr(StrategyModel, name), getattr(KINDS[kind], name)
        if isinstance(stated, property):
            assert isinstance(found, property), name
            continue
        parameters = [(each.name, each.kind, each.default) for each in inspect.signature(stated).parameters.values()]
        own = [(each.name, each.kind, each.default) for each in inspect.signature(found).parameters.values()]
        assert own == parameters or own[-1][1] is inspect.Parameter.VAR_KEYWORD, name
        assert inspect.iscoroutinefunction(found) == inspect.iscoroutinefunction(stated), name


def test_every_operation_that_has_a_record_is_a_strategys_to_use() -> None:
    assert {*COLLECTIVES, *COMPUTATIONS} <= USED


def used_of_models(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "model":
            yield node.attr


def test_shipped_strategies_use_nothing_else_of_a_model() -> None:
    used = {name for path in STRATEGIES.glob("*.py") for name in used_of_models(path)}
    assert len(used) > 30
    assert used <= USED


async def what_type_checkers_see(model: Model, folded: FoldedModel, other: object) -> None:
    """Is read by mypy and never run: an ignored error that is none is an error there."""

    async def of_the_protocol(model: StrategyModel) -> None:
        weight, state = model.load_weights(0, model.rank, model.world_size)
        model.weights[0] = await model.all_gather(weight, 0)
        await model.all_reduce(weight, "0")  # type: ignore
        model.log_event("forward")  # type: ignore
        await model.launch(model.send(1, state))

    await of_the_protocol(model)
    await of_the_protocol(folded)
    await of_the_protocol(other)  # type: ignore


async def annotated(model: mt.StrategyModel) -> mt.StrategyModel:
    state: Any
    weight, state = model.load_weights(0)
    model.weights[0], model.opt_states[0] = weight, state
    model.activations[0] = model.get_input_activation(range(model.global_batch_size))
    model.activations[1] = model.forward(0, model.activations[0], model.weights[0])
    model.grad_activations[0] = model.loss(model.activations.pop(1))
    model.grad_weights[0], _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
    model.weights[0], model.opt_states[0] = model.update(0, model.grad_weights[0], weight, state)
    model.set_final_weight(0, model.weights[0])
    return model


def test_a_strategy_may_be_annotated_with_the_protocol() -> None:
    assert mt.simulate(annotated, world_size=1, num_layers=1, global_batch_size=2).step_time > 0
