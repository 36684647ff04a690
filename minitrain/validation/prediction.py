"""Simulating a case: as many microbatches as the pipeline needs to become steady, and the rest by the steady rate.

Beyond its start, a pipeline takes the same time for every further round of microbatches. So a step of many microbatches
is simulated twice with few, and the difference is the time of a round. `tests/validation/test_prediction.py` compares
this with runs of all microbatches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from minitrain.events.event import COMPUTE
from minitrain.hardware.platforms import COMPONENTS
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.validation.cases import Case
from minitrain.validation.sequence_shares import workload_of

TERMS = ("forward", "backward", "update", "communication", "waiting")
"""What the time of the rank that computes longest is made of; communication is what no compute hides."""


@final
@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted time and memory of a case.

    Args:
        seconds: the step time, s.
        terms: what it is made of on the rank that computes longest, s, by the names of `TERMS`.
        memory: the bytes of the fullest device, by what they count: "allocated", "reserved" and "device".
    """

    seconds: float
    terms: Mapping[str, float]
    memory: Mapping[str, float]


def predict(case: Case, without: Sequence[str] = ()) -> Prediction:
    """Simulate a case.

    Args:
        case: the case.
        without: terms of the price to leave out, as for `simulate`.

    Raises:
        MinitrainError: it cannot be simulated.
    """
    num = case.layout.num_microbatches
    few, more = _few(case)
    bare, terms = case.bare(), tuple(without)
    if num <= more:
        return _step(bare, num, terms)
    first, second = _step(bare, few, terms), _step(bare, more, terms)
    rounds = (num - few) / (more - few)
    return Prediction(
        seconds=_extended(first.seconds, second.seconds, rounds),
        terms={name: max(0.0, _extended(first.terms[name], second.terms[name], rounds)) for name in TERMS},
        memory=second.memory,
    )


def _extended(first: float, second: float, rounds: float) -> float:
    """Return the value after some rounds, of which one leads from the first to the second."""
    return first + (second - first) * rounds


def _few(case: Case) -> tuple[int, int]:
    """Return two numbers of microbatches with which the pipeline is steady, one round apart."""
    pp, rest = case.layout.pp, case.layout.num_microbatches % case.period
    if pp == 1:
        return 2, 3
    if case.layout.num_chunks > 1 and case.measured_bytes is not None:
        pp *= 2  # the time is steady before the memory is
    return pp + rest, pp + rest + case.period


@lru_cache(maxsize=64)
def _step(case: Case, num_microbatches: int, without: tuple[str, ...]) -> Prediction:
    """Simulate a step of a case with some microbatches; rows that differ in their number alone share steps."""
    layout = case.layout
    run = simulate(
        case.strategy,
        world_size=layout.world_size,
        global_batch_size=layout.num_replicas * layout.microbatch_size * num_microbatches,
        hardware=case.system,
        workload=workload_of(case.model, layout.cp),
        platform=case.platform or COMPONENTS,
        without=without,
        fold=layout.world_size > 1,
        check=False,
        microbatch_size=layout.microbatch_size,
        **case.options,
    )
    return _predicted(run)


def _predicted(run: Run) -> Prediction:
    """Return the figures of a run."""
    memory = run.device_memory
    assert memory is not None  # a run that was just made has one
    kinds = {
        "allocated": memory.allocated_bytes,
        "reserved": memory.reserved_bytes,
        "device": memory.total_bytes,
        "needed": memory.needed_bytes,
    }
    return Prediction(run.step_time, _terms(run), kinds)


def _terms(run: Run) -> dict[str, float]:
    """Return what the step time is made of on the rank that computes longest."""
    breakdown = run.breakdown
    busiest = int(breakdown.computing.argmax())
    by_type = max(map(_compute_by_type, run.class_logs), key=lambda found: sum(found.values()))
    forward, update = by_type.get("forward", 0.0), by_type.get("update", 0.0)
    return {
        "forward": forward,
        "backward": sum(by_type.values()) - forward - update,
        "update": update,
        "communication": float(breakdown.exposed[busiest]),
        "waiting": float(breakdown.waiting[busiest]),
    }


def _compute_by_type(log: Any) -> dict[str, float]:
    """Return how long a rank computed, s, by type of operation."""
    found: dict[str, float] = {}
    for event in log:
        if event.stream == COMPUTE:
            found[event.typ] = found.get(event.typ, 0.0) + event.duration
    return found
