"""Grading a class: many submissions at once, on all cores, each of which becomes a row."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass

from minitrain.errors import UsageError
from minitrain.learn.grader import Grade, grade
from minitrain.learn.result import printable
from minitrain.learn.sandbox import Limits
from minitrain.learn.submissions import Submission
from minitrain.run.worker_processes import worker_pool


@dataclass(frozen=True, slots=True)
class Row:
    """A submission and its grade.

    Args:
        file: what the submission is called; "" where there is but one, which needs no name.
        grade: its grade; None if it could not be graded.
        reason: why it could not be graded.
    """

    file: str
    grade: Grade | None = None
    reason: str = ""

    @property
    def exercise(self) -> str:
        """The exercise's name, "" if it is for none."""
        return self.grade.exercise if self.grade else ""

    @property
    def score(self) -> int:
        """Points; 0 for what could not be graded."""
        return self.grade.score if self.grade else 0

    @property
    def max_score(self) -> int:
        """Points of a perfect submission."""
        return Grade("", (), 0.0).max_score

    @property
    def seconds(self) -> float:
        """How long it took, s."""
        return self.grade.seconds if self.grade else 0.0

    @property
    def passed(self) -> bool:
        """Whether it was graded and every check passed."""
        return self.grade is not None and self.grade.passed

    @property
    def failure(self) -> str:
        """The first failure in one line: which check, what, and where; "" if all passed."""
        if self.grade is None:
            return printable(self.reason)
        if not self.grade.failures:
            return ""
        first = self.grade.failures[0]
        where = f" ({first.where()})" if first.where() else ""
        return printable(f"{first.name}: {first.message}{where}").replace("\n", " ")


def grade_all(
    submissions: Sequence[Submission],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> list[Row]:
    """Grade submissions side by side, and return their rows in the same order.

    Args:
        submissions: what was handed in.
        limits: of each submission's processes.
        workers: how many are graded at a time; one for each core if None.
        progress: called after each with how many are done, and the seconds so far.

    Raises:
        UsageError: they cannot be graded at all, since the required isolation is not to be had, for one.
    """
    rows: list[Row | None] = [None] * len(submissions)
    began = time.monotonic()
    for done, (place, row) in enumerate(_graded(submissions, limits or Limits(), workers or os.cpu_count() or 1), 1):
        rows[place] = row
        if progress is not None:
            progress(done, time.monotonic() - began)
    return [row for row in rows if row is not None]


def _graded(submissions: Sequence[Submission], limits: Limits, workers: int) -> Iterator[tuple[int, Row]]:
    """Yield places and rows as they are done."""
    todo = []
    for place, submission in enumerate(submissions):
        if submission.reason:
            yield place, Row(submission.name, reason=submission.reason)
        else:
            todo.append((place, submission))
    if min(workers, len(todo)) < 2:
        for place, submission in todo:
            yield place, grade_one(submission, limits)
        return
    with worker_pool(min(workers, len(todo))) as pool:
        waiting = {pool.submit(grade_one, submission, limits): place for place, submission in todo}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def grade_one(submission: Submission, limits: Limits) -> Row:
    """Grade a submission, whatever comes of it.

    Raises:
        UsageError: nothing can be graded so.
    """
    assert submission.exercise is not None  # those without have a reason
    try:
        found = grade(submission.path, submission.exercise, limits=limits, beside=submission.beside)
    except UsageError:
        raise
    except Exception as error:  # one row of many
        return Row(submission.name, reason=f"the grader failed: {type(error).__name__}: {error}")
    return Row(submission.name, found)
