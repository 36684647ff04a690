"""Grades go into the tables that learning platforms export, and nothing else of these changes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minitrain.cli import app
from minitrain.errors import UsageError
from minitrain.learn.classes import Row, with_grades
from minitrain.learn.exercise import DESCRIPTIONS, CheckResult
from minitrain.learn.grader import Grade
from tests.learn.exercises.sources import DDP

CANVAS = """Student,ID,SIS Login ID,Section,02_ddp (4711)
    Points Possible,,,,100
"Doe, Jane",12345,jdoe,A,17
"Roe, Richard",67890,rroe,A,
"Twin, Tom",11111,ttwin,A,
"Twin, Tom",22222,ttwin2,B,
"""
MOODLE = """\ufeffFirst name,Surname,Email address
Jane,Doe,jane@school.org
Zo\u00eb,O'Neil,zoe@school.org
"""


def graded(student: str, exercise: str = "02_ddp", *, passes: bool = True) -> Row:
    """Return a row of full marks, or of none."""
    results = [CheckResult(name, "passed" if passes else "failed") for name in DESCRIPTIONS]
    return Row(f"{student}/x.py", Grade(exercise, results, 0.1), student=student)


def scores(text: str, name: str) -> dict[str, str]:
    """Return a column by the cells of the first one."""
    found = list(csv.DictReader(text.splitlines()))
    return {next(iter(row.values())): row[name] for row in found}


def test_scores_go_into_the_exercises_column(tmp_path: Path) -> None:
    (tmp_path / "canvas.csv").write_text(CANVAS)
    best = graded("jdoe").score
    worst = graded("jdoe", passes=False).score
    assert worst < best
    rows = [
        graded("Jane Doe", passes=False),  # the other attempt counts, and not the 17 of before
        graded("DOE_jane"),
        graded("roerichard_67890_5511_ddp"),
        graded("roerichard_99999"),  # the number of another term
        graded("Tom Twin"),
        graded("nobody"),
        graded("rroe", "03_zero1"),
        Row("essay.txt", reason="it is no Python file", student="essay"),
    ]
    text, lost = with_grades(tmp_path / "canvas.csv", rows)
    assert lost == ["Tom Twin/x.py", "nobody/x.py"]
    assert text.splitlines()[0] == "Student,ID,SIS Login ID,Section,02_ddp (4711),03_zero1"
    assert scores(text, "02_ddp (4711)") == {
        "    Points Possible": "100",
        "Doe, Jane": str(best),
        "Roe, Richard": str(best),
        "Twin, Tom": "",
    }
    assert scores(text, "03_zero1")["Roe, Richard"] == str(best)


def test_names_in_two_columns_and_other_letters_are_found(tmp_path: Path) -> None:
    (tmp_path / "moodle.csv").write_text(MOODLE, encoding="utf-8")
    text, lost = with_grades(tmp_path / "moodle.csv", [graded("doe_jane"), graded("ZO\u00cb oneil")])
    assert not lost
    assert set(scores(text, "02_ddp").values()) == {str(graded("").score)}
    assert text.splitlines()[0] == "First name,Surname,Email address,02_ddp"


@pytest.mark.parametrize("text", ["", "Student,ID\n", "\x00"])
def test_a_table_without_students_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text(text)
    with pytest.raises(UsageError, match="table of students"):
        with_grades(tmp_path / "empty.csv", [])


@pytest.mark.ci
def test_the_command_prints_the_table_and_who_is_missing(tmp_path: Path) -> None:
    (tmp_path / "class" / "jdoe").mkdir(parents=True)
    (tmp_path / "class" / "jdoe" / "02_ddp.py").write_text(DDP)
    (tmp_path / "class" / "ghost.py").write_text("async def ddp(model):\n    return model\n")
    (tmp_path / "class" / "rroe.py").write_text("")
    (tmp_path / "canvas.csv").write_text(CANVAS)
    asked = ["learn", "grade", str(tmp_path / "class"), "--roster", str(tmp_path / "canvas.csv")]
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 1  # ghost.py has no points
    assert scores(said.stdout, "02_ddp (4711)")["Doe, Jane"] == "100"
    assert "more than once: the student of ghost.py" in said.stderr
    assert "not graded: rroe.py: it is empty" in said.stderr
