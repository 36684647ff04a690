"""Shipped exercises are sound: references, starters, statements, and the commands that hints name."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minitrain.cli import app
from minitrain.learn import Exercise, shipped_exercises
from minitrain.learn.checks import FILE, command_for
from minitrain.learn.verify import faults_of

EXERCISES = shipped_exercises()


@pytest.mark.few(1)
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
@pytest.mark.one_in(3)
def test_shipped_exercises_are_sound(exercise: Exercise) -> None:
    assert faults_of(exercise) == []
    assert len(exercise.public) >= 1
    assert len(exercise.hidden) >= 1
    assert "**Closed form.**" in exercise.statement
    assert "```text" in exercise.statement or "```" in exercise.statement
    assert f"async def {exercise.function}(" in exercise.starter


def test_exercises_are_numbered_without_a_gap() -> None:
    numbers = [exercise.number for exercise in EXERCISES]
    assert numbers == [f"{number:02}" for number in range(len(numbers))]
    assert len(numbers) >= 15


@pytest.mark.few(8)
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_the_command_of_a_hint_is_one_that_runs(
    exercise: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(exercise.starter)
    words = shlex.split(command_for(exercise, exercise.public[0]).strip("`").replace(FILE, "mine.py"))
    assert words[:2] == ["minitrain", "run"]
    result = CliRunner().invoke(app, [*words[1:], "--no-trace"])
    assert "has no final weight" in result.stderr, result.stderr  # the starter's fault, and the only one


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_every_statement_has_the_card_and_the_rule_of_the_stores(exercise: Exercise) -> None:
    for words in ("`await model.all_reduce(grad, layer)`", "`model.backward(layer, ", "**Stores.**", "until the call"):
        assert words in exercise.page
    assert f"see {exercise.name}.md" in exercise.starter
