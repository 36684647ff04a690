"""Is an exercise sound? Its reference passes, its starter fails, and each wrong solution fails as it says.

What an exercise asks for beside the laws (operations, an order, bounds) must be told by one of its wrong solutions.
"""

from __future__ import annotations

from collections.abc import Iterator

from minitrain.errors import MinitrainError
from minitrain.files import TemporaryFolder
from minitrain.learn.budgets import budget_for, reference_budget, run_reference
from minitrain.learn.checks import NAMES, operations_fault
from minitrain.learn.exercise import CHECKS, Exercise
from minitrain.learn.grader import Grade, grade
from minitrain.learn.predictions import FIGURES
from minitrain.learn.recorder import Recorder
from minitrain.learn.replay import last_clock
from minitrain.proof.problem import Problem
from minitrain.proof.proof import compare_with_reference

_OF_BOUNDS = {
    "messages": "communicate more often than the budget",
    "communication": "communicate more than the budget",
    "time": "takes longer than the budget",
    "memory": "holds more than the budget",
}
"""What a submission is told that needs more."""


def faults_of(exercise: Exercise) -> list[str]:
    """Return what is wrong with an exercise, one line a fault."""
    if not exercise.has_reference:
        return ["its reference.py is not there"]
    faults = [f"it has {len(exercise.hints)} hints; give three"] if len(exercise.hints) != 3 else []
    faults += [
        f"hints_by_check has {name!r}, which is neither a check nor a mistake; use some of {', '.join(sorted(known))}"
        for known in [NAMES | set(CHECKS)]
        for name in exercise.hints_by_check
        if name not in known
    ]
    faults += [*_faults_of_reference(exercise), *_faults_of_questions(exercise)]
    if faults:
        return faults
    starter = _graded(exercise.starter, exercise)
    if starter.score:
        faults.append(f"the starter has {starter.score} points; it must have none")
    told: list[str] = []
    for name, text, check, words in exercise.wrong:
        failures = {result.name: result.message for result in _graded(text, exercise).failures}
        told += failures.values()
        if check not in failures:
            wanted = check or "(say: # fails: CHECK)"
            faults.append(f"{name} must fail for {wanted}, it fails for {[*failures]}")
        elif words not in failures[check]:
            faults.append(f"{name} must fail for {check} with {words!r}, its message is {failures[check]!r}")
    return faults + [
        f"no solution in wrong/ fails because {rule}; add one, or nobody knows whether the exercise can tell"
        for rule in _rules(exercise)
        if not any(rule in message for message in told)
    ]


def _graded(text: str, exercise: Exercise) -> Grade:
    """Return the grade of a text as submission."""
    with TemporaryFolder("minitrain-verify-") as folder:
        file = folder / "submission.py"
        file.write_text(text, encoding="utf-8")
        return grade(file, exercise)


def _rules(exercise: Exercise) -> Iterator[str]:
    """Yield what an exercise asks for beside the laws, as a submission is told."""
    yield from (f"the statement forbids {name}" for name in exercise.forbidden_operations)
    yield from (f"the statement asks for {name}" for name in exercise.required_operations)
    if exercise.ordered_operations:
        yield f"the statement asks for an order of {' and '.join(exercise.ordered_operations)}"
    yield from (_OF_BOUNDS[name] for name in exercise.bounds)


def _faults_of_questions(exercise: Exercise) -> Iterator[str]:
    """Yield what of the questions asked first has no answer."""
    asked = exercise.predict
    if asked is None:
        return
    try:
        run = run_reference(exercise, asked.case)
    except (MinitrainError, KeyError) as error:
        yield f"predict asks for {asked.case}, with which the reference fails: {error}"
        return
    for name in asked.because:
        if FIGURES[name].is_near(0.0, FIGURES[name].value(run)):
            yield f"predict asks for {name} with {asked.case}, where 0 is near enough; take sizes with more of it"


def _faults_of_reference(exercise: Exercise) -> list[str]:
    """Return where the reference does not train, or does not meet its own budgets with a margin."""
    faults = []
    problem = Problem()
    for case in (*exercise.public, *exercise.hidden):
        try:
            arrays = {"numerics": problem} if case.is_proven else {}
            run = run_reference(exercise, case, **arrays)
            if case.is_proven:
                compare_with_reference(run, problem)
            budget, own = budget_for(exercise, case), reference_budget(exercise, case)
        except (MinitrainError, KeyError) as error:
            faults.append(f"the reference fails with {case}: {error}")
            continue
        if exercise.required_operations or exercise.forbidden_operations:
            recorder = Recorder()  # numbers leave no room for it in the run above
            run_reference(exercise, case, observers=[recorder])
            fault = operations_fault(exercise, case, recorder.programs)
            faults += [] if fault is None else [f"the reference does otherwise with {case}: {fault[1]}"]
        meets = own.communication_bytes <= budget.communication_bytes and last_clock(run) < budget.step_time_s
        if not meets or run.peak_memory_bytes >= budget.memory_bytes:
            faults.append(f"the reference does not meet its budgets with {case}; write them anew")
    return faults
