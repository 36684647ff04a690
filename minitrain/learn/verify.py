"""Is an exercise sound? Its reference passes, its starter fails, and each wrong solution fails as it says."""

from __future__ import annotations

from minitrain.errors import MinitrainError
from minitrain.learn.budgets import budget_for, reference_budget, run_reference
from minitrain.learn.checks import operations_fault
from minitrain.learn.exercise import Exercise
from minitrain.learn.grader import grade
from minitrain.learn.recorder import Recorder
from minitrain.proof.problem import Problem
from minitrain.proof.proof import compare_with_reference


def faults_of(exercise: Exercise) -> list[str]:
    """Return what is wrong with an exercise, one line a fault."""
    if not exercise.has_reference:
        return ["its reference.py is not there"]
    faults = [f"it has {len(exercise.hints)} hints; give three"] if len(exercise.hints) != 3 else []
    faults += _faults_of_reference(exercise)
    if faults:
        return faults
    starter = grade(exercise.folder / "starter.py", exercise)
    if starter.score:
        faults.append(f"the starter has {starter.score} points; it must have none")
    for path, check, words in exercise.wrong:
        failures = {result.name: result.message for result in grade(path, exercise).failures}
        if check not in failures:
            wanted = check or "(say: # fails: CHECK)"
            faults.append(f"wrong/{path.name} must fail for {wanted}, it fails for {[*failures]}")
        elif words not in failures[check]:
            faults.append(f"wrong/{path.name} must fail for {check} with {words!r}, its message is {failures[check]!r}")
    return faults


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
        meets = own.communication_bytes <= budget.communication_bytes and run.last_clock < budget.step_time_s
        if not meets or run.peak_memory_bytes >= budget.memory_bytes:
            faults.append(f"the reference does not meet its budgets with {case}; write them anew")
    return faults
