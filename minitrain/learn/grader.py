"""Grading a submission: its runs on all sizes, judged, and summed up.

A file is run twice, each time in a process of its own: with the public sizes, and then with the hidden ones. What the
second process prints is thrown away, so that what a student gets to see cannot tell a hidden size.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError, typed
from minitrain.learn.checks import FILE, Judged, failed, judge, prepare_judgement
from minitrain.learn.exercise import CHECKS, GAP_POINTS, POINTS, Case, CheckResult, Exercise, load_exercise
from minitrain.learn.isolation import HERE, NOTHING_RUNS, Isolation
from minitrain.learn.replay import last_clock
from minitrain.learn.sandbox import Limits, Outcome, submitted
from minitrain.learn.submissions import imported
from minitrain.run.result import Run
from minitrain.run.strategy_loading import Strategy

_GATE = ("runs", "laws", "numerics")


@dataclass(frozen=True, slots=True)
class Grade:
    """The points of a submission, check by check.

    Args:
        exercise: the exercise's name.
        results: one a check, in their order.
        seconds: how long grading took.
        output: what the submission printed with the public sizes.
        leaderboard: figures of the first size, where every check passed: MFU, step time, peak memory.
        isolation: what kept the submission's process apart from the grader.
        drawn_case: the first sizes that failed, or on a pass the first of all, where `keep_run` asks for them.
        drawn_run: its run likewise, an `UnfinishedRun` where an error ended it; None where nothing is known of it.
        asked: the exercise itself likewise.
    """

    exercise: str
    results: Sequence[CheckResult]
    seconds: float
    output: str = field(default="", repr=False)
    leaderboard: Mapping[str, float] = field(default_factory=dict)
    isolation: Isolation = HERE
    drawn_case: Case | None = field(default=None, repr=False)
    drawn_run: Run | None = field(default=None, repr=False, compare=False)
    asked: Exercise | None = field(default=None, repr=False, compare=False)

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(result.passed for result in self.results)

    @property
    def score(self) -> int:
        """Points, 0 to `max_score`; 0 if the submission does not train as a single device does."""
        return sum(self.points(result) for result in self.results)

    @property
    def max_score(self) -> int:
        """Points of a perfect submission."""
        return sum(POINTS.values())

    def points(self, result: CheckResult) -> int:
        """Return the points of one check."""
        trains = all(other.passed for other in self.results if other.name in _GATE)
        return self.points_of(result.name) if trains and result.passed else 0

    @staticmethod
    def points_of(check: str) -> int:
        """Return the points of a check that passes."""
        return (POINTS | GAP_POINTS)[check]

    @property
    def failures(self) -> list[CheckResult]:
        """The checks that failed."""
        return [result for result in self.results if result.status == "failed"]

    def __repr__(self) -> str:
        failed = ", ".join(result.name for result in self.failures)
        return f"<Grade {self.exercise}: {self.score} of {self.max_score} points{failed and f', failed: {failed}'}>"

    def _repr_html_(self) -> str:
        """Show the points in a notebook, over the picture of the run beside what is expected."""
        from minitrain.learn.picture import notebook_picture  # noqa: PLC0415  (only where somebody looks)

        drawn = notebook_picture(self, self.asked) if self.asked is not None else ""
        return f'<pre style="white-space: pre-wrap">{escape(str(self))}</pre>{drawn}'

    def __str__(self) -> str:
        lines = [f"{self.exercise}: {self.score} of {self.max_score} points"]
        for result in self.results:
            lines.append(f"  {result.status:8}{result.name}")
            lines += [f"          {line}" for line in "\n".join(result.lines()).split("\n") if line]  # each is indented
        return "\n".join(lines)


@typed
def grade(
    strategy: str | Path | Strategy | Mapping[str, Any],
    exercise: str | Exercise,
    *,
    hidden: bool = True,
    limits: Limits | None = None,
    beside: Sequence[Path] | None = None,
    keep_run: bool | None = None,
) -> Grade:
    """Grade a submission.

    Args:
        strategy: a file, or "file.py:function", which gets a process of its own; or a coroutine function of one's own,
            which is run here. For an exercise that explains a gap: a file of answers, or these by name.
        exercise: its name or number, its folder, or a loaded exercise.
        hidden: whether to use the hidden sizes too.
        limits: of the process, and how it is kept apart.
        beside: further files that it may import; those of its own folder that it does import if None.
        keep_run: whether the grade is to hold the first run that failed, or else the first, for pictures; None for a
            function of one's own alone, as in a notebook.

    Returns:
        The grade.

    Raises:
        UsageError: there is no such exercise or file, or the required isolation is not to be had.
    """
    began = time.monotonic()
    asked = exercise if isinstance(exercise, Exercise) else load_exercise(exercise)
    if asked.slowed:
        return Grade(asked.name, _explained(strategy, asked), time.monotonic() - began, isolation=NOTHING_RUNS)
    if isinstance(strategy, Mapping):
        raise UsageError(f"exercise {asked.name} asks for a strategy; give a function or a file")
    cases = [*asked.public, *(asked.hidden if hidden else ())]
    grading = _Grading(asked, limits or Limits())
    if callable(strategy):
        grading.judge(cases, _record_here(strategy, asked, cases))
    else:
        grading.submission(strategy, cases, beside)
    outcome, judged = grading.outcome, grading.judged
    results = _sum_up(asked, cases, judged, outcome)
    if not callable(strategy):
        name = str(_file_of(strategy, asked)[0])
        results = [replace(result, hint=result.hint.replace(FILE, name)) for result in results]
    seconds = time.monotonic() - began
    keeps = callable(strategy) if keep_run is None else keep_run
    drawn = (*grading.drawn(cases), asked) if keeps else (None, None, None)
    figures = _leaderboard(judged) if all(result.passed for result in results) else {}
    return Grade(asked.name, results, seconds, outcome.output, figures, outcome.isolation, *drawn)


def _explained(answers: str | Path | Strategy | Mapping[str, Any], exercise: Exercise) -> list[CheckResult]:
    """Judge the answers of an exercise that explains a gap.

    Raises:
        UsageError: there are none.
    """
    from minitrain.learn.predictions import judged  # noqa: PLC0415  (numpy only where it is wanted)

    if callable(answers):
        raise UsageError(f"exercise {exercise.name} asks for answers; give them by name, or a file")
    return judged(exercise, answers if isinstance(answers, Mapping) else _file_of(answers, exercise)[0])


class _Grading:
    """One grading under way.

    Attributes:
        outcome: of the submission's processes, as far as they have run.
        judged: the cases so far.
    """

    def __init__(self, exercise: Exercise, limits: Limits) -> None:
        self.exercise = exercise
        self.limits = limits
        self.outcome = Outcome([], None, "", 0.0)
        self.judged: list[Judged] = []
        self._seconds_left = limits.seconds
        self._beside: Sequence[Path] = ()

    def submission(self, strategy: str | Path, cases: Sequence[Case], beside: Sequence[Path] | None) -> None:
        """Run and judge a submission's file, its public sizes apart from the hidden ones."""
        path, function = _file_of(strategy, self.exercise)
        self._beside = imported(path) if beside is None else beside
        public, hidden = ([case for case in cases if case.hidden is kind] for kind in (False, True))
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(self._process(path, function, public))
            found = first.outcome()
            going_on = hidden and not found.failure and not any("error" in result for result in found.results)
            second = stack.enter_context(self._process(path, function, hidden)) if going_on else None
            self.judge(public, found)  # meanwhile the second process runs
            if second is not None:
                self.judge(hidden, second.outcome())

    def _process(self, path: Path, function: str, cases: Sequence[Case]) -> Any:
        """Return the process of some cases, which is yet to be entered."""
        secrets = [self.exercise.folder]
        return submitted(path, function, cases, self.exercise.hardware, self.limits, secrets, self._beside)

    def judge(self, cases: Sequence[Case], found: Outcome) -> None:
        """Judge what came back with some cases, and add it to what is known."""
        for case, result in zip(cases, found.results, strict=False):
            if "error" not in result:
                prepare_judgement(self.exercise, case)
            began = time.process_time()
            self.judged.append(judge(self.exercise, case, result, seconds=max(0.0, self._seconds_left)))
            self._seconds_left -= time.process_time() - began
        failure = found.failure
        if failure and cases and cases[0].hidden:
            may_use = f"{self.limits.seconds:g} s and {self.limits.memory_bytes / 2**30:g} GiB for all of them"
            failure = f"its process ended early at a hidden size, or was stopped there: it may use {may_use}"
        known = self.outcome
        self.outcome = Outcome(
            [*known.results, *found.results],
            known.failure or failure,
            known.output or ("" if cases and cases[0].hidden else found.output),
            known.seconds + found.seconds,
            found.isolation,
        )

    def drawn(self, cases: Sequence[Case]) -> tuple[Case | None, Run | None]:
        """Return the first sizes that failed, or else the first of all, and their run; None for what there is not."""
        for case, judged, result in zip(cases, self.judged, self.outcome.results, strict=False):
            if any(not check.passed for check in judged.values()):
                return case, judged.run or self._up_to_error(case, result)
        return (cases[len(self.judged)], None) if len(self.judged) < len(cases) else (cases[0], self.judged[0].run)

    def _up_to_error(self, case: Case, result: Mapping[str, Any]) -> Run | None:
        """Return the run that an error ended, as far as it came, in the time that is left."""
        from minitrain.learn.picture import run_up_to_error  # noqa: PLC0415  (only where somebody looks)

        return None if case.hidden else run_up_to_error(self.exercise, case, result, max(0.0, self._seconds_left))


def _file_of(strategy: str | Path, exercise: Exercise) -> tuple[Path, str]:
    """Return a submission's file, and its function in it."""
    path, colon, function = str(strategy).rpartition(":")
    if not (colon and path.endswith(".py")):
        path, function = str(strategy), exercise.function
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path}; give the file to be graded")
    return Path(path), function


def _record_here(strategy: Strategy, exercise: Exercise, cases: Sequence[Case]) -> Outcome:
    """Run a function of one's own in this process."""
    from minitrain.learn.worker import run_case  # noqa: PLC0415

    results = []
    for case in cases:
        asked = {"sizes": case.sizes, "options": case.options, "hardware": exercise.hardware}
        results.append(run_case(strategy, asked))
        if "error" in results[-1]:
            break
    return Outcome(results, None, "", 0.0)


def _sum_up(exercise: Exercise, cases: Sequence[Case], judged: Sequence[Judged], outcome: Outcome) -> list[CheckResult]:
    """Return one result a check: the first failure over all sizes, or that it passed on all of them."""
    results: list[CheckResult] = []
    whole = outcome.failure is None and len(judged) == len(cases)
    for name in CHECKS:
        if any(result.status == "failed" for result in results if result.name in _GATE):
            results.append(CheckResult(name, "skipped"))
            continue
        failures = [found[name] for found in judged if name in found and not found[name].passed]
        if failures:
            results.append(failures[0])
        elif whole or any(not result.passed for found in judged for result in found.values()):
            results.append(CheckResult(name, "passed"))
        else:
            message = outcome.failure or "it did not run with every size"
            results.append(failed(exercise, None, name, message))
    return results


def _leaderboard(judged: Sequence[Judged]) -> dict[str, float]:
    """Return the figures of the first size."""
    run = judged[0].run
    if run is None:
        return {}
    step_time = run.step_time + last_clock(run) - run.last_clock
    return {
        "mfu": (run.mfu or 0.0) * (run.step_time / step_time if step_time else 1.0),
        "step_time_s": step_time,
        "peak_memory_gib": run.peak_memory_bytes / 2**30,
    }
