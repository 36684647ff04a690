"""Grades, written down: as text, a table, CSV, a gradebook, JSON, JUnit XML, or Gradescope's `results.json`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from minitrain.learn.classes import Row
from minitrain.learn.grader import Grade
from minitrain.learn.result import DESCRIPTIONS, CheckResult, one_line, printable

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("student", "file", "exercise", "score", "max_score", "seconds", "first_failure", "isolation", "alike")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How a cell begins that a spreadsheet would compute."""


def as_text(rows: Sequence[Row]) -> str:
    """Return grades for a person, check by check, each with what kept the submission apart."""
    return "\n".join(_text(row, named=len(rows) > 1) for row in rows)


def _text(row: Row, *, named: bool) -> str:
    """Return one grade for a person."""
    if row.grade is None:
        return f"{one_line(row.file)}: not graded\n  {one_line(row.reason)}"
    name = f"{one_line(row.file)}\n" if named and row.file else ""
    return f"{name}{row.grade}\n  isolation: {row.grade.isolation}"


def as_table(rows: Sequence[Row]) -> Table:
    """Return one line a submission, for a terminal."""
    from rich.table import Table  # noqa: PLC0415  (rich only when somebody looks)
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, header_style="bold")
    for name in ("file", "exercise"):
        table.add_column(name, overflow="fold")
    for name in ("score", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("first failure", overflow="fold", ratio=1)
    for row in rows:
        score = f"{row.score}" if row.grade else "-"
        cells = (one_line(row.file), row.exercise or "-", score, f"{row.seconds:.1f}", row.failure)
        table.add_row(*map(Text, cells))
    return table


def as_csv(rows: Sequence[Row]) -> str:
    """Return one line a submission, for a spreadsheet, which is kept from computing what students wrote."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        isolation = str(row.grade.isolation) if row.grade else ""
        facts = (
            row.student,
            row.file,
            row.exercise,
            row.score,
            row.max_score,
            f"{row.seconds:.3f}",
            row.failure,
            isolation,
            " ".join(row.alike),
        )
        writer.writerow([_cell(fact) if isinstance(fact, str) else fact for fact in facts])
    return written.getvalue().rstrip("\n")


def as_gradebook(rows: Sequence[Row]) -> str:
    """Return one line a student, with the best score of each exercise, as CSV; what was not handed in is empty."""
    best: dict[str, dict[str, int]] = {}
    reasons: dict[str, list[str]] = {}
    for row in rows:
        scores = best.setdefault(row.student or row.file, {})
        if row.grade is None:
            reasons.setdefault(row.student or row.file, []).append(f"{Path(row.file).name}: {row.failure}")
        else:
            scores[row.exercise] = max(row.score, scores.get(row.exercise, 0))
    exercises = sorted({exercise for scores in best.values() for exercise in scores})
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["student", *exercises, "total", "not_graded"])
    for student, scores in sorted(best.items()):
        cells = [scores.get(exercise, "") for exercise in exercises]
        not_graded = _cell("; ".join(reasons.get(student, ())))
        writer.writerow([_cell(student), *cells, sum(scores.values()), not_graded])
    return written.getvalue().rstrip("\n")


def _cell(text: str) -> str:
    """Return text that a spreadsheet shows as it is."""
    text = printable(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def as_json(rows: Sequence[Row]) -> str:
    """Return grades for a program: an array with one object a submission."""
    return json.dumps([row.as_dict() for row in rows], indent=2)


def as_junit(rows: Sequence[Row]) -> str:
    """Return grades as JUnit XML: one suite a submission, one case a check."""
    root = ElementTree.Element("testsuites")
    for row in rows:
        results = row.grade.results if row.grade else ()
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=printable(": ".join(part for part in (row.file, row.exercise) if part)),
            tests=str(len(results) or 1),
            failures=str(sum(result.status == "failed" for result in results)),
            errors=str(int(row.grade is None)),
            skipped=str(sum(result.status == "skipped" for result in results)),
            time=f"{row.seconds:.3f}",
        )
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in _properties(row).items():
            ElementTree.SubElement(properties, "property", name=name, value=printable(value))
        for result in results:
            _junit_case(suite, row, result)
        if row.grade is None:
            case = ElementTree.SubElement(suite, "testcase", classname=printable(row.file), name="submission")
            ElementTree.SubElement(case, "error", message=printable(row.reason))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _properties(row: Row) -> dict[str, str]:
    """Return what is said of a submission as a whole."""
    facts = {"file": row.file, "score": str(row.score), "max_score": str(row.max_score)}
    return facts | ({"isolation": str(row.grade.isolation)} if row.grade else {})


def _junit_case(suite: ElementTree.Element, row: Row, result: CheckResult) -> None:
    """Add one check to a suite."""
    case = ElementTree.SubElement(suite, "testcase", classname=printable(row.file or row.exercise), name=result.name)
    if result.status == "failed":
        failure = ElementTree.SubElement(case, "failure", message=printable(result.message))
        failure.text = printable("\n".join(result.lines()))
    elif result.status == "skipped":
        ElementTree.SubElement(case, "skipped")


def as_gradescope(rows: Sequence[Row]) -> str:
    """Return the submissions of one student as Gradescope's `results.json`."""
    grades = [row.grade for row in rows if row.grade is not None]
    odd = [one_line(f"{row.file}: {row.reason}") for row in rows if row.grade is None]
    return json.dumps(
        {
            "score": sum(grade.score for grade in grades),
            "execution_time": round(sum(grade.seconds for grade in grades), 3),
            "output": "\n".join([*odd, *(grade.output for grade in grades if grade.output)])[:2000],
            "extra_data": {"isolation": {grade.exercise: str(grade.isolation) for grade in grades}},
            "tests": [test for grade in grades for test in _gradescope_tests(grade)],
            "leaderboard": [row for grade in grades for row in _leaderboard(grade)],
        },
        indent=2,
    )


def _gradescope_tests(grade: Grade) -> list[dict[str, Any]]:
    """Return one test a check; one that gives no points is not shown as passed."""
    return [
        {
            "name": f"{grade.exercise}: {DESCRIPTIONS[result.name]}",
            "score": grade.points(result),
            "max_score": grade.points_of(result.name),
            "status": "passed" if grade.points(result) else "failed",
            "output": "\n".join(result.lines()) or _outcome(grade, result),
            "visibility": "visible",
        }
        for result in grade.results
    ]


def _outcome(grade: Grade, result: CheckResult) -> str:
    """Return what became of a check, in a word, or why it passed in vain."""
    in_vain = result.passed and not grade.points(result)
    return "passed, but without points: what does not train right has none" if in_vain else result.status


def _leaderboard(grade: Grade) -> list[dict[str, Any]]:
    """Return what a submission is compared by, the best first; Gradescope's columns need names that differ."""
    orders = {"mfu": "desc", "step_time_s": "asc", "peak_memory_gib": "asc"}
    return [
        {"name": f"{grade.exercise}: {name}", "value": value, "order": orders[name]}
        for name, value in grade.leaderboard.items()
    ]


FORMATS: Mapping[str, Callable[[Sequence[Row]], Any]] = {
    "text": as_text,
    "table": as_table,
    "csv": as_csv,
    "gradebook": as_gradebook,
    "json": as_json,
    "junit": as_junit,
    "gradescope": as_gradescope,
}
