"""What the ranks of a submission did until an error ended their run, for a picture of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minitrain.errors import MinitrainError
from minitrain.learn.exercise import Case, Exercise
from minitrain.learn.replay import replayed
from minitrain.run.progress import RunProgress
from minitrain.run.rank_tasks import prepare
from minitrain.run.result import Run
from minitrain.run.simulation import simulate


@dataclass(frozen=True, repr=False)
class UnfinishedRun(Run):
    """A run that an error ended: each log goes as far as its rank came.

    What a rank still waited for has no duration.
    """

    loads_alike = True
    """Whether clocks say what the step takes: an error may have ended it while ranks loaded."""

    @cached_property
    def last_clock(self) -> float:
        """The latest end of an operation, s."""
        return self.timeline.last_end


def run_up_to_error(
    exercise: Exercise, case: Case, found: Mapping[str, Any], seconds: float = float("inf")
) -> UnfinishedRun | None:
    """Replay what a submission did until its error, and return the run; None if it did nothing, or nothing is known.

    Args:
        exercise: what was asked.
        case: the sizes.
        found: programs of the ranks, which may be anything.
        seconds: real time that this may take, s.
    """
    programs = found.get("programs")
    if not isinstance(programs, Sequence) or len(programs) != case.world_size:
        return None
    strategy = replayed(programs, exercise.function, seconds)
    parameters: dict[str, Any] = {"hardware": exercise.hardware, **case.sizes}
    seen: list[RunProgress] = []
    with contextlib.suppress(MinitrainError):  # the same error, or another one that follows from the missing steps
        simulate(strategy, watch=seen.append, **parameters)
    run = prepare(strategy, parameters).result(UnfinishedRun, seen[0].models, ())
    return run if run.last_clock > 0 else None
