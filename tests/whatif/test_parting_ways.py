"""A strategy that looks at clocks is noticed, and its figures are those of separate simulations all the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import minitrain as mt

_SIZES: dict[str, Any] = {"world_size": 2, "num_layers": 2, "global_batch_size": 2}
_SPEEDS: dict[str, Any] = {"mem2.GBps": [225.0, 450.0, 450.0, 900.0]}
_DDP = mt.strategies()["ddp"]


def looking(look: Callable[[mt.Model], int]) -> Any:
    """Return a strategy that loads a weight as often as a look at its clock says, and then trains."""

    async def strategy(model: mt.Model) -> mt.StrategyModel:
        weights, opt_states, *_ = model.storage()
        weights[0], opt_states[0] = model.load_weights(0)
        for _ in range(look(model)):
            weights[1], opt_states[1] = model.load_weights(0)
        for key in list(weights):
            del weights[key], opt_states[key]
        trained: mt.StrategyModel = await _DDP(model)
        return trained

    return strategy


def swallowed(model: mt.Model) -> int:
    """Look at a clock and catch whatever that raises."""
    try:
        return int(model.time * 1e5)
    except Exception:
        return 3


LOOKS: dict[str, Callable[[mt.Model], int]] = {
    "less": lambda model: 2 if model.time < 5e-5 else 1,
    "float": lambda model: int(float(model.time) * 1e5),
    "int": lambda model: int(model.time * 1e5),
    "equal": lambda model: 1 if model.time == 0 else 2,
    "max": lambda model: 2 if max(model.time, 5e-5) == 5e-5 else 1,
    "text": lambda model: len(f"{model.time:.3g}"),
    "hash": lambda model: len({model.time, 7.5e-05}),
    "floor": lambda model: math.floor(model.time * 1e5),
    "root": lambda model: int(math.sqrt(model.time) * 1e3),
    "round": lambda model: round(model.time * 1e5),
    "difference": lambda model: 1 if (model.time - 1e-5) / 2 > 2e-5 else 2,
    "swallowed": swallowed,
    "log": lambda model: 1 if model.log[0].duration > 5e-5 else 2,
    "price": lambda model: 1 if model.runtime_predictor.load(1, 1).seconds > 5e-5 else 2,
}


@pytest.mark.few(3)
@pytest.mark.parametrize("look", LOOKS.values(), ids=list(LOOKS))
def test_machines_on_which_a_look_at_a_clock_differs_are_executed_apart(look: Callable[[mt.Model], int]) -> None:
    priced = mt.price(looking(look), vary=_SPEEDS, **_SIZES)
    assert priced.summary() == [run.summary() for run in priced]
    assert priced.step_time[1] == priced.step_time[2]


@pytest.mark.parametrize("name", ["less", "float", "text", "swallowed"])
def test_a_note_says_why_machines_were_executed_apart(name: str) -> None:
    priced = mt.price(looking(LOOKS[name]), vary=_SPEEDS, **_SIZES)
    assert len(priced.notes) == 1
    assert "machines were executed" in priced.notes[0]
    assert "(test_parting_ways.py:" in priced.notes[0]


def test_a_strategy_that_looks_at_nothing_runs_once() -> None:
    asked = []

    def look(model: mt.Model) -> int:
        asked.append(model.rank)
        return 1

    priced = mt.price(looking(look), vary=_SPEEDS, **_SIZES)
    assert priced.notes == ()
    assert len(asked) == _SIZES["world_size"]


def test_a_clock_that_is_set_is_that_of_separate_simulations() -> None:
    def look(model: mt.Model) -> int:
        model.time = 1.0
        return 1

    priced = mt.price(looking(look), vary=_SPEEDS, **_SIZES)
    assert priced.summary() == [run.summary() for run in priced]
    assert "clocks are not those of the operations" in priced.notes[0]
