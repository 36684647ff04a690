"""What a worker does: price layouts from pieces, or simulate configurations one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from minitrain.analysis.timeline import Floats
from minitrain.errors import MinitrainError
from minitrain.run.event_loops import run_to_end
from minitrain.run.simulation import simulate_async
from minitrain.run.strategy_loading import Strategy
from minitrain.sweeps.batches import SharedByBatch
from minitrain.tuning.bounds import least_times
from minitrain.tuning.clocks import steps_of
from minitrain.tuning.layouts import Columns, Pipeline
from minitrain.tuning.memory import peaks_of
from minitrain.tuning.problem import Machine, Problem

MOST_COLUMNS = 512


@final
@dataclass(frozen=True, slots=True)
class Figures:
    """What came of a configuration.

    Args:
        step_time_s: s; None where it was not priced.
        peak_memory_bytes: of the fullest rank, bytes; None where it was not found out.
        busy_s: computing or communicating, over all ranks, s.
        error: why there is nothing.
        is_rule: whether that is a rule that it breaks, and not a failure.
        is_pruned: whether its bound is worse than what was known.
    """

    step_time_s: float | None = None
    peak_memory_bytes: float | None = None
    busy_s: float | None = None
    error: str | None = None
    is_rule: bool = False
    is_pruned: bool = False


def price_pipelines(problem: Problem, layouts: Sequence[Pipeline], best_s: float | None = None) -> list[Figures]:
    """Price layouts, those of one structure together.

    Args:
        problem: what they are for.
        layouts: the layouts.
        best_s: a step time that is known; layouts that take longer for sure are not priced. None to price all.
    """
    found: list[Figures | None] = [None] * len(layouts)
    by_structure: dict[Any, list[int]] = {}
    for place, layout in enumerate(layouts):
        by_structure.setdefault(layout.structure, []).append(place)
    for places in by_structure.values():
        for start in range(0, len(places), MOST_COLUMNS):
            part = places[start : start + MOST_COLUMNS]
            for place, figures in _priced(problem.machine, layouts, part, best_s):
                found[place] = figures
    return [figures or Figures() for figures in found]


def _priced(
    machine: Machine, layouts: Sequence[Pipeline], places: Sequence[int], best_s: float | None
) -> Iterator[tuple[int, Figures]]:
    """Yield the figures of layouts of one structure."""
    legal = []
    for place in places:
        rule = _broken_rule(machine, layouts[place])
        if rule is None:
            legal.append(place)
        else:
            yield place, Figures(error=rule, is_rule=True)
    if not legal:
        return
    columns = Columns(machine.pieces, [layouts[place] for place in legal])
    peaks = peaks_of(columns) * machine.workload.bytes_per_element
    worth = np.ones(len(legal), dtype=bool) if best_s is None else least_times(columns)[0] <= best_s
    for place, peak in zip(np.array(legal)[~worth].tolist(), peaks[~worth].tolist(), strict=True):
        yield place, Figures(peak_memory_bytes=peak, is_pruned=True)
    yield from _timed(columns, [place for place, is_worth in zip(legal, worth, strict=True) if is_worth], peaks[worth],
                      worth)


def _timed(columns: Columns, places: Sequence[int], peaks: Floats, worth: Any) -> Iterator[tuple[int, Figures]]:
    """Yield the figures of layouts that are worth pricing."""
    if not places:
        return
    kept = columns if worth.all() else Columns(
        columns.pieces, [one for one, is_worth in zip(columns.layouts, worth, strict=True) if is_worth]
    )
    steps = steps_of(kept)
    rows = zip(places, steps.step_time.tolist(), peaks.tolist(), steps.busy_s.tolist(), strict=True)
    for place, step_time, peak, busy in rows:
        yield place, Figures(step_time, peak, busy)


def _broken_rule(machine: Machine, layout: Pipeline) -> str | None:
    """Return the rule that a layout breaks when it is executed, or None."""
    try:
        machine.pieces.stage(layout.passes, layout.stages[0])
        machine.pieces.ends(layout.ends)
    except MinitrainError as error:
        return first_line(error)
    return None


def simulate_each(problem: Problem, configurations: Sequence[tuple[str | Strategy, dict[str, Any]]]) -> list[Figures]:
    """Simulate configurations one after the other, ranks that do the same folded into one.

    Args:
        problem: what they are for.
        configurations: strategies and their options.
    """
    return run_to_end(lambda: _simulated(problem, configurations))


async def _simulated(problem: Problem, configurations: Sequence[tuple[Any, dict[str, Any]]]) -> list[Figures]:
    """Simulate configurations one after the other."""
    shared = SharedByBatch()
    return [await _figures_of(problem, shared, *configuration) for configuration in configurations]


async def _figures_of(problem: Problem, shared: SharedByBatch, strategy: Any, options: dict[str, Any]) -> Figures:
    """Simulate one configuration; one that does not fold is simulated rank by rank."""
    try:
        chosen = shared.strategy(strategy)
        known = shared.parameters({**problem.parameters, "fold": True, "check": False, **options})
        run = await simulate_async(chosen, **known)
        parts = run.breakdown
    except MinitrainError as error:
        return Figures(error=first_line(error), is_rule=True)
    except Exception as error:  # a strategy may raise anything, and the others go on
        return Figures(error=f"{type(error).__name__}: {first_line(error)}")
    return Figures(run.step_time, run.peak_memory_bytes, float((parts.computing + parts.exposed).sum()))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0]
