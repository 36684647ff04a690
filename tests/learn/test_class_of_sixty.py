"""A class of sixty is graded by name in one command, which is interrupted twice, goes on, and gives its gradebook."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from minitrain.learn.classes import Row, as_gradebook, grade_all
from minitrain.learn.exercise import shipped_exercises
from minitrain.learn.sandbox import Limits
from minitrain.learn.submissions import find_submissions
from tests.learn.class_of_sixty import Handed, in_time, late, write_class


def graded(folder: Path, results: Path, *more: str, rows: int | None = None) -> str:
    """Grade a class in a process of its own, which Ctrl-C ends once so many rows are kept; return what it prints."""
    command = [sys.executable, "-c", "from minitrain.cli import main; main()", "learn", "grade", str(folder)]
    command += ["--results", str(results), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True) as process:
        if rows is not None:
            while process.poll() is None and (not results.exists() or len(results.read_text().splitlines()) < rows):
                time.sleep(0.2)
            os.killpg(process.pid, signal.SIGINT)
        text, _ = process.communicate()
        assert process.returncode == (1 if rows is None else 130)
    return text


def require(rows: Sequence[dict[str, Any]], students: dict[str, Handed]) -> None:
    """Require one row a student, with its score and reason."""
    assert sorted(row["student"] for row in rows) == sorted(students)
    for row in rows:
        _, score, reason = students[row["student"]]
        told = row.get("error") or row.get("first_failure") or ""
        assert row["score"] == score if score is not None else row["score"] < 100, row
        assert re.search(reason, told) if reason else not told, row


@pytest.mark.slow
@pytest.mark.timeout(1200)  # of a machine that others use too
def test_sixty_are_graded_interrupted_twice_resumed_and_exported(tmp_path: Path) -> None:
    folder, results, students = tmp_path / "class", tmp_path / "rows.jsonl", in_time()
    write_class(folder, students)
    graded(folder, results, rows=12)
    kept = results.read_text().splitlines()
    graded(folder, results, rows=30)
    assert results.read_text().splitlines()[: len(kept)] == kept  # none is lost, none is graded again
    write_class(folder, late())
    students |= late()
    assert len(students) == 60
    rows = json.loads(graded(folder, results, "--format", "json"))
    require(rows, students)
    copies = {name for row in rows if row["student"] == "copy0" for name in row["alike"]}
    assert copies == {"copy1/03_zero1.py", "right03/03_zero1.py", "right14/03_zero1.py"}
    lines = [*csv.DictReader(graded(folder, results, "--format", "gradebook").splitlines())]
    assert {line["student"]: int(line["total"]) for line in lines} == {row["student"]: row["score"] for row in rows}
    roster = tmp_path / "canvas.csv"
    roster.write_text('Student,ID,02_ddp (1)\n    Points Possible,,100\nright02,5,\n"0, student",6,\nslow1,7,\n')
    assert "right02,5,100" in graded(folder, results, "--roster", str(roster))


@pytest.mark.ci
def test_what_cannot_be_graded_and_what_a_platform_has_renamed_are_told_by_student(tmp_path: Path) -> None:
    everybody = in_time()
    students = {
        name: everybody[name] for name in ("huge0", "latin0", "zip0", "nothing0", "importing0", "student1_4711")
    }
    write_class(tmp_path, students)
    found = grade_all(find_submissions([tmp_path], shipped_exercises()), limits=Limits(seconds=60), workers=1)
    require([row.as_dict() for row in found], students)
    hint = next(row for row in found if row.student == "importing0").grade.failures[0].hint  # type: ignore[union-attr]
    assert "files that are handed in with it: put these beside it" in hint
    lines = as_gradebook([*found, Row("alone.py", reason="it is empty", student="=1+1")]).splitlines()
    assert lines[0] == "student,02_ddp,total,not_graded"
    assert "student1_4711,100,100," in lines
    assert "zip0,,0,02_ddp.zip: it is no Python file: its name ends in .zip, not in .py or .ipynb" in [
        line.replace('"', "") for line in lines
    ]
    assert "'=1+1,,0,alone.py: it is empty" in lines
