"""Grading: does a submitted strategy train, as one device does, within budgets of communication, time and memory?

A submission runs in a process of its own, which may import neither the shipped strategies nor the references. All that
comes back from there is a *program*: which operations each rank did, in which order, on which tensors. The grader runs
that program itself, on its own engine, with strict accounting and real numbers, and judges this run alone. So nothing
that a submission does to its own process (patching minitrain, leaving early, forging tensors) can earn a point: it can
only choose which operations to ask for. The rest of the machine is protected by the kernel (`isolation`).

May import: the rooms up to `search`. Open `grader` first. The shipped exercises lie in `exercises`; `explorer` is the
page on which learners try a step and hand in solutions.

| module | what it does |
|---|---|
| `exercise` | an exercise's files; the result of a check |
| `budgets` | the limits that follow from its reference, a teacher's secret sizes, and what a run beyond them needed |
| `sandbox` | runs a submission in a process of its own, with a copy of the package; that process runs `worker` |
| `isolation` | works out how that process is kept apart, and its copy; `confinement` keeps it so, in the process |
| `recorder` | an observer that writes a program down |
| `wire` | what is sent to the grader, errors too, as plain data |
| `replay` | runs a program again, and measures a run beyond its peak memory |
| `checks`, `grader` | judge one run, say what a rank held and how to go on, and put all runs together |
| `predictions` | what is asked and not run: figures before a run, and what explains a gap |
| `submissions`, `classes` | find what was handed in, grade it, and write grades down, one by one and in tables |
| `picture` | is for learners: a run beside the reference's, drawn, as far as it came |
| `verify`, `wheel`, `notebook`, `testing`, `pytest_plugin` | are for teachers, `wheel` for Gradescope, too |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from minitrain.learn.exercise import CheckResult, Exercise, load_exercise, shipped_exercises

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
