"""Hints for what went wrong: by the law that was broken or the mistake behind an error, else by the check.

The submission's process sends nothing but an error's text, so a mistake is recognised by that text; `hints.json` has
the mistakes. An exercise may have hints of its own, in `hints_by_check` of its `exercise.json`: under the name of a
check, for the mistakes that the exercise is about (missing samples, deadlocks, and what has no name here), or under a
name of `NAMES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from minitrain.learn.exercise import Case, Exercise
from minitrain.operations import COMMUNICATIONS

HINTS: Mapping[str, str] = {
    "runs": "run it alone and read where it ends: {command}",
    "laws": "the message names the law; print(model.rank, tensor) just before that line shows what you really have",
    "numerics": "a sample is missing, counted twice, or summed over the wrong ranks: which rank brings which samples?",
    "communication": "count by hand what each rank must send in one step, and compare it with the kinds above",
    "time": "which rank waits, and for whom? its picture shows it: {command}",
    "memory": "which tensor lives longer than its last use, or is whole where a shard would do?",
}
"""By check, where nothing more is known."""

_NO_SIZES = "`minitrain run`, with sizes of your own"
"""The command where sizes are not to be shown."""

FILE = "FILE.py"
"""What stands for the submission in a hint, until somebody knows its name."""

_LAUNCHED = frozenset({*COMMUNICATIONS, "receive"})
"""Calls that may be launched."""


@dataclass(frozen=True, slots=True)
class _Mistake:
    """A mistake that an error's text gives away.

    Args:
        name: under which an exercise may have a hint of its own.
        pattern: a regular expression that finds it.
        hint: how to go on.
        of_exercise: whether the exercise's hint for the check comes first.
    """

    name: str
    pattern: str
    hint: str
    of_exercise: bool = False


_MISTAKES = tuple(_Mistake(**one) for one in json.loads(files(__package__).joinpath("hints.json").read_text("utf-8")))
"""The first whose pattern is found counts."""

NAMES = frozenset(mistake.name for mistake in _MISTAKES)
"""What an exercise may have hints of its own for, beside the checks."""


def hint_for(exercise: Exercise, check: str, message: str, *, case: Case | None = None, never_awaited: str = "") -> str:
    """Return the hint for a check that failed.

    Args:
        exercise: what was asked.
        check: the check's name.
        message: of the error, or of the budget, and lines that say where it comes from.
        case: the sizes, for a command to try; None where they are not to be shown.
        never_awaited: the call that the submission forgot to await, such as "ddp.py:12 calls all_reduce".
    """
    if never_awaited:
        call = never_awaited.rpartition(" ")[2]
        launch = f", or `work = model.launch(model.{call}(...))` and `await work` later" if call in _LAUNCHED else ""
        return f"{never_awaited} without `await`, so that it never happens; write `await` before it{launch}"
    own = exercise.hints_by_check
    found = next((mistake for mistake in _MISTAKES if re.search(mistake.pattern, message)), None)
    if found is None:
        return own.get(check) or HINTS[check].format(command=command_for(exercise, case) if case else _NO_SIZES)
    of_exercise = own.get(check) if found.of_exercise else None
    return own.get(found.name) or of_exercise or found.hint


def command_for(exercise: Exercise, case: Case) -> str:
    """Return the command that simulates a submission, `FILE`, with some sizes."""
    options: dict[str, Any] = {
        "--world-size": case.world_size,
        **({"--layers": case.num_layers} if case.workload is None else {"--model": case.workload}),
        "--batch": case.global_batch_size,
        "--hw": exercise.hardware,
    }
    words = [f"{name} {value}" for name, value in options.items()]
    words += [f"-o {name}={str(value).replace(' ', '')}" for name, value in case.options.items()]
    return f"`minitrain run {FILE}:{exercise.function} {' '.join(words)}`"
