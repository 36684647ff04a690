"""Notebooks are those of the exercises, and run from top to bottom inside a running loop; pytest can grade."""

from __future__ import annotations

import ast
import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from minitrain.learn import Exercise, load_exercise, shipped_exercises
from minitrain.learn.notebook import as_text, notebook_of, write_notebooks

ROOT = Path(__file__).parents[3]
EXERCISES = shipped_exercises()


@pytest.mark.few(1)
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_committed_notebooks_are_current(exercise: Exercise) -> None:
    path = ROOT / "notebooks" / f"{exercise.name}.ipynb"
    assert path.read_text(encoding="utf-8") == as_text(notebook_of(exercise)), (
        "python -m minitrain.learn.notebook notebooks"
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


@pytest.mark.few(8)
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_notebooks_run_from_top_to_bottom(exercise: Exercise, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads(as_text(notebook_of(exercise)))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = run_cells([cell.replace("    %pip", "    # %pip") for cell in code])
    assert names["run"].world_size == exercise.public[0].world_size
    printed = capsys.readouterr().out
    assert "MFU" in printed
    assert f"{exercise.name}: 0 of 100 points" in str(names["grade"])


def test_cells_have_ids_of_their_own() -> None:
    for exercise in EXERCISES:
        ids = [cell["id"] for cell in notebook_of(exercise)["cells"]]
        assert len(set(ids)) == len(ids)


def test_an_exercise_of_ones_own_has_a_notebook_too(tmp_path: Path) -> None:
    own = shutil.copytree(EXERCISES[0].folder, tmp_path / "17_own")
    text = as_text(notebook_of(load_exercise(own)))
    assert "17_own" in text
    assert 'expected_run(\\"17_own\\")' in text
