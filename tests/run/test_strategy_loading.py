"""Finding strategies: functions, names, files; and what is said where there is none."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import StrategyError
from minitrain.lib import Model
from minitrain.run.strategy_loading import choose_strategy, load_strategy, split_options

ddp, one_f_one_b = mt.strategies()["ddp"], mt.strategies()["1f1b"]


async def mine(model: Model, microbatch_size: int | None = None) -> Model:
    return model


SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 16}


class Callable:
    async def __call__(self, model: Model) -> Model:
        return model


def not_async(model: Model) -> Model:
    return model


async def yields(model: Model) -> AsyncIterator[Model]:
    yield model


def test_a_strategy_may_be_a_function_a_partial_an_object_a_name_or_an_alias() -> None:
    assert load_strategy(mine) == ("mine", mine)
    assert load_strategy("ddp") == ("ddp", ddp)
    assert load_strategy("1f1b") == load_strategy("one_f_one_b") == load_strategy(one_f_one_b) == ("1f1b", one_f_one_b)
    assert load_strategy(Callable())[0] == "Callable"
    assert load_strategy(functools.partial(mine, microbatch_size=2))[0] == "mine"
    assert "one_f_one_b" not in mt.strategies()


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("zerro1", r"there is no strategy 'zerro1'; did you mean zero1\? use one of .*zero1.*, path.py:function, or a"),
        ("qqqq", r"there is no strategy 'qqqq'; use one of chimera, .*, path.py:function, or a"),
        ("nowhere.py:mine", "there is no strategy file nowhere.py; give path.py:function"),
        ("nowhere:mine", "there is no strategy 'nowhere:mine'"),
        (not_async, "a strategy must be an async function, `async def not_async.model.: ...`, got <function"),
        (yields, "must be an async function, .*; leave out its `yield`"),
        (7, "a strategy must be an async function, `async def int.model.: ...`, got 7"),
    ],
)
def test_what_is_no_strategy_is_refused(strategy: Any, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        load_strategy(strategy)


FILE = """
from __future__ import annotations
from dataclasses import dataclass
from minitrain.lib import Model

@dataclass
class Settings:
    size: int = 1

async def mine(model: Model, size: int = Settings().size) -> Model:
    return model

def plain(model): return model
"""


def test_a_strategy_can_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my strategies.py"
    path.write_text(FILE)
    name, function = load_strategy(f"{path}:mine")
    assert (name, function.__name__) == ("mine", "mine")
    run = mt.simulate(f"{path}:mine", world_size=2, num_layers=1, global_batch_size=2, check=False, options={"size": 3})
    assert (run.strategy, run.options) == ("mine", {"size": 3})


def test_a_strategy_of_a_file_may_be_a_schedule_that_it_makes_but_not_what_it_imports(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    made = "mine = mt.from_schedule(mt.schedules.gpipe(2, 2))"
    path.write_text(f"import minitrain as mt\nfrom minitrain.strategies.gpipe import gpipe\n{made}\n")
    name, function = load_strategy(str(path))
    assert (name, function.__name__) == ("mine", "gpipe")


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        (FILE, "yours", "has no function 'yours'; its async functions are mine"),
        ("x = 1", "mine", "has no function 'mine'; its async functions are none"),
        (FILE, "plain", "a strategy must be an async function, `async def plain"),
        ("1 / 0", "mine", "cannot be loaded: ZeroDivisionError: division by zero"),
        ("def (", "mine", "cannot be loaded: SyntaxError"),
        ("raise SystemExit(3)", "mine", "cannot be loaded: SystemExit: 3"),
        ("raise MemoryError", "mine", r"cannot be loaded: MemoryError \(line 1\)"),
        ("import nothing_of_that_name", "mine", "cannot be loaded: ModuleNotFoundError: No module named 'nothing_of"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, function: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(StrategyError, match=message):
        load_strategy(f"{path}:{function}")


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            mine,
            "^the strategy mine does not take layers=2; did you mean num_layers[?] its options are microbatch_size$",
        ),
        (
            "ddp",
            "^the strategy ddp does not take layers=2; did you mean num_layers[?] `minitrain strategies ddp` lists",
        ),
    ],
)
def test_options_that_the_strategy_does_not_take_are_refused(strategy: Any, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        mt.simulate(strategy, layers=2)  # type: ignore[call-arg]  # on purpose


def test_a_misspelt_parameter_of_simulate_is_recognised() -> None:
    with pytest.raises(StrategyError, match=r"model=.gpt2. and seq=4; did you mean workload and seq_len[?] "):
        mt.simulate("ddp", model="gpt2", seq=4)  # type: ignore[call-arg]
    with pytest.raises(StrategyError, match=r"does not take wrold_size=4; did you mean world_size\? "):
        mt.simulate("ddp", wrold_size=4)  # type: ignore[call-arg]
    with pytest.raises(StrategyError, match=r"does not take microbatch_sise=4; did you mean microbatch_size\? "):
        mt.simulate("ddp", microbatch_sise=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("pp_dp", {}),
        ("pp_dp:pp=4", {"pp": 4}),
        ("f.py:f:a=[1, 2],b='x,y',c=d=e", {"a": [1, 2], "b": "x,y", "c": "d=e"}),
        ("f.py:a=None , b = (1,(2,3))", {"a": None, "b": (1, (2, 3))}),
        ("C:/f.py:f:a=http://x", {"a": "http://x"}),
    ],
)
def test_options_after_a_name_are_read(text: str, options: dict[str, Any]) -> None:
    assert split_options(text) == (text.partition("=")[0].rpartition(":")[0] if options else text, options)


def test_a_chosen_strategy_can_be_called_and_chosen_again() -> None:
    chosen = choose_strategy("pp_dp:pp=4")
    assert choose_strategy(chosen) is chosen
    run = mt.simulate(chosen, world_size=4, num_layers=4, global_batch_size=8)
    assert (run.strategy, run.options) == ("pp_dp", {"pp": 4})
    assert mt.compare([mine, "ddp:microbatch_size=2"], world_size=2, num_layers=2, global_batch_size=4).succeeded


def test_a_strategy_with_options_keeps_its_closed_form() -> None:
    named = mt.compare("zb_h2:pp=2", **SIZES).succeeded[0]
    assert named.strategy == "zb_h2:pp=2"
    form, alone = named.explain().closed_form, mt.simulate("zb_h2:pp=2", **SIZES).explain().closed_form
    assert form is not None
    assert form == alone


def test_a_strategy_without_a_model_is_refused() -> None:
    async def alone() -> None: ...

    with pytest.raises(StrategyError, match="the strategy alone must take one argument, the model of a rank"):
        mt.simulate(alone)  # type: ignore[arg-type]
