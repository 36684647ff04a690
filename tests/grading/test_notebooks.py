"""Notebooks are those of the exercises, and run from top to bottom inside a running loop; pytest can grade."""

from __future__ import annotations

import ast
import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minitrain.errors import UsageError
from minitrain.grading import Exercise, shipped_exercises
from minitrain.grading.notebook import as_text, main, notebook_of, write_notebooks

ROOT = Path(__file__).parents[2]
EXERCISES = shipped_exercises()


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_committed_notebooks_are_current(exercise: Exercise) -> None:
    path = ROOT / "notebooks" / f"{exercise.name}.ipynb"
    assert path.read_text(encoding="utf-8") == as_text(notebook_of(exercise)), (
        "python -m minitrain.grading.notebook notebooks"
    )


def test_there_is_no_notebook_without_an_exercise(tmp_path: Path) -> None:
    names = [path.name for path in write_notebooks(tmp_path)]
    assert sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb")) == names


def run_cells(cells: list[str]) -> dict[str, Any]:
    """Run the cells of a notebook as Jupyter does: inside a running loop."""
    names: dict[str, Any] = {"__name__": "__main__"}

    async def run() -> None:
        for cell in cells:
            exec(compile(cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)

    asyncio.run(run())
    return names


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_notebooks_run_from_top_to_bottom(exercise: Exercise, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads(as_text(notebook_of(exercise)))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = run_cells([cell.replace("    %pip", "    # %pip") for cell in code])
    assert names["run"].world_size == exercise.public[0].world_size
    printed = capsys.readouterr().out
    assert "MFU" in printed
    assert f"{exercise.name}: 0 of 100 points" in printed


def test_a_notebook_installs_minitrain_from_where_it_is_told(tmp_path: Path) -> None:
    main([str(tmp_path), "--install", "git+https://host/owner/minitrain"])
    cells = json.loads((tmp_path / "02_ddp.ipynb").read_text())["cells"]
    assert '    %pip install -q "git+https://host/owner/minitrain"\n' in cells[1]["source"]
    assert "pip install -q" not in as_text(notebook_of(EXERCISES[2]))
    with pytest.raises(UsageError, match="a requirement is an address, a path or a name"):
        write_notebooks(tmp_path, requirement='x" && rm -r "y')


def test_a_notebook_without_an_address_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "".join(notebook_of(EXERCISES[2])["cells"][1]["source"])
    monkeypatch.setitem(sys.modules, "minitrain", None)
    with pytest.raises(ImportError, match="with minitrain's wheel or repository in a cell above"):
        exec(cell, {})


def test_cells_have_ids_of_their_own() -> None:
    for exercise in EXERCISES:
        ids = [cell["id"] for cell in notebook_of(exercise)["cells"]]
        assert len(set(ids)) == len(ids)


def test_pytest_grades_exercises_by_marker(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["minitrain.grading.pytest_plugin"]\n')
    (tmp_path / "test_mine.py").write_text(
        "import pytest\nimport minitrain as mt\nfrom minitrain.grading.testing import assert_strategy\n\n\n"
        "@pytest.mark.exercise_02\ndef test_ddp():\n    assert_strategy(mt.strategies()['ddp'], '02')\n\n\n"
        "@pytest.mark.exercise_05\ndef test_zero3():\n    assert_strategy(mt.strategies()['ddp'], '05')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider"]
    one = subprocess.run([*command, "-m", "exercise_02"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed, 1 deselected" in one.stdout
    both = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "05_zero3: 80 of 100 points" in both.stdout
    assert "a rank holds more than the budget" in both.stdout
