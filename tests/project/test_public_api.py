"""The package's public names: quick to import, found when first used, and the same however they are reached."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import minitrain as mt


def run_python(code: str, *flags: str) -> str:
    """Return what a fresh interpreter prints."""
    command = [sys.executable, "-W", "error", *flags, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", mt.__all__)
def test_every_public_name_is_found_and_listed(name: str) -> None:
    assert getattr(mt, name) is not None
    assert name in dir(mt)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'minitrain' has no attribute 'simulated'"):
        mt.simulated  # noqa: B018


def test_importing_minitrain_imports_no_heavy_library() -> None:
    heavy = {"numpy", "plotly", "pydantic", "rich", "typer", "jax", "chex"}
    assert run_python(f"import sys, minitrain; print({heavy} & set(sys.modules))").strip() == "set()"


FIGURES = """
import json, minitrain as mt
from minitrain.learn import predict
sizes = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}
for run in (mt.simulate("1f1b", microbatch_size=2, **sizes), mt.simulate("zero3", log="summary", fold=False, **sizes)):
    print(json.dumps([run.summary(), run.by_type, run.communication_by_axis]))
predict("07", bubble="27%")
"""


def test_figures_of_a_run_and_predictions_need_no_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    exec(FIGURES, {})
    here = capsys.readouterr().out
    assert "right, it is 27.1%" in here
    assert run_python(f"import sys; sys.modules['numpy'] = None\n{FIGURES}") == here


@pytest.mark.parametrize(
    "before", ["", "mt.strategies()", "import minitrain.strategies", "from minitrain.strategies import ddp"]
)
def test_strategies_can_be_asked_for_before_and_after_its_package_is_imported(before: str) -> None:
    code = f"import minitrain as mt\n{before}\nprint(mt.strategies()['1f1b'].__name__, 'ddp' in mt.strategies())"
    assert run_python(code).strip() == "one_f_one_b True"


def test_in_a_checkout_python_finds_the_folders_beside_the_package_without_an_installation() -> None:
    root = Path(__file__).parents[2]
    packages = [str(Path(importlib.util.find_spec(name).origin).parents[1]) for name in ("numpy", "pydantic")]  # type: ignore[union-attr, arg-type]
    code = (
        f"import sys; sys.path[:] = [{str(root)!r}, *sys.path, *{packages}]\n"
        "import minitrain as mt\n"
        "from minitrain.strategies import ddp\n"
        "from minitrain.machine import shipped_configs\n"
        "print(mt.strategies()['ddp'] is ddp, 'h100_80g_nvl8' in shipped_configs())"
    )
    assert run_python(code, "-S").strip() == "True True"


def test_what_is_listed_of_the_package_are_its_public_names() -> None:
    assert run_python("import minitrain as mt; print(dir(mt) == sorted(mt.__all__))").strip() == "True"


def test_a_rank_lists_what_a_strategy_uses_and_nothing_of_the_engine() -> None:
    run = mt.simulate("ddp", world_size=1, num_layers=1, global_batch_size=1)
    listed = set(dir(run.models[0]))
    assert {"forward", "all_reduce", "rank", "world_size", "storage", "weights", "log", "set_final_weight"} <= listed
    assert not {"account", "after_message", "operation_kind", "in_flight", "follows_tensors", "_rows"} & listed


def test_every_package_is_installed() -> None:
    root = Path(__file__).parents[2]
    found = [path.parent.relative_to(root) for path in (root / "minitrain").rglob("__init__.py")]
    names = {".".join(path.parts) for path in found} | {"minitrain.strategies", "minitrain.hw_configs"}
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(settings["packages"]) == names


def test_every_shipped_strategy_takes_a_model_and_a_microbatch_size() -> None:
    for strategy in mt.strategies().values():
        parameters = inspect.signature(strategy).parameters
        assert next(iter(parameters)) == "model"
        assert inspect.iscoroutinefunction(strategy)
