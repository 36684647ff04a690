"""Every exercise's solution is one file that has full marks, in a process without the shipped strategies."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.learn import Exercise, grade, load_exercise, shipped_exercises
from minitrain.learn.explorer.answers import STARTER
from minitrain.run.strategy_loading import load_strategy

LONGER: dict[str, int] = dict(
    zip(("09", "10", "11", "14", "15", "16", "18", "20", "24"), (44, 43, 47, 44, 74, 59, 48, 58, 100), strict=True)
)  # fmt: skip
"""Lines of code of those with more than forty: two passes with messages, rings, the steps of attention and experts."""


def lines_of(text: str) -> int:
    """Return the lines of code of a file: without blanks, comments, docstrings and imports."""
    tree = ast.parse(text)
    said = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    left_out = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)] + said
    lines = {line for node in left_out for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    code = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in lines]
    return sum(bool(line) and not line.startswith("#") for line in code)


@pytest.mark.few(1)
@pytest.mark.parametrize("exercise", shipped_exercises(), ids=lambda exercise: exercise.name)
@pytest.mark.one_in(5)
def test_a_solution_is_short_and_runs_where_it_lies(exercise: Exercise, tmp_path: Path) -> None:
    text = exercise.solution
    assert "minitrain.strategies" not in text
    assert lines_of(text) <= LONGER.get(exercise.number, 40)
    path = tmp_path / f"{exercise.name}_solution.py"
    path.write_text(text)
    found = grade(path, replace(exercise, hidden=[]))  # those of its reference are tested where exercises are sound
    assert found.passed, str(found)


def test_a_solution_that_is_not_there_is_to_be_asked_for(tmp_path: Path) -> None:
    folder = shutil.copytree(load_exercise("02").folder, tmp_path / "01_mine")
    (folder / "reference.py").unlink()
    with pytest.raises(UsageError, match="the solution of 01_mine is not part of this installation; ask your teacher"):
        load_exercise(folder).solution  # noqa: B018


ROOT = Path(mt.__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = {
    f"{path.relative_to(ROOT)} {function[1]}": (block, function[1])
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for block in BLOCK.findall(path.read_text(encoding="utf-8"))
    for function in re.finditer(r"^async def (\w+)\(model\b", block, re.MULTILINE)
    if "set_final_weight" in block
}
"""Whole strategies in the documents, with their functions."""


def passed_by(name: str, folder: Path, exercises: Sequence[Exercise]) -> list[str]:
    """Return which exercises a printed strategy solves."""
    text, function = PRINTED.get(name, (STARTER, "mine"))
    (folder / "printed.py").write_text(text)
    strategy = load_strategy(f"{folder}/printed.py:{function}")[1]
    return [one.name for one in exercises if grade(strategy, one, hidden=False, keep_run=False).passed]


@pytest.mark.parametrize("name", [*PRINTED, "the page of the explorer"])
@pytest.mark.slow
def test_what_documents_print_solves_no_exercise(name: str, tmp_path: Path) -> None:
    assert passed_by(name, tmp_path, shipped_exercises()) == []


def test_the_strategies_printed_first_solve_no_exercise_on_data_parallelism(tmp_path: Path) -> None:
    assert len(PRINTED) >= 3
    for name in ("README.md my_fsdp", "the page of the explorer"):
        assert passed_by(name, tmp_path, [load_exercise(number) for number in ("02", "03", "04", "05")]) == []
