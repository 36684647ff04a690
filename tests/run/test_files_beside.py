"""A strategy's file imports what lies beside it, as `python file.py` would, and nothing of it gets mixed up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.errors import StrategyError
from minitrain.run.strategy_loading import load_strategy, strategies_of_file

SIZES: dict[str, Any] = {"world_size": 2, "num_layers": 2, "global_batch_size": 4}
MINE = """
{imports}

async def mine(model):
    {within}
    return await {helper}.train(model)
"""
TRAIN = """
from minitrain.strategies import ddp

NUMBER = {number}

async def train(model):
    return await ddp(model)
"""


def write(folder: Path, number: int = 1, imports: str = "import helper", within: str = "pass") -> Path:
    """Write a strategy and its helper into a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "helper.py").write_text(TRAIN.format(number=number))
    path = folder / "mine.py"
    path.write_text(MINE.format(imports=imports, within=within, helper="helper"))
    return path


@pytest.mark.parametrize(
    ("imports", "within"),
    [
        ("import helper", "pass"),
        ("import math, helper, json", "math.pi, json.dumps"),
        ("import helper as other", "helper = other"),
        ("from helper import train, NUMBER as number", "import helper; assert number == 1; assert train"),
        ("", "import helper"),
        ("from __future__ import annotations\nimport parts.helper as helper", "pass"),
        ("import parts.helper\nfrom parts import helper", "assert parts.helper is helper"),
        ("import parts.helper", "helper = parts.helper"),
        ("from parts.second import helper", "pass"),
    ],
)
def test_a_file_beside_is_imported_in_every_way_that_python_knows(tmp_path: Path, imports: str, within: str) -> None:
    path = write(tmp_path, imports=imports, within=within)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("import helper\n")
    (tmp_path / "parts" / "helper.py").write_text("from helper import *\n")
    (tmp_path / "parts" / "second.py").write_text("from . import helper\nimport helper as outer\nimport parts\n")
    before = set(sys.modules), list(sys.path)
    run = mt.simulate(f"{path}:mine", **SIZES)
    assert run.step_time == mt.simulate("ddp", **SIZES).step_time
    assert not {"helper", "parts"} & (set(sys.modules) - before[0])
    assert sys.path == before[1]


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["run", "compare", "sweep", "prove"])
def test_every_command_takes_a_file_with_a_helper(tmp_path: Path, command: str) -> None:
    path = write(tmp_path / "folder", within="import helper")
    sizes = ["--layers", "2", "--batch", "8"]
    more = {"sweep": ["--grid", "world_size=1,2", *sizes], "prove": []}.get(command, [*sizes, "--no-trace"])
    result = CliRunner().invoke(app, [command, str(path), *more], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.stdout + result.stderr
    assert "0 failed" in result.stdout or command != "sweep"


def test_two_files_with_different_helpers_do_not_mix(tmp_path: Path) -> None:
    within = "import helper; model.said = helper.NUMBER"
    paths = [write(tmp_path / f"folder{number}", number, within=within) for number in (1, 2)]
    functions = [load_strategy(f"{path}:mine")[1] for path in paths]
    assert [function.__globals__["helper"].NUMBER for function in functions] == [1, 2]
    runs = [mt.simulate(function, **SIZES) for function in functions]
    assert [run.models[0].said for run in runs] == [1, 2]  # type: ignore[attr-defined]


def test_a_helper_that_was_changed_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, 1, "from helper import NUMBER, train")
    first = load_strategy(f"{path}:mine")[1]
    write(tmp_path, 23, "from helper import NUMBER, train")
    again = load_strategy(f"{path}:mine")[1]
    assert [function.__globals__["NUMBER"] for function in (first, again)] == [1, 23]


def test_files_beside_shadow_neither_python_nor_minitrain(tmp_path: Path) -> None:
    for name in ("random", "minitrain", "math"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    path = write(tmp_path, imports="import helper, random, math", within="assert random.random() < 1 < math.pi")
    assert mt.simulate(f"{path}:mine", **SIZES).step_time > 0
    assert "random" not in strategies_of_file(path)


def test_what_is_required_after_the_model_is_an_option_where_no_function_takes_a_model_alone(tmp_path: Path) -> None:
    helper = "async def helper(model, layer):\n    return model\n\n\n"
    whole = "async def mine(model, microbatch_size):\n    return await helper(model, microbatch_size)\n"
    path = tmp_path / "required.py"
    path.write_text(whole)
    assert list(strategies_of_file(path)) == ["mine"]
    with pytest.raises(mt.StrategyError, match=r"needs microbatch_size; give microbatch_size=\.\.\."):
        mt.simulate(str(path), **SIZES)
    path = tmp_path / "optional.py"
    path.write_text(helper + whole.replace("microbatch_size)", "microbatch_size=1)", 1))
    assert list(strategies_of_file(path)) == ["mine"]


@pytest.mark.parametrize("imports", ["from random import draw", "import random\nrandom.draw()"])
def test_a_name_that_python_has_is_told_where_loading_fails(tmp_path: Path, imports: str) -> None:
    (tmp_path / "random.py").write_text("def draw(): return 4\n")
    path = write(tmp_path, imports=imports)
    with pytest.raises(StrategyError, match=r"random is Python's own module, not the random beside mine.py: call that"):
        load_strategy(f"{path}:mine")


def test_errors_call_a_helper_as_the_strategy_does(tmp_path: Path) -> None:
    path = write(tmp_path, imports="from helper import nothing")
    with pytest.raises(StrategyError, match=r"ImportError: cannot import name 'nothing' from 'helper' \(.*line 2\)$"):
        load_strategy(f"{path}:mine")


def test_what_python_keeps_of_a_file_still_serves_python(tmp_path: Path) -> None:
    path = write(tmp_path)
    command = [sys.executable, "-c", "import mine; print(mine.helper.NUMBER)"]
    for _ in range(2):
        assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "1\n"
        assert load_strategy(f"{path}:mine")[0] == "mine"
