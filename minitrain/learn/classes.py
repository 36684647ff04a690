"""Grading a class: many submissions at once, on all cores, each of which becomes a row."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError
from minitrain.learn.grader import Grade, grade
from minitrain.learn.isolation import Isolation
from minitrain.learn.result import CheckResult, one_line
from minitrain.learn.sandbox import Limits, source_of
from minitrain.learn.submissions import Submission, alike
from minitrain.run.worker_processes import WorkerEndedError, WorkerProcesses, limit_bytes

MOST_MEMORY = 8 * 2**30
"""Address space of a process that judges submissions, bytes."""

_LACKS = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN)
_RECYCLED_AFTER = 50
"""Submissions that one such process judges, since judging leaves some MB of compiled functions behind."""
_KILLED = "the process that judged it was killed; the machine may lack memory"


@dataclass(frozen=True, slots=True)
class Row:
    """A submission and its grade.

    Args:
        file: what the submission is called; "" where there is but one, which needs no name.
        grade: its grade; None if it could not be graded.
        reason: why it could not be graded.
        student: whose it is; "" where nobody knows.
        alike: submissions of others that are the same but for names, comments and blanks: a hint to look, never a mark.
    """

    file: str
    grade: Grade | None = None
    reason: str = ""
    student: str = ""
    alike: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the row, ready for JSON; pictures of a run that failed are not in it."""
        common = {
            "student": self.student or None,
            "file": self.file,
            "exercise": self.exercise or None,
            "score": self.score,
            "max_score": self.max_score,
            "alike": list(self.alike),
        }
        if self.grade is None:
            return {**common, "passed": False, "seconds": 0.0, "checks": [], "error": self.reason}
        grade = self.grade
        return {
            **common,
            "passed": grade.passed,
            "seconds": grade.seconds,
            "first_failure": self.failure or None,
            "checks": [{**result.as_dict(), "points": grade.points(result)} for result in grade.results],
            "leaderboard": dict(grade.leaderboard),
            "output": grade.output,
            "isolation": grade.isolation.as_dict(),
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Row:
        """Return the row that `as_dict` made data of."""
        if "error" in data:
            return cls(data["file"], reason=data["error"])
        checks = [{name: value for name, value in check.items() if name != "points"} for check in data["checks"]]
        results = [CheckResult(**check) for check in checks]
        isolation = Isolation(**data["isolation"])
        grade = Grade(data["exercise"], results, data["seconds"], data["output"], data["leaderboard"], isolation)
        return cls(data["file"], grade)

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
            return one_line(self.reason)
        if not self.grade.failures:
            return ""
        first = self.grade.failures[0]
        where = f" ({first.where()})" if first.where() else ""
        return one_line(f"{first.name}: {first.message}{where}")


def grade_all(
    submissions: Sequence[Submission],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
    progress: Callable[[int, float], None] | None = None,
    known: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    keep: Callable[[str, dict[str, Any]], None] = lambda _key, _row: None,
) -> list[Row]:
    """Grade submissions side by side, and return their rows in the same order.

    Args:
        submissions: what was handed in.
        limits: of each submission's processes.
        workers: how many are graded at a time; one for each core if None.
        progress: called after each with how many are done, and the seconds so far.
        known: rows of an earlier grading as `Row.as_dict` has them, by `key_of`; they are not graded again.
        keep: called with key and row of each submission as it is done.

    Raises:
        UsageError: they cannot be graded at all, since the required isolation is not to be had, for one.
    """
    limits, rows = limits or Limits(), [Row(one.name, reason=one.reason, student=one.student) for one in submissions]
    began, todo = time.monotonic(), {}
    for place, one in enumerate(submissions):
        key = "" if one.reason else key_of(one, limits)
        if key in known:
            rows[place] = replace(Row.of(known[key]), file=one.name, student=one.student)
        elif key:
            todo[place] = key, one
    num_done = len(submissions) - len(todo)
    seated = [(place, one) for place, (_, one) in todo.items()]
    for done, (place, row) in enumerate(_graded(seated, limits, workers or os.cpu_count() or 1), num_done + 1):
        rows[place] = replace(row, student=submissions[place].student)
        keep(todo[place][0], rows[place].as_dict())
        if progress is not None:
            progress(done, time.monotonic() - began)
    others = alike(submissions)
    return [replace(row, alike=tuple(others.get(row.file, ()))) for row in rows]


def key_of(submission: Submission, limits: Limits) -> str:
    """Return what a grade depends on, as a digest: its files, the exercise with its budgets, and the limits."""
    exercise = submission.exercise
    assert exercise is not None  # those without have a reason
    sizes = [case.key for case in (*exercise.public, *exercise.hidden)]
    digest = hashlib.sha256(json.dumps([exercise.name, sizes, asdict(limits)]).encode())
    graded_by = [exercise.folder / name for name in ("exercise.json", "reference.py", "budgets.json")]
    for path in (*filter(Path.is_file, graded_by), submission.path, *submission.beside):
        digest.update(hashlib.sha256(source_of(path)).digest())
    return digest.hexdigest()[:32]


def _graded(todo: Sequence[tuple[int, Submission]], limits: Limits, workers: int) -> Iterator[tuple[int, Row]]:
    """Yield places and rows as they are done.

    What a submission did is judged in a process that may need more time or memory than there is. Then only its own row
    is lost: each process judges one submission after the other.
    """
    calls = ((place, (grade_one, submission, limits)) for place, submission in todo)
    submissions = dict(todo)
    with contextlib.closing(WorkerProcesses(workers, MOST_MEMORY, _RECYCLED_AFTER)) as processes:
        for place, outcome in processes.outcomes(calls):
            is_lost = isinstance(outcome.error, WorkerEndedError) and outcome.is_begun
            yield place, Row(submissions[place].name, reason=_KILLED) if is_lost else outcome.get()


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
    except MemoryError:
        most = limit_bytes() or MOST_MEMORY
        reason = f"judging what it does needs more than {most / 2**30:.3g} GiB; it may hold thousands of tensors"
        return Row(submission.name, reason=reason)
    except Exception as error:  # one row of many
        if isinstance(error, OSError) and error.errno in _LACKS:
            return Row(submission.name, reason=f"the grader lacks disk or memory: {error.strerror}; grade it again")
        return Row(submission.name, reason=f"the grader failed: {type(error).__name__}: {error}")
    return Row(submission.name, found)
