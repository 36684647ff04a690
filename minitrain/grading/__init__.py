"""Grading: does a submitted strategy train, as one device does, within budgets of communication, time and memory?

A submission runs in a process of its own, which may import neither the shipped strategies nor the references. All that
comes back from there is a *program*: which operations each rank did, in which order, on which tensors. The grader runs
that program itself, on its own engine, with strict accounting and real numbers, and judges this run alone. So nothing
that a submission does to its own process (patching minitrain, leaving early, forging tensors) can earn a point: it can
only choose which operations to ask for. What it does to the rest of the machine is up to the kernel to refuse.

May import: the rooms up to `numerics`, `schedules` and `trace`. Open `grader` first.

| module | what it does |
|---|---|
| `exercise`, `budgets` | know what is asked, and what the reference needs |
| `sandbox` | runs a submission in a process of its own, with a `copied_package`; its side is `worker` |
| `isolation`, `readable`, `syscalls` | work out how that process is kept apart; `confinement` does it, in the process |
| `recorder`, `error_reports`, `wire`, `replay` | write programs and errors down, send them, and run programs again |
| `usage`, `memory` | measure a run beyond its peak memory, and say what a rank held |
| `checks`, `hints`, `grader` | judge one run, say how to go on, and put all runs together |
| `submissions`, `classes`, `report` | find what was handed in, grade it on all cores, and write the grades down |
| `picture`, `solution` | are for learners: what failed beside what is expected, and a reference as one file |
| `verify`, `secret_sizes`, `package`, `wheel`, `notebook`, `testing`, `pytest_plugin` | are for teachers |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from minitrain.grading.exercise import Exercise, load_exercise, shipped_exercises
from minitrain.grading.result import CheckResult

if TYPE_CHECKING:
    from minitrain.grading.grader import Grade, grade

__all__ = ["CheckResult", "Exercise", "Grade", "grade", "load_exercise", "shipped_exercises"]


def __getattr__(name: str) -> Any:
    """Import the grader, which brings the simulator along, when it is first used."""
    if name not in ("Grade", "grade"):
        raise AttributeError(f"module 'minitrain.grading' has no attribute {name!r}")
    return getattr(import_module("minitrain.grading.grader"), name)
