"""The budgets of a submission: communication, time and memory of the reference solution, with a margin."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from minitrain.events import COMMUNICATIONS
from minitrain.grading.exercise import Case, Exercise, load_exercise
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.tensors import OptState, Weight, WeightGrad

TIME_MARGIN = 1.02
"""Other orders of the same work may wait a little longer."""

_WEIGHTS: Mapping[str, int] = {"all_reduce": 2, "recv": 0, "barrier": 0}
"""How often what an operation carries crosses the wire; once if it is not here. A receive is its send's other end."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may need.

    Args:
        communication_bytes: of all ranks, an all_reduce counted twice.
        communication_by_kind: the same by operation.
        step_time_s: s.
        memory_bytes: the peak of any rank.
    """

    communication_bytes: float
    communication_by_kind: Mapping[str, float]
    step_time_s: float
    memory_bytes: float


def communication_by_kind(run: Run) -> dict[str, float]:
    """Return the bytes of all ranks' communication by kind."""
    moved: dict[str, float] = defaultdict(float)
    for log in run.logs:
        for event in log:
            if event.typ in COMMUNICATIONS and (weight := _WEIGHTS.get(event.typ, 1)):
                moved[event.typ] += weight * event.size_bytes
    return {kind: moved[kind] for kind in sorted(moved) if moved[kind]}


def budget_of(run: Run, exercise: Exercise) -> Budget:
    """Return the budget that a reference's run sets."""
    by_kind = communication_by_kind(run)
    memory = exercise.memory_limit_bytes or run.peak_memory_bytes + _largest_layer_bytes(run)
    return Budget(sum(by_kind.values()), by_kind, run.step_time * TIME_MARGIN, memory)


def _largest_layer_bytes(run: Run) -> float:
    """Return the size of one layer's weight, gradient and optimizer state: room for temporaries."""
    num_layers, workload = run.num_layers, run.models[0].runtime_predictor.workload
    nothing: frozenset[int] = frozenset()
    return run.bytes_per_element * max(
        workload.memory_elements(Weight(layer, num_layers, 0))
        + workload.memory_elements(WeightGrad(layer, num_layers, nothing, run.global_batch_size))
        + workload.memory_elements(OptState(layer, num_layers, 0))
        for layer in range(num_layers)
    )


def budget_for(exercise: Exercise, case: Case) -> Budget:
    """Return the budget of a case: from the exercise's `budgets.json`, or else from its reference."""
    path = exercise.folder / "budgets.json"
    if path.is_file():
        return Budget(**json.loads(path.read_text(encoding="utf-8"))[case.key])
    return _from_reference(exercise.folder, case.key)


@lru_cache(maxsize=512)
def _from_reference(folder: Path, key: str) -> Budget:
    """Return the budget of a case by running the reference, once."""
    exercise = load_exercise(folder)
    case = next(case for case in (*exercise.public, *exercise.hidden) if case.key == key)
    return budget_of(run_reference(exercise, case), exercise)


def run_reference(exercise: Exercise, case: Case, **more: Any) -> Run:
    """Run the reference with some sizes, under strict accounting."""
    return simulate(exercise.reference, strict=True, hardware=exercise.hardware, **case.sizes, **case.options, **more)
