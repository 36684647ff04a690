"""Grading: does a submitted strategy train, as one device does, within budgets of communication, time and memory?

A submission runs in a process of its own, which may import neither the shipped strategies nor the references. All that
comes back from there is a *program*: which operations each rank did, in which order, on which tensors. The grader runs
that program itself, on its own engine, with strict accounting and real numbers, and judges this run alone. So nothing
that a submission does to its own process (patching minitrain, leaving early, forging tensors) can earn a point: it can
only choose which operations to ask for. The rest of the machine is protected by the kernel (`isolation`).

May import: the rooms up to `proof`, and `search`. Open `grader` first. The shipped exercises lie in `exercises`.

| module | what it does |
|---|---|
| `exercise`, `budgets` | an exercise's files, the limits that follow from its reference, and a teacher's secret sizes |
| `sandbox` | runs a submission in a process of its own, with a `copied_package`; that process runs `worker` |
| `isolation` | works out how that process is kept apart; `confinement` does it, in the process |
| `recorder` | an observer that writes a program down |
| `wire`, `replay` | what is sent to the grader, errors too, as plain data, and running a program again |
| `usage` | measures a run beyond its peak memory |
| `causes` | says where a deadlock, or a run beyond its budget, comes from |
| `checks`, `hints`, `grader` | judge one run, say what a rank held and how to go on, and put all runs together |
| `result` | one check's |
| `gap` | the exercise that explains a gap, which asks for answers and for no strategy |
| `predictions` | questions before a run, whose figures are the answers |
| `submissions`, `classes` | find what was handed in, grade it, and put grades into tables of students and places |
| `report` | writes grades down |
| `picture` | is for learners: a run beside the reference's, drawn, as far as it came |
| `verify`, `wheel`, `notebook`, `testing`, `pytest_plugin` | are for teachers, `wheel` for Gradescope, too |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from minitrain.learn.exercise import Exercise, load_exercise, shipped_exercises
from minitrain.learn.result import CheckResult

if TYPE_CHECKING:
    from minitrain.learn.grader import Grade, grade
    from minitrain.learn.picture import expected_run
    from minitrain.learn.predictions import predict

__all__ = ["CheckResult", "Exercise", "Grade", "expected_run", "grade", "load_exercise", "predict", "shipped_exercises"]


def __getattr__(name: str) -> Any:
    """Import what imports the simulator when it is first used."""
    files = {"Grade": "grader", "grade": "grader", "expected_run": "picture", "predict": "predictions"}
    if name not in files:
        raise AttributeError(f"module 'minitrain.learn' has no attribute {name!r}")
    return getattr(import_module(f"minitrain.learn.{files[name]}"), name)
