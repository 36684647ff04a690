"""A grade, written down: as text, as JSON, as JUnit XML, or as Gradescope's `results.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from minitrain.grading.grader import Grade
from minitrain.grading.result import DESCRIPTIONS, printable


def as_text(grades: Sequence[Grade]) -> str:
    """Return grades for a person, each with what kept the submission apart."""
    return "\n".join(f"{grade}\n  isolation: {grade.isolation}" for grade in grades)


def as_json(grades: Sequence[Grade]) -> str:
    """Return grades for a program: an array with one object a submission."""
    return json.dumps(
        [
            {
                "exercise": grade.exercise,
                "score": grade.score,
                "max_score": grade.max_score,
                "passed": grade.passed,
                "seconds": grade.seconds,
                "checks": [{**result.as_dict(), "points": grade.points(result)} for result in grade.results],
                "leaderboard": dict(grade.leaderboard),
                "output": grade.output,
                "isolation": grade.isolation.as_dict(),
            }
            for grade in grades
        ],
        indent=2,
    )


def as_junit(grades: Sequence[Grade]) -> str:
    """Return grades as JUnit XML: one suite a submission, one case a check."""
    root = ElementTree.Element("testsuites")
    for grade in grades:
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=grade.exercise,
            tests=str(len(grade.results)),
            failures=str(len(grade.failures)),
            skipped=str(sum(result.status == "skipped" for result in grade.results)),
            time=f"{grade.seconds:.3f}",
        )
        properties = ElementTree.SubElement(suite, "properties")
        ElementTree.SubElement(properties, "property", name="isolation", value=str(grade.isolation))
        for result in grade.results:
            case = ElementTree.SubElement(suite, "testcase", classname=grade.exercise, name=result.name)
            if result.status == "failed":
                ElementTree.SubElement(case, "failure", message=printable(result.message)).text = printable(
                    "\n".join(result.lines())
                )
            elif result.status == "skipped":
                ElementTree.SubElement(case, "skipped")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def as_gradescope(grades: Sequence[Grade]) -> str:
    """Return grades as Gradescope's `results.json`."""
    return json.dumps(
        {
            "score": sum(grade.score for grade in grades),
            "execution_time": round(sum(grade.seconds for grade in grades), 3),
            "output": "\n".join(grade.output for grade in grades if grade.output)[:2000],
            "extra_data": {"isolation": {grade.exercise: str(grade.isolation) for grade in grades}},
            "tests": [test for grade in grades for test in _gradescope_tests(grade)],
            "leaderboard": [row for grade in grades for row in _leaderboard(grade)],
        },
        indent=2,
    )


def _gradescope_tests(grade: Grade) -> list[dict[str, Any]]:
    """Return one test a check."""
    return [
        {
            "name": f"{grade.exercise}: {DESCRIPTIONS[result.name]}",
            "score": grade.points(result),
            "max_score": grade.points_of(result.name),
            "status": "passed" if result.passed else "failed",
            "output": "\n".join(result.lines()) or result.status,
            "visibility": "visible",
        }
        for result in grade.results
    ]


def _leaderboard(grade: Grade) -> list[dict[str, Any]]:
    """Return what a submission is compared by, the best first."""
    orders = {"mfu": "desc", "step_time_s": "asc", "peak_memory_gib": "asc"}
    return [{"name": name, "value": value, "order": orders[name]} for name, value in grade.leaderboard.items()]


FORMATS: Mapping[str, Callable[[Sequence[Grade]], str]] = {
    "text": as_text,
    "json": as_json,
    "junit": as_junit,
    "gradescope": as_gradescope,
}
