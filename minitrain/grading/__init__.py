"""Grading: does a submitted strategy train, as one device does, within budgets of communication, time and memory?

A submission runs in a process of its own, which may import neither the shipped strategies nor the references. All that
comes back from there is a *program*: which operations each rank did, in which order, on which tensors. The grader runs
that program itself, on its own engine, with strict accounting and real numbers, and judges this run alone. So nothing
that a submission does to its own process (patching minitrain, leaving early, forging tensors) can earn a point: it can
only choose which operations to ask for, and that is what a strategy is.

`recorder` writes programs, `replay` runs them, `sandbox` and `worker` are the two sides of the process boundary,
`checks` judges, `exercise` knows what is asked, `grader` puts all together, `report` writes it down.
"""

from minitrain.grading.exercise import Exercise, load_exercise, shipped_exercises
from minitrain.grading.grader import Grade, grade
from minitrain.grading.result import CheckResult

__all__ = ["CheckResult", "Exercise", "Grade", "grade", "load_exercise", "shipped_exercises"]
