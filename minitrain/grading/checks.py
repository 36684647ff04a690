"""Judging one run of a submission, from its programs alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from minitrain.errors import LawError, MinitrainError, ProofError
from minitrain.grading.budgets import budget_for, communication_by_kind
from minitrain.grading.exercise import Case, Exercise
from minitrain.grading.recorder import MOST_STEPS
from minitrain.grading.replay import replayed
from minitrain.grading.result import CheckResult
from minitrain.numerics.problem import Problem
from minitrain.numerics.proof import compare_with_reference
from minitrain.run.result import Run
from minitrain.run.simulation import simulate

HINTS: Mapping[str, str] = {
    "runs": "run it alone, `minitrain run FILE.py:FUNCTION --world-size ...` with these sizes, and read where it ends",
    "laws": "the message names the law; print(model.rank, tensor) just before that line shows what you really have",
    "numerics": "a sample is missing, counted twice, or summed over the wrong ranks: which rank brings which samples?",
    "communication": "count by hand what each rank must send in one step, and compare it with the kinds above",
    "time": "draw it, `minitrain run ... ` writes a Gantt chart: which rank waits, and for whom?",
    "memory": "which tensor lives longer than its last use, or is whole where a shard would do?",
}

Results = dict[str, CheckResult]


class Judged(dict[str, CheckResult]):
    """The results of one run by check, and the run itself where it came to its end."""

    run: Run | None = None


def judge(exercise: Exercise, case: Case, found: Mapping[str, Any]) -> Judged:
    """Judge what a submission did with some sizes.

    Args:
        exercise: what was asked.
        case: the sizes.
        found: programs and lines of the ranks, or an error.

    Returns:
        A result for each check that was made.
    """
    try:
        if "error" in found:
            return _ended_early(exercise, case, found["error"])
        programs, lines = _programs_of(found, case)
    except (LookupError, TypeError, ValueError, AttributeError):
        return _up_to("runs", failed(exercise, case, "runs", "what came back from its process makes no sense"))
    problem = Problem()
    try:
        run = simulate(
            replayed(programs, exercise.function),
            strict=True,
            numerics=problem,
            hardware=exercise.hardware,
            **case.sizes,
        )
        judged = _passed("runs", "laws")
        judged.run = run
        compare_with_reference(run, problem)
    except MinitrainError as error:
        return _broken(exercise, case, error, lines)
    judged.update(_passed("numerics"))
    judged.update(_budgets(exercise, case, run))
    return judged


def _programs_of(found: Mapping[str, Any], case: Case) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return the programs and lines that came back, which may be anything.

    Raises:
        ValueError: they are not one list a rank, or too long.
    """
    programs, lines = found["programs"], found["lines"]
    for lists in (programs, lines):
        if len(lists) != case.world_size or not all(isinstance(part, list) for part in lists):
            raise ValueError("there must be one list a rank")
    if sum(map(len, programs)) > MOST_STEPS:
        raise ValueError(f"there are more than {MOST_STEPS} steps")
    return programs, lines


def _passed(*names: str) -> Judged:
    """Return that checks passed."""
    return Judged({name: CheckResult(name, "passed") for name in names})


def failed(exercise: Exercise, case: Case | None, name: str, message: str, **facts: Any) -> CheckResult:
    """Return that a check failed, with the exercise's hint for it."""
    size = "" if case is None else "a hidden size" if case.hidden else str(case)
    hint = exercise.hints_by_check.get(name, HINTS[name])
    return CheckResult(name, "failed", message, size=size, hint=hint, **facts)


def _up_to(name: str, result: CheckResult) -> Judged:
    """Return that a check failed and those before it passed."""
    before = {"runs": (), "laws": ("runs",), "numerics": ("runs", "laws")}[name]
    judged = _passed(*before)
    judged[name] = result
    return judged


def _ended_early(exercise: Exercise, case: Case, error: Mapping[str, Any]) -> Judged:
    """Judge an error in the submission's process."""
    kinds = error.get("kinds", [])
    name = "laws" if "LawError" in kinds else "runs"
    message = str(error.get("message"))
    if "MinitrainError" not in kinds and kinds:
        message = f"{kinds[0]}: {message}"
    facts = {fact: error.get(fact) for fact in ("rank", "layer", "step", "line")}
    return _up_to(name, failed(exercise, case, name, message, **facts))


def _broken(exercise: Exercise, case: Case, error: MinitrainError, lines: Sequence[Sequence[Any]]) -> Judged:
    """Judge an error of the run on this side."""
    name = "numerics" if isinstance(error, ProofError) else "laws" if isinstance(error, LawError) else "runs"
    facts: dict[str, Any] = {"rank": error.rank, "layer": error.layer}
    if error.place is not None:
        rank, number, facts["step"] = error.place
        facts.update(rank=rank, line=_line(lines, rank, number))
    if name == "numerics":
        facts.update(expected="the numbers of a single device", got=_difference(error))
    return _up_to(name, failed(exercise, case, name, str(error).split("\n")[0], **facts))


def _line(lines: Sequence[Sequence[Any]], rank: int, number: int) -> str | None:
    """Return where a step stands in the submission, as it says."""
    known = lines[rank] if rank < len(lines) else ()
    return str(known[number]) if number < len(known) and known[number] is not None else None


def _difference(error: MinitrainError) -> str:
    """Return by how much the numbers differ, in words."""
    found = re.search(r"Mismatched elements: [^\n]*", str(error))
    return f"differences up to {error.difference:.3g}" + (f" ({found.group(0)})" if found else "")


def _budgets(exercise: Exercise, case: Case, run: Run) -> Results:
    """Compare a run that trains with its budgets."""
    budget = budget_for(exercise, case)
    moved = communication_by_kind(run)
    results: Results = dict(_passed("communication", "time", "memory"))
    if sum(moved.values()) > budget.communication_bytes * (1 + 1e-9):
        results["communication"] = failed(
            exercise,
            case,
            "communication",
            "the ranks communicate more than the budget",
            expected=f"at most {_by_kind(budget.communication_by_kind)}",
            got=_by_kind(moved),
        )
    if run.step_time > budget.step_time_s:
        results["time"] = failed(
            exercise,
            case,
            "time",
            "the step takes longer than the budget",
            expected=f"at most {budget.step_time_s * 1e3:.3f} ms",
            got=f"{run.step_time * 1e3:.3f} ms",
        )
    if run.peak_memory_bytes > budget.memory_bytes:
        rank = run.peak_memory_per_rank.index(run.peak_memory)
        results["memory"] = failed(
            exercise,
            case,
            "memory",
            "a rank holds more than the budget",
            rank=rank,
            expected=f"at most {budget.memory_bytes / 2**30:.3f} GiB",
            got=f"{run.peak_memory_bytes / 2**30:.3f} GiB",
        )
    return results


def _by_kind(moved: Mapping[str, float]) -> str:
    """Return bytes by kind in words."""
    kinds = ", ".join(f"{kind} {size / 2**20:.0f}" for kind, size in moved.items())
    return f"{sum(moved.values()) / 2**20:.0f} MiB over all ranks" + (f" ({kinds})" if kinds else "")
