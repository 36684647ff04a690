"""Grading inside pytest: `assert_strategy(my_ddp, "02")` fails with the law, or with what differs.

It is a file of its own, since it is what tests of a course import.
"""

from __future__ import annotations

from pathlib import Path

from minitrain.learn.exercise import Exercise
from minitrain.learn.grader import Grade, grade
from minitrain.learn.sandbox import Limits
from minitrain.run.strategy_loading import Strategy


def assert_strategy(
    strategy: str | Path | Strategy, exercise: str | Exercise, *, hidden: bool = True, limits: Limits | None = None
) -> Grade:
    """Require that a submission has full marks.

    Args:
        strategy: a coroutine function, a file, or "file.py:function".
        exercise: its name or number, its folder, or a loaded exercise.
        hidden: whether to use the hidden sizes too.
        limits: of a file's process, and how it is kept apart.

    Returns:
        The grade.

    Raises:
        AssertionError: a check failed; the message is the grade.
    """
    found = grade(strategy, exercise, hidden=hidden, limits=limits)
    if not found.passed:
        raise AssertionError(str(found))
    return found
