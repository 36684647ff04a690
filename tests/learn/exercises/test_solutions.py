"""Every exercise's solution is one file that has full marks, in a process without the shipped strategies."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from minitrain.errors import UsageError
from minitrain.learn import Exercise, grade, load_exercise, shipped_exercises
from minitrain.learn.solution import solution_of


@pytest.mark.parametrize("exercise", shipped_exercises(), ids=lambda exercise: exercise.name)
def test_a_solution_runs_where_it_lies(exercise: Exercise, tmp_path: Path) -> None:
    text = solution_of(exercise)
    assert "minitrain.strategies" not in text
    assert "require_" not in text  # sizes are checked for those who use a strategy, not for those who learn
    assert "from ." not in text
    path = tmp_path / f"{exercise.name}_solution.py"
    path.write_text(text)
    found = grade(path, replace(exercise, hidden=[]))  # those of its reference are tested where exercises are sound
    assert found.passed, str(found)


def test_a_reference_without_strategies_is_the_solution(tmp_path: Path) -> None:
    folder = tmp_path / "01_mine"
    shutil.copytree(load_exercise("02").folder, folder)
    (folder / "reference.py").write_text("async def ddp(model):\n    return model\n")
    assert solution_of(load_exercise(folder)) == "async def ddp(model):\n    return model\n"
    (folder / "reference.py").unlink()
    with pytest.raises(UsageError, match="the solution of 01_mine is not part of this installation; ask your teacher"):
        solution_of(load_exercise(folder))
