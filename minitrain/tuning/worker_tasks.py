"""What a worker does: price layouts from pieces, or simulate configurations one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from minitrain.analysis.timeline import Floats
from minitrain.errors import MinitrainError, OutOfMemoryError
from minitrain.run.event_loops import run_to_end
from minitrain.run.simulation import simulate_async
from minitrain.run.strategy_loading import Strategy
from minitrain.sweeps.batches import SharedByBatch
from minitrain.sweeps.executors.own_processes import TimeLimitError, run_within
from minitrain.tuning.bounds import least_times
from minitrain.tuning.layouts import Columns, Pipeline
from minitrain.tuning.peak_memory import peaks_of
from minitrain.tuning.problem import Machine, TuningProblem
from minitrain.tuning.step_times import steps_of

MOST_COLUMNS = 512


@final
@dataclass(frozen=True, slots=True)
class Figures:
    """The outcome of a configuration.

    Args:
        step_time_s: s; None where it was not priced.
        peak_memory_bytes: of the fullest rank, bytes; None where it was not found out.
        busy_s: computing or communicating, over all ranks, s.
        needed_memory_bytes: what the fullest device must hold, bytes; None where tensors alone are known.
        error: why there is nothing.
        is_rule: whether that is a rule that it breaks, and not a failure.
        is_pruned: whether its bound is worse than what was known.
        is_bound: whether the memory is what it holds at least.
        why_pruned: why it need not be priced, where that is not its bound.
    """

    step_time_s: float | None = None
    peak_memory_bytes: float | None = None
    busy_s: float | None = None
    needed_memory_bytes: float | None = None
    error: str | None = None
    is_rule: bool = False
    is_pruned: bool = False
    is_bound: bool = False
    why_pruned: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Limit:
    """The step time and memory that a layout must not exceed to be priced.

    Args:
        step_time_s: the best step time that is known, s; infinity where none is.
        most_bytes: what a rank may hold, bytes.
    """

    step_time_s: float
    most_bytes: float


def price_pipelines(problem: TuningProblem, layouts: Sequence[Pipeline], limit: Limit | None = None) -> list[Figures]:
    """Price layouts, those of one structure together.

    Args:
        problem: what they are for.
        layouts: the layouts.
        limit: what they must keep; layouts that take longer for sure than the best one are not priced, nor those that
            do not fit. None to price all.
    """
    found: dict[int, Figures] = {}
    batches = list(_batches(problem.machine, layouts, found))
    if limit is None:
        for batch in batches:
            batch.price(found)
    else:
        best_s = limit.step_time_s
        for batch in sorted(batches, key=lambda batch: batch.least_s(limit)):
            best_s = batch.price_within(replace(limit, step_time_s=best_s), found)
    return [found[place] for place in range(len(layouts))]


def _batches(machine: Machine, layouts: Sequence[Pipeline], found: dict[int, Figures]) -> Iterator[_Batch]:
    """Yield the layouts of each structure; note the rules that some break."""
    by_structure: dict[Any, list[int]] = {}
    for place, layout in enumerate(layouts):
        rule = _broken_rule(machine, layout)
        if rule is None:
            by_structure.setdefault(layout.structure, []).append(place)
        else:
            found[place] = Figures(error=rule, is_rule=True)
    for places in by_structure.values():
        for start in range(0, len(places), MOST_COLUMNS):
            part = places[start : start + MOST_COLUMNS]
            yield _Batch(machine, part, [layouts[place] for place in part])


class _Batch:
    """Layouts of one structure.

    Args:
        machine: where they run.
        places: theirs among all layouts.
        layouts: the layouts.
    """

    def __init__(self, machine: Machine, places: Sequence[int], layouts: Sequence[Pipeline]) -> None:
        self._machine, self._places, self._layouts = machine, places, layouts
        self._columns = Columns(machine.pieces, layouts)
        self._peaks, self._needed = peaks_of(self._columns)

    @cached_property
    def _least(self) -> Floats:
        """The least step times, s."""
        return least_times(self._columns)[0]

    def least_s(self, limit: Limit) -> float:
        """Return the least step time of those that fit, s."""
        return float(np.where(self._needed <= limit.most_bytes, self._least, np.inf).min())

    def price(self, found: dict[int, Figures]) -> None:
        """Price all of them."""
        self._price(self._columns, range(len(self._places)), found)

    def price_within(self, limit: Limit, found: dict[int, Figures]) -> float:
        """Price what keeps a limit, and return the best step time that is known by then, s."""
        worth = (self._needed <= limit.most_bytes) & (self._least <= limit.step_time_s)
        for number in np.flatnonzero(~worth).tolist():
            found[self._places[number]] = replace(self._memory(number), is_pruned=True)
        kept = np.flatnonzero(worth).tolist()
        if not kept:
            return limit.step_time_s
        self._price(Columns(self._machine.pieces, [self._layouts[number] for number in kept]), kept, found)
        times = [found[self._places[number]].step_time_s for number in kept]
        return min([limit.step_time_s, *(seconds for seconds in times if seconds is not None)])

    def _price(self, columns: Columns, numbers: Sequence[int], found: dict[int, Figures]) -> None:
        """Price some of them."""
        steps = steps_of(columns)
        for number, step_time, busy in zip(numbers, steps.step_time.tolist(), steps.busy_s.tolist(), strict=True):
            found[self._places[number]] = replace(self._memory(number), step_time_s=step_time, busy_s=busy)

    def _memory(self, number: int) -> Figures:
        """Return the figures of one layout's memory."""
        peak_bytes, needed_bytes = float(self._peaks[number]), float(self._needed[number])
        return Figures(peak_memory_bytes=peak_bytes, needed_memory_bytes=needed_bytes)


def _broken_rule(machine: Machine, layout: Pipeline) -> str | None:
    """Return the rule that a layout breaks when it is executed, or None."""
    try:
        machine.pieces.stage(layout.passes, layout.stages[0])
        machine.pieces.ends(layout.ends)
    except MinitrainError as error:
        return first_line(error)
    return None


def simulate_each(
    problem: TuningProblem,
    configurations: Sequence[tuple[str | Strategy, dict[str, Any]]],
    time_limit_s: float | None = None,
    *,
    ends_when_full: bool = False,
) -> list[Figures]:
    """Simulate configurations one after the other, ranks that do the same folded into one.

    Args:
        problem: what they are for.
        configurations: strategies and their options.
        time_limit_s: how long one may take, s; None for no limit.
        ends_when_full: whether one ends, without a step time, as soon as a rank holds more than its device does.
    """
    shared = SharedByBatch()
    more = {"strict_memory": True} if ends_when_full else {}
    return [
        _figures_within(time_limit_s, problem, shared, strategy, {**more, **options})
        for strategy, options in configurations
    ]


def _figures_within(
    time_limit_s: float | None, problem: TuningProblem, shared: SharedByBatch, strategy: Any, options: dict[str, Any]
) -> Figures:
    """Simulate one configuration; one that takes too long has failed."""
    if time_limit_s is None:
        return run_to_end(lambda: _figures_of(problem, shared, strategy, options))
    try:
        return run_within(time_limit_s, lambda: _figures_of(problem, shared, strategy, options))
    except TimeLimitError as error:
        return Figures(error=f"{type(error).__name__}: {first_line(error)}")


async def _figures_of(problem: TuningProblem, shared: SharedByBatch, strategy: Any, options: dict[str, Any]) -> Figures:
    """Simulate one configuration; one that does not fold is simulated rank by rank."""
    try:
        chosen = shared.strategy(strategy)
        known = shared.parameters(chosen, {**problem.parameters, "fold": True, "check": False, **options})
        run = await simulate_async(chosen, **known)
        parts = run.breakdown
    except OutOfMemoryError as error:
        return Figures(peak_memory_bytes=sum(error.facts["oom"].held_bytes.values()), is_bound=True)
    except MinitrainError as error:
        return Figures(error=first_line(error), is_rule=True)
    except Exception as error:  # a strategy may raise anything, and the others go on
        return Figures(error=f"{type(error).__name__}: {first_line(error)}")
    busy_s = float((parts.computing + parts.exposed).sum())
    return Figures(run.step_time, run.peak_memory_bytes, busy_s, run.needed_memory_bytes)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0]
