"""The exercises on the page of explorer and lab: what they ask, and what is said of a solution.

Where there is no NumPy, laws, communication, time and memory are checked, and numbers are not. Exercises on real
models, and answers about a gap, are left to `minitrain learn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError
from minitrain.explorer import plain_numpy
from minitrain.learn.exercise import Exercise, load_exercise, shipped_exercises
from minitrain.learn.result import CheckResult
from minitrain.run.strategy_loading import load_strategy


def described() -> list[dict[str, Any]]:
    """Return the exercises with all that the page shows of them, and the state in which one begins each."""
    return [
        {
            "name": exercise.name,
            "title": exercise.title,
            "statement": exercise.statement,
            "function": exercise.function,
            "state": {
                "strategy": "own",
                "source": exercise.starter,
                "hardware": exercise.hardware,
                **exercise.public[0].sizes,
                "options": dict(exercise.public[0].options),
            },
        }
        for exercise in shipped_exercises()
        if _is_small(exercise)
    ]


def _is_small(exercise: Exercise) -> bool:
    """Return whether it asks for a strategy, and all public sizes are of the usual layers."""
    return not exercise.slowed and all(case.workload is None for case in exercise.public)


def checked(file: Path, name: str) -> dict[str, Any]:
    """Return what is said of a solution.

    Args:
        file: the solution's text.
        name: of the exercise.

    Raises:
        UsageError: there is no such exercise here, or no such function in the file.
    """
    exercise = load_exercise(name)
    if not _is_small(exercise):
        raise UsageError(f"{exercise.name} is checked by `minitrain learn check`, and not on this page")
    from minitrain.learn.grader import grade  # noqa: PLC0415  (it brings what proofs need)

    numbers_count = not plain_numpy.is_installed()
    if not numbers_count:
        exercise = replace(exercise, public=[replace(case, is_proven=False) for case in exercise.public])
    _, function = load_strategy(f"{file}:{exercise.function}")
    results = grade(function, exercise, hidden=False).results
    if not numbers_count:
        results = [CheckResult(one.name, "skipped") if one.name == "numerics" else one for one in results]
    return {"results": [_shown(one, numbers_count) for one in results], "verdict": _verdict(results, numbers_count)}


def _shown(result: CheckResult, numbers_count: bool) -> dict[str, Any]:
    """Return a check as the page shows it."""
    is_left_out = result.name == "numerics" and not numbers_count
    lines = ["numbers are not compared in a browser; `minitrain learn check` does"] if is_left_out else result.lines()
    return {"name": result.name, "status": result.status, "lines": lines}


def _verdict(results: Sequence[CheckResult], numbers_count: bool) -> str:
    """Return the whole in a sentence."""
    failed = [one.name for one in results if one.status == "failed"]
    if failed:
        return f"not yet: {', '.join(failed)}"
    return "every check passed" if numbers_count else "every check passed but numbers, which are not compared here"
