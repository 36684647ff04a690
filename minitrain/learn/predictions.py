"""What a learner predicts: figures of a run before it is simulated, and what has made a measured run slow.

**Predict first.** Questions of an exercise are about a run of its reference, whose figures are the right answers. The
exercise says of which sizes it asks, which figures, and why each is what it is, told to those who were right:
`"predict": {"sizes": {...}, "because": {"bubble": "..."}}` in `exercise.json`.

**The gap** is an exercise of its own: a measured run in which something is slow that the prediction does not know. It
is the reference's run, timed again with noise, and with one kind of operation slowed down: everywhere, on one rank, or
in one layer. A name decides which, so that each student has another run, and a grade can be repeated. Answers are
constants of a file, which is read and never run.
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from minitrain.errors import UsageError
from minitrain.learn.exercise import Case, CheckResult, Exercise, load_exercise
from minitrain.plain_text import printable

if TYPE_CHECKING:
    from minitrain.run.result import Run


_UNITS: Mapping[str, Mapping[str, float]] = {
    "share": {"%": 0.01},
    "bytes": {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "number": {"": 1},
}
_ANSWER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z%]*)\s*")


@dataclass(frozen=True, slots=True)
class _Figure:
    """What may be asked of a run.

    Args:
        question: it.
        kind: whose units an answer has, of `_UNITS`.
        such_as: an answer, for its form.
        value: of a run, in the unit of 1.
        near: how far off an answer may be, of the figure; of a share, of the whole.
    """

    question: str
    kind: str
    such_as: str
    value: Callable[[Run], float]
    near: float

    def is_near(self, answer: float, right: float) -> bool:
        """Return whether an answer is right."""
        return abs(answer - right) <= self.near * (1.0 if self.kind == "share" else right) * (1 + 1e-9)


def _communication(run: Run) -> float:
    from minitrain.learn.replay import communication_by_kind  # noqa: PLC0415  (not for `minitrain --help`)

    return sum(communication_by_kind(run).values())


def _calls(run: Run) -> float:
    from minitrain.learn.budgets import calls_by_layer  # noqa: PLC0415

    return sum(calls_by_layer(run).values())


FIGURES: Mapping[str, _Figure] = {
    "bubble": _Figure(
        "How much of all ranks' time is spent waiting?", "share", "12%", lambda run: run.bubble_fraction, 0.04
    ),
    "communication": _Figure(
        "What do all ranks move in a step together? A collective counts its whole tensor once a rank, an all_reduce "
        "twice, a message once.",
        "bytes",
        "96MiB",
        _communication,
        0.02,
    ),
    "memory": _Figure(
        "What does the fullest rank hold at most?", "bytes", "1.5GiB", lambda run: run.peak_memory_bytes, 0.1
    ),
    "calls": _Figure(
        "How many collectives and sends do all ranks call in a step together?", "number", "24", _calls, 0.0
    ),
}
"""What may be asked, by name. Closed forms leave out latency and temporaries, so that answers need only be near."""


def _expected(exercise: Exercise, case: Case | None = None) -> Any:
    """Return the run of an exercise's reference, with some of its sizes."""
    from minitrain.learn.picture import expected_run  # noqa: PLC0415  (which simulates)

    return expected_run(exercise, case)


def questions(exercise: Exercise) -> list[str]:
    """Return an exercise's questions in words, the sizes first; none where it asks nothing."""
    asked = exercise.predict
    if asked is None:
        return []
    lines = [f"Predict, for {asked.case}{_tensors(exercise)}:"]
    return lines + [f"{name} (such as {FIGURES[name].such_as}): {FIGURES[name].question}" for name in asked.because]


def _tensors(exercise: Exercise) -> str:
    """Return how large the tensors are, where all layers are alike."""
    from minitrain.machine import load_config  # noqa: PLC0415
    from minitrain.machine.predictor import make_predictor  # noqa: PLC0415
    from minitrain.tensors import Activation, Weight  # noqa: PLC0415

    assert exercise.predict is not None  # only then this is asked
    case = exercise.predict.case
    if case.workload is not None:
        return ""
    workload = make_predictor(load_config(exercise.hardware), 1).workload
    tensors = (Weight(0, case.num_layers, 0), Activation(0, case.num_layers, frozenset([0]), case.global_batch_size))
    weight, activation = (workload.memory_elements(one) * workload.bytes_per_element / 2**20 for one in tensors)
    return (
        f" (weight, gradient and optimizer state of a layer have {weight:g} MiB each, "
        f"an activation {activation:g} MiB a sample)"
    )


def answered(exercise: Exercise, answers: Mapping[str, str]) -> Iterator[tuple[str, bool, str]]:
    """Yield name, whether it is right, and what to say, of each answer.

    Args:
        exercise: what was asked.
        answers: with their units, by name.

    Raises:
        UsageError: an answer is to nothing that is asked, or has no unit.
    """
    asked = exercise.predict
    because = asked.because if asked is not None else {}
    for name in answers:
        if name not in because:
            raise UsageError(f"exercise {exercise.name} asks for {', '.join(because) or 'nothing'}, got {name!r}")
    values = {name: _parsed(name, text) for name, text in answers.items()}
    run: Any = _expected(exercise, asked.case) if asked is not None and answers else None
    for name, answer in values.items():
        figure = FIGURES[name]
        right = figure.value(run)
        said = f"{answers[name].strip()} is too {'much' if answer > right else 'little'}"
        if figure.is_near(answer, right):
            yield name, True, f"right, it is {_shown(figure, right)}: {because[name]}"
        else:
            yield name, False, said


def _parsed(name: str, text: str) -> float:
    """Return an answer in the unit of 1.

    Raises:
        UsageError: it is no number with a unit that fits.
    """
    figure = FIGURES[name]
    match, units = _ANSWER.fullmatch(text), _UNITS[figure.kind]
    if match is None or match.group(2) not in units:
        wanted = f"a number with one of the units {', '.join(units)}" if figure.kind != "number" else "a whole number"
        raise UsageError(f"{name} must be {wanted}, got {text!r}; write it such as {figure.such_as}")
    return float(match.group(1)) * units[match.group(2)]


def _shown(figure: _Figure, value: float) -> str:
    """Return a figure in words."""
    if figure.kind == "share":
        return f"{value:.1%}"
    size, unit = (value / 2**20, " MiB") if value >= 2**20 else (value / 2**10, " KiB")  # of small models
    number, after = (value, "") if figure.kind == "number" else (size, unit)
    return f"{number:.0f}{after}" if number >= 100 or number == round(number) else f"{number:.3g}{after}"


def predict(exercise: str | Exercise, **answers: str) -> None:
    """Print an exercise's questions, and for each answer whether it is right, as in a notebook.

    Args:
        exercise: its name or number, or a loaded exercise.
        answers: with their units, by name, such as `bubble="12%"`; an empty one is none yet.

    Raises:
        UsageError: an answer is to nothing that is asked, or has no unit.
    """
    asked = exercise if isinstance(exercise, Exercise) else load_exercise(exercise)
    given = {name: text for name, text in answers.items() if text.strip()}
    found = {name: said for name, _, said in answered(asked, given)}
    for line in questions(asked):
        print(line)
        said = found.get(line.partition(" ")[0])
        if said:
            print(f"  {said}")


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

    predicted = _expected(exercise)
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
    from minitrain.learn.sandbox import source_of  # noqa: PLC0415  (as above)

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
        message = f"the operation that the prediction missed is another than {_quoted(operation)}"
        kinds = f"one of {', '.join(exercise.slowed)}"
        wrong = CheckResult("operation", "failed", message, expected=kinds, got=_quoted(operation), hint=hint)
        return [CheckResult("predicted", "passed"), wrong, CheckResult("place", "skipped")]
    results = [CheckResult("predicted", "passed"), CheckResult("operation", "passed")]
    if place == (slow.rank, slow.layer):
        return [*results, CheckResult("place", "passed")]
    message = f"{slow.operation} is not slow where the answers say: rank {_quoted(place[0])}, layer {_quoted(place[1])}"
    return [*results, CheckResult("place", "failed", message, hint=f"{hint} None stands for all")]


def _prediction_fault(exercise: Exercise, answers: Mapping[str, Any]) -> str:
    """Return what is wrong with a prediction, "" if nothing is."""
    name, step = answers.get("name"), answers.get("step_time_ms")
    if not (isinstance(name, str) and name.strip()):
        return f"name must be yours, as text, got {_quoted(name)}; it chooses what is slow in your run"
    if isinstance(step, bool) or not isinstance(step, int | float):
        return f"step_time_ms must be a number, got {_quoted(step)}"
    right = _expected(exercise).step_time * 1e3
    if not abs(step - right) <= NEAR * right:
        return f"the simulated step does not take {step:g} ms, to {NEAR:.0%}"
    return ""


def _quoted(value: Any) -> str:
    """Return an answer in a message."""
    return printable(repr(value))[:40]
