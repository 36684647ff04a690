"""The exercise that explains a gap: a measured run in which something is slow that the prediction does not know.

The run is the reference's, timed again with noise, and with one kind of operation slowed down: everywhere, on one rank,
or in one layer. A name decides which, so that each student has another run, and a grade can be repeated. Answers are
constants of a file, which is read and never run.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from minitrain.learn.exercise import Exercise
from minitrain.learn.picture import expected_run
from minitrain.learn.result import CheckResult, printable
from minitrain.learn.sandbox import source_of

if TYPE_CHECKING:
    from minitrain.run.result import Run

ANSWERS = ("name", "step_time_ms", "operation", "rank", "layer")
NEAR = 0.02
"""How far off a predicted step time may be, of itself."""

_NOISE = 0.01  # standard deviation of the logarithm of a duration
_LONGEST = 10_000  # characters: Python's parser may need gigabytes for more


class Slowed(NamedTuple):
    """What is slow in a measured run.

    Args:
        operation: its type.
        rank: on which it is slow; None for all.
        layer: in which it is slow; None for all.
        factor: how many times as long it takes there.
    """

    operation: str
    rank: int | None
    layer: int | None
    factor: float

    def holds(self, operation: str, rank: int, layer: int | None) -> bool:
        """Return whether an operation is slow."""
        return operation == self.operation and self.rank in (None, rank) and self.layer in (None, layer)


def slowed_for(exercise: Exercise, name: str) -> Slowed:
    """Return what is slow in the run of a name: the same on every machine."""
    case = exercise.public[0]
    dice = random.Random(f"{exercise.name}\n{name.strip().lower()}")
    operation = dice.choice([*exercise.slowed])
    computes = operation in ("forward", "backward", "update")
    where = dice.choice(("everywhere", "layer", "rank") if computes else ("everywhere", "layer"))
    rank = dice.randrange(case.world_size) if where == "rank" else None  # a collective is slow for all of its ranks
    layer = dice.randrange(case.num_layers) if where == "layer" else None
    return Slowed(operation, rank, layer, dice.uniform(5, 8) if where == "layer" else dice.uniform(1.8, 2.6))


def runs_of(exercise: Exercise, name: str) -> tuple[Run, Run]:
    """Return what is predicted, and what was measured under a name."""
    from minitrain.run.analysis.retiming import make_graph, retimed_events  # noqa: PLC0415  (only where it is asked for)

    predicted = expected_run(exercise)
    line, slow = predicted.timeline, slowed_for(exercise, name)
    duration = line.duration.copy()
    at = 0
    for rank, log in enumerate(predicted.logs):
        for place, event in enumerate(log):
            of_all = event.stream != "compute"  # the ranks of a collective measure one duration
            dice = random.Random(f"{name}\n{'all' if of_all else rank}\n{place}")
            times = slow.factor if slow.holds(event.typ, rank, event.layer) else 1.0
            duration[at] *= times * math.exp(dice.gauss(0, _NOISE))
            at += 1
    launched, time = retimed_events(make_graph(line), duration)
    columns = iter(zip(time.tolist(), duration.tolist(), launched.tolist(), strict=True))
    logs = [
        [replace(event, **dict(zip(("time", "duration", "launched"), next(columns), strict=True))) for event in log]
        for log in predicted.logs
    ]
    return predicted, replace(predicted, logs=logs, models=(), prepared=None)


def write_runs(exercise: Exercise, answers: Mapping[str, Any], beside: Path) -> list[Path]:
    """Write both runs of a name beside a file of answers, and return their paths."""
    names = [beside.with_suffix(f".{kind}.jsonl") for kind in ("predicted", "measured")]
    for path, run in zip(names, runs_of(exercise, answers["name"]), strict=True):
        run.save(path)
    return names


def answers_of(file: Path) -> dict[str, Any]:
    """Return the answers of a file: its constants of the names that are asked for.

    Raises:
        ValueError: it is too long, or no Python.
    """
    text = source_of(file).decode(errors="replace")
    if len(text) > _LONGEST:
        raise ValueError(f"answers are five constants, got a file of more than {_LONGEST} characters")
    try:
        body = ast.parse(text).body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"answers are constants of Python, got {error}") from error
    found: dict[str, Any] = {}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
    return {name: found.get(name) for name in ANSWERS}


def judged(exercise: Exercise, given: Mapping[str, Any] | Path) -> list[CheckResult]:
    """Return a result a check: the prediction, the operation, and where it is slow.

    Args:
        exercise: what was asked.
        given: answers by name, or a file of them.
    """
    try:
        answers = answers_of(given) if isinstance(given, Path) else given
        said = _prediction_fault(exercise, answers)
    except ValueError as error:
        answers, said = {}, str(error)
    if said:
        hint = "simulate your own ZeRO-3 with the sizes of the statement, and write down its step time"
        return [
            CheckResult("predicted", "failed", printable(said), hint=hint),
            CheckResult("operation", "skipped"),
            CheckResult("place", "skipped"),
        ]
    slow, hint = slowed_for(exercise, answers["name"]), 'what does `minitrain diff` say after "Mostly"?'
    operation, place = answers.get("operation"), (answers.get("rank"), answers.get("layer"))
    if operation != slow.operation:
        message = f"the operation that the prediction missed is another than {_shown(operation)}"
        kinds = f"one of {', '.join(exercise.slowed)}"
        wrong = CheckResult("operation", "failed", message, expected=kinds, got=_shown(operation), hint=hint)
        return [CheckResult("predicted", "passed"), wrong, CheckResult("place", "skipped")]
    results = [CheckResult("predicted", "passed"), CheckResult("operation", "passed")]
    if place == (slow.rank, slow.layer):
        return [*results, CheckResult("place", "passed")]
    message = f"{slow.operation} is not slow where the answers say: rank {_shown(place[0])}, layer {_shown(place[1])}"
    return [*results, CheckResult("place", "failed", message, hint=f"{hint} None stands for all")]


def _prediction_fault(exercise: Exercise, answers: Mapping[str, Any]) -> str:
    """Return what is wrong with a prediction, "" if nothing is."""
    name, step = answers.get("name"), answers.get("step_time_ms")
    if not (isinstance(name, str) and name.strip()):
        return f"name must be yours, as text, got {_shown(name)}; it chooses what is slow in your run"
    if isinstance(step, bool) or not isinstance(step, int | float):
        return f"step_time_ms must be a number, got {_shown(step)}"
    right = expected_run(exercise).step_time * 1e3
    if not abs(step - right) <= NEAR * right:
        return f"the simulated step does not take {step:g} ms, to {NEAR:.0%}"
    return ""


def _shown(value: Any) -> str:
    """Return an answer in a message."""
    return printable(repr(value))[:40]
