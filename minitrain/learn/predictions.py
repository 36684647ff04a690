"""Predict first: questions of an exercise about a run of its reference, whose figures are the right answers.

An exercise says of which sizes it asks, which figures, and why each is what it is, told to those who were right:
`"predict": {"sizes": {...}, "because": {"bubble": "..."}}` in `exercise.json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError
from minitrain.learn.exercise import Exercise, load_exercise

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
    from minitrain.learn.usage import communication_by_kind  # noqa: PLC0415  (not for `minitrain --help`)

    return sum(communication_by_kind(run).values())


def _calls(run: Run) -> float:
    from minitrain.learn.causes import calls_by_layer  # noqa: PLC0415

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
    tensors = (
        Weight(0, case.num_layers, 0),
        Activation(0, case.num_layers, frozenset([0]), case.global_batch_size),
    )
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
    from minitrain.learn.picture import expected_run  # noqa: PLC0415

    asked = exercise.predict
    because = asked.because if asked is not None else {}
    for name in answers:
        if name not in because:
            raise UsageError(f"exercise {exercise.name} asks for {', '.join(because) or 'nothing'}, got {name!r}")
    values = {name: _parsed(name, text) for name, text in answers.items()}
    run: Any = expected_run(exercise, asked.case) if asked is not None and answers else None
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
