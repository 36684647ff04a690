"""The lines of a strategy that a strict run names are right, whatever functions of the engine call one another."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model
from minitrain.run.strict import buffers
from minitrain.run.strict.observer import StrictAccounting

_ENGINE_FILE = str(Path(inspect.getfile(mt)).parent / "rank" / "a_helper.py")


def with_helpers(function: Callable[..., Any], num_helpers: int) -> Callable[..., Any]:
    """Return a function that calls another one through helper functions which count as the engine's."""
    for _ in range(num_helpers):
        code = compile("lambda *args, **named: inner(*args, **named)", _ENGINE_FILE, "eval")
        function = eval(code, {"inner": function})
    return function


def line_after(function: Any, lines: int = 1) -> str:
    """Return a line of a function of this file, as errors name it."""
    assert isinstance(function, FunctionType)
    return f"test_strict_lines.py:{function.__code__.co_firstlineno + lines}"


def run(program: Callable[[Model], Awaitable[Any]], world_size: int = 1) -> mt.Run:
    sizes: dict[str, Any] = {"world_size": world_size, "num_layers": 2, "global_batch_size": 2, "check": False}
    return mt.simulate(program, strict=True, hardware=mt.FixedPredictor(), **sizes)


def made_at(tensor: Any) -> str:
    return str(tensor._origin.buffer.line)


@pytest.mark.parametrize("num_helpers", [0, 1, 4])
def test_helpers_between_strategy_and_engine_do_not_move_a_line(
    num_helpers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in (
        (buffers, "derive"),
        (StrictAccounting, "before"),
        (StrictAccounting, "after"),
    ):
        monkeypatch.setattr(owner, name, with_helpers(getattr(owner, name), num_helpers))

    async def program(model: Model) -> Model:
        weight, _ = model.load_weights(0)
        part = weight.shard(model.rank, 2)
        whole = await model.all_gather(part, 0)
        again = await model.launch(model.all_gather(part, 0))
        await model.send(1 - model.rank, weight)
        received = await model.receive(1 - model.rank)
        copy = part.combine(weight.shard(1 - model.rank, 2))
        places = map(made_at, (weight, part, whole, again, received, copy))
        assert list(places) == [line_after(program, number) for number in (1, 2, 3, 4, 6, 7)]
        return model

    run(program, world_size=2)


def test_a_strategy_that_calls_an_inner_function_itself_is_found_too() -> None:
    async def program(model: Any) -> Model:
        weight, _ = model.load_weights(0)
        part = weight.shard(model.rank, 2)
        work = model._collective("all_gather", part, 0, None)
        if model.rank == 0:  # the other one comes later and takes the result away
            assert str(model._meter.submitted[work.row]) == line_after(program, 3)
        await work
        return model  # type: ignore[no-any-return]

    run(program, world_size=2)
