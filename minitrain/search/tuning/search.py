"""Going through the configurations of a search: which are priced when, by whom, and what need not be priced.

Layouts that can be put together from pieces come first, many at a time. What must be simulated one by one comes after,
the most promising first; what takes longer for sure than the best that is known is pruned. A row is written to the
results file as soon as it is there, so that a search that is begun again goes on where the first one ended.

What a worker does: price layouts from pieces, or simulate configurations one by one.

A row for each configuration of a search, and which rows nothing beats: the front.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from itertools import starmap
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from minitrain.errors import NO_MEMORY, MinitrainError, OutOfMemoryError, UsageError, reason_of
from minitrain.run.analysis.labels import GIB
from minitrain.run.analysis.timeline import Floats
from minitrain.run.event_loops import run_to_end
from minitrain.run.simulation import simulate_async
from minitrain.run.strategy_loading import Strategy
from minitrain.search.sweeps.batches import SharedByBatch, Workers, key_of, result_of
from minitrain.search.sweeps.executors import first_done, workers_of
from minitrain.search.sweeps.own_processes import TimeLimitError, WorkerLostError, run_within
from minitrain.search.sweeps.sweep import read_results, writing
from minitrain.search.tuning.bounds import Bound, bound_of, least_times
from minitrain.search.tuning.layouts import Columns, Pipeline, Structure
from minitrain.search.tuning.problem import Candidate, Machine, TuningProblem
from minitrain.search.tuning.step_figures import peaks_of, steps_of
from minitrain.workloads.workload import MODULES, Recompute, as_recompute, is_less, modules_within

T = TypeVar("T")

MOST_COLUMNS = 512


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
        useful_flop: of the step that was simulated; None for the workload's.
        tokens: that it trains on; None for those of the batch.
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
    useful_flop: float | None = None
    tokens: float | None = None


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
    except MinitrainError as error:
        if isinstance(error, OutOfMemoryError) and "oom" in error.facts:  # else it is the host's
            return Figures(peak_memory_bytes=sum(error.facts["oom"].held_bytes.values()), is_bound=True)
        return Figures(error=first_line(error), is_rule=True)
    except Exception as error:  # a strategy may raise anything, and the others go on
        return Figures(error=reason_of(error).partition("\n")[0])
    busy_s = float((parts.computing + parts.exposed).sum())
    found = Figures(run.step_time, run.peak_memory_bytes, busy_s, run.needed_memory_bytes)
    return replace(found, useful_flop=run.useful_flop, tokens=run.tokens_trained)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0]


Row = dict[str, Any]

FITS, OUT_OF_MEMORY, ILLEGAL, PRUNED, FAILED = "fits", "out of memory", "illegal", "pruned", "failed"
VERDICTS = (FITS, OUT_OF_MEMORY, ILLEGAL, PRUNED, FAILED)
"""The outcomes that a configuration may have."""

OBJECTIVES: Mapping[str, tuple[str, int]] = {
    "step_time": ("step_time_s", 1),
    "tokens_per_second": ("tokens_per_second", -1),
    "tokens_per_dollar": ("tokens_per_dollar", -1),
    "energy": ("energy_joules", 1),
}
"""What may be wanted: the column, and 1 where less is better."""

OF_FRONT = ("step_time_s", "peak_memory_bytes", "dollars", "energy_joules")


def row_of(candidate: Candidate, figures: Figures | None, machine: Machine, most_bytes: float) -> Row:
    """Return the row of a configuration.

    Args:
        candidate: the configuration.
        figures: those of its step; None for one that breaks a rule of the space.
        machine: where it runs.
        most_bytes: what a device may hold, bytes.
    """
    status, reason = _verdict(candidate, figures, most_bytes)
    known = figures or Figures()
    given, system = machine.parameters.hardware, getattr(machine.predictor, "system", None)
    row: Row = {
        "strategy": candidate.label,
        "hardware": given if isinstance(given, str) else str(getattr(system, "name", "custom")),
        "world_size": candidate.problem.world_size,
        "global_batch_size": candidate.problem.global_batch_size,
        "precision": None if machine.model is None else machine.model.precision.name,
        **candidate.options,
        "status": status,
        "reason": reason,
        "peak_memory_bytes": known.peak_memory_bytes,
        "needed_memory_bytes": known.needed_memory_bytes,
    }
    if known.step_time_s is None:
        return row | dict.fromkeys(_TIMES)
    return row | machine.figures(known.step_time_s, known.busy_s, known.useful_flop, known.tokens)


_TIMES = (
    "step_time_s",
    "mfu",
    "tokens_per_second",
    "tokens_per_second_per_rank",
    "dollars",
    "tokens_per_dollar",
    "energy_joules",
)
FIGURES = ("peak_memory_bytes", "needed_memory_bytes", *_TIMES)
"""The figures of a row."""

_OWN = frozenset({"strategy", "hardware", "world_size", "global_batch_size", "precision", "status", "reason", *FIGURES})


def options_of(row: Row) -> Row:
    """Return the options of the strategy in a row."""
    return {name: value for name, value in row.items() if name not in _OWN}


def _verdict(candidate: Candidate, figures: Figures | None, most_bytes: float) -> tuple[str, str | None]:
    """Return the outcome of a configuration, and the reason."""
    if figures is None:
        return ILLEGAL, candidate.illegal
    if figures.error is not None:
        return (ILLEGAL if figures.is_rule else FAILED), figures.error
    needed_bytes = figures.needed_memory_bytes or figures.peak_memory_bytes
    if needed_bytes is not None and needed_bytes > most_bytes:
        return _too_large(needed_bytes, most_bytes, "at least " if figures.is_bound else "")
    if figures.is_pruned:
        return PRUNED, figures.why_pruned or "its least step time is longer than that of a configuration that fits"
    return FITS, None


def _too_large(needed_bytes: float, most_bytes: float, at_least: str = "") -> tuple[str, str]:
    """Return that a configuration does not fit, and why."""
    needed, most = needed_bytes / GIB, most_bytes / GIB
    return OUT_OF_MEMORY, f"a device must hold {at_least}{needed:.4g} GiB, and {most:.4g} GiB may be used"


def memory_of(row: Row) -> float | None:
    """Return what a row's verdict is by: what the device must hold, or the tensors where that is all there is."""
    needed_bytes: float | None = row.get("needed_memory_bytes")
    return row["peak_memory_bytes"] if needed_bytes is None else needed_bytes


def judged_again(row: Row, most_bytes: float) -> Row | None:
    """Return a row of an earlier search with the verdict of this one; None where it must be tried again.

    Args:
        row: the row, in which the earlier search had its own objective, pruning and head room.
        most_bytes: what a rank may hold now, bytes.
    """
    if row["status"] not in (FITS, OUT_OF_MEMORY, PRUNED):
        return row
    if row["step_time_s"] is None:  # only bounds were known
        return None
    needed = memory_of(row)
    status, reason = (FITS, None) if needed is None or needed <= most_bytes else _too_large(needed, most_bytes)
    return {**row, "status": status, "reason": reason}


def key_of_candidate(candidate: Candidate) -> str:
    """Return a text that tells configurations apart, the same in every process and on every day.

    A sweep may write to the same file, whose rows have other columns; so its keys are others.
    """
    return "tune " + key_of((candidate.strategy, candidate.parameters))


def value_of(row: Row, objective: str) -> float:
    """Return how good a row is, less being better; infinity where it has no such figure."""
    column, sign = OBJECTIVES[objective]
    value = row[column]
    return math.inf if value is None else sign * value


def require_objective(objective: str) -> None:
    """Require an objective that there is."""
    if objective not in OBJECTIVES:
        raise UsageError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")


def ranked(rows: Iterable[Row], objective: str) -> list[Row]:
    """Return the rows that fit, the best first; of equal ones, those of less memory."""
    fitting = [row for row in rows if row["status"] == FITS]
    return sorted(fitting, key=lambda row: (value_of(row, objective), row["peak_memory_bytes"]))


def distinct(rows: Iterable[Row]) -> list[Row]:
    """Return rows, leaving out those with the strategy, step time and memory of an earlier one."""
    seen: dict[Any, Row] = {}
    for row in rows:
        seen.setdefault((row["strategy"], row["step_time_s"], row["peak_memory_bytes"]), row)
    return list(seen.values())


def front_of(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that fit and that no other one beats: none is better in one figure and no worse in the others.

    Of rows with equal figures, the first one stays. Figures that no row has are left out.
    """
    fitting = [row for row in rows if row["status"] == FITS]
    columns = [name for name in OF_FRONT if any(row[name] is not None for row in fitting)]
    if not fitting:
        return []
    points = np.array([[math.inf if row[name] is None else row[name] for name in columns] for row in fitting])
    kept = np.empty((0, len(columns)))
    found = []
    for place in np.lexsort(points.T[::-1]).tolist():  # whatever beats a point comes before it
        if not (kept <= points[place]).all(axis=1).any():
            kept = np.vstack([kept, points[place]])
            found.append(fitting[place])
    return found


Progress = Callable[[int, int, Row | None], None]
Task = list[tuple[int, Candidate]]
"""Configurations with their places."""

_WORK_OF_TASK = 30_000
"""About the work (`_work_of`) of a task, which takes one to two seconds."""
_WORK_INLINE = 60_000
"""Up to how much work the caller does itself: processes take a while to start."""
_MOST_INLINE = 2
"""Up to how many configurations the caller simulates itself."""


WorkerCall = tuple[Task, Callable[[], Sequence[Figures]]]
"""Configurations, and what makes their figures, here or on a worker."""

_MOST_COMPARED = 4  # layouts of a strategy of which none fits, that are priced although others are quicker


@dataclass(eq=False, repr=False)
class Search:
    """A search that is under way.

    Args:
        candidates: the configurations.
        objective: what is wanted.
        head_room: the share of the devices' memory that must stay free.
        prune: "none" to price everything; "best" to leave out what is worse for sure than the best one that is known;
            "front" to leave out, of what is simulated one by one, what something known beats in all figures; "auto" to
            price all that is put together from pieces, and to leave out by "best" of the others.
        executor: where to run, as `sweep` takes it; processes of its own if None.
        jobs: number of these processes; 1 to do without any.
        results: the file that keeps rows.
        progress: called with the number of configurations done and of all, and the best row so far.
        budget_s: after how many seconds no more configurations are begun; None for no limit.
        time_limit_s: how long a configuration may be simulated, s; None for no limit.

    Attributes:
        rows: a row for each configuration that is done, by its place.
        was_interrupted: whether it ended before all were done.
        was_ended_by_hand: whether that was by Ctrl-C.
    """

    candidates: Sequence[Candidate]
    _: KW_ONLY
    objective: str
    head_room: float
    prune: str = "auto"
    executor: Workers = None
    jobs: int | None = None
    results: Path | None = None
    progress: Progress | None = None
    budget_s: float | None = None
    time_limit_s: float | None = None

    def __post_init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.was_interrupted = self.was_ended_by_hand = False
        self._is_alone = self.executor is None and self.jobs == 1
        self._end = None if self.budget_s is None else time.monotonic() + self.budget_s
        self._best: Row | None = None
        self._points: list[Row] = []
        self._fitting: set[str] = set()
        self._num_compared: Counter[str] = Counter()
        self._num_problems = len({one.problem for one in self.candidates})
        self._fits_with: dict[Hashable, set[Recompute]] = {}  # the recomputations with which a layout fits

    def run(self, choose: Callable[[Task], Iterator[Task]] | None = None) -> None:
        """Price what is not known; Ctrl-C ends it and keeps what is there.

        Args:
            choose: yields parts of what is missing, and finds their rows in `rows` when it goes on; all of it if None.
        """
        self._known = {} if self.results is None else read_results(self.results)
        with writing(self.results) as self._write, contextlib.ExitStack() as self._opened:
            missing = list(self._missing())
            try:
                for part in [missing] if choose is None else choose(missing):
                    self._price([one for one in part if one[1].pipeline is not None])
                    self._simulate([one for one in part if one[1].pipeline is None])
            except KeyboardInterrupt:
                self.was_interrupted = self.was_ended_by_hand = True
        if self.progress is not None:
            self.progress(len(self.rows), len(self.candidates), self._best)

    def _missing(self) -> Iterator[tuple[int, Candidate]]:
        """Yield what is to be priced or pruned, with its place; keep what is known or breaks a rule of the space."""
        for place, candidate in enumerate(self.candidates):
            machine = candidate.problem.machine
            key = key_of_candidate(candidate) if self._known else ""
            known = self._known.get(key, {})
            is_known = known and not str(known["reason"]).endswith(NO_MEMORY)
            row = judged_again(known, self.most_bytes(machine)) if is_known else None
            if row is None and candidate.illegal is not None:
                row = row_of(candidate, None, machine, 0.0)
            if row is None:
                yield place, candidate
            else:
                self._keep(place, row)

    def most_bytes(self, machine: Machine) -> float:
        """Return how much memory a rank may use, bytes."""
        capacity = machine.capacity_bytes
        return float("inf") if capacity is None else capacity * (1 - self.head_room)

    def _keep(self, place: int, row: Row) -> None:
        """Keep a row."""
        self.rows[place] = row
        if row["status"] == FITS:
            if self._best is None or value_of(row, self.objective) < value_of(self._best, self.objective):
                self._best = row
            self._fitting.add(row["strategy"])
            self._points.append(row)

    def _add(self, candidate: Candidate, place: int, figures: Figures) -> None:
        """Make a row of figures, keep it and write it."""
        machine = candidate.problem.machine
        row = row_of(candidate, figures, machine, self.most_bytes(machine))
        self._keep(place, row)
        if row["status"] == FITS:
            self._fits_with.setdefault(_but_recomputation(candidate), set()).add(_recomputed(candidate))
        if self.results is not None and self._known.get(key := key_of_candidate(candidate)) != row:
            self._write(key, row)

    def _price(self, missing: Task) -> None:
        """Price layouts from pieces."""
        tasks = list(_tasks(missing))
        is_small = sum(map(_work_of, tasks)) < _WORK_INLINE and self.executor is None
        self._run(map(self._pricing, tasks), inline=self._is_alone or is_small)

    def _pricing(self, task: Task) -> WorkerCall:
        """Return the call that prices layouts of one problem from pieces."""
        problem, layouts = task[0][1].problem, [one.pipeline for _, one in task if one.pipeline is not None]
        return task, partial(price_pipelines, problem, layouts, self._limit(problem))

    def _simulate(self, missing: Task) -> None:
        """Simulate configurations one by one, those first that may be quickest, and leave out what need not be."""
        bounded = [(bound_of(candidate, candidate.problem.machine), place, candidate) for place, candidate in missing]
        worth = []
        for bound, place, candidate in sorted(
            bounded, key=lambda one: (one[0].step_time_s, _amount_recomputed(one[2]), one[1])
        ):
            if bound.peak_memory_bytes > self.most_bytes(candidate.problem.machine):
                figures = Figures(peak_memory_bytes=bound.peak_memory_bytes, is_pruned=True, is_bound=True)
                self._add(candidate, place, figures)
            else:
                worth.append((bound, place, candidate))
        is_small = len(worth) <= _MOST_INLINE and self.executor is None
        self._run(self._worth_simulating(worth), inline=self._is_alone or is_small)

    def _worth_simulating(self, bounded: Sequence[tuple[Bound, int, Candidate]]) -> Iterator[WorkerCall]:
        """Yield what is to be simulated; what is pruned by then becomes a row."""
        for bound, place, candidate in bounded:
            if self._is_beaten(bound, candidate) and not self._is_compared(candidate):
                self._add(candidate, place, Figures(is_pruned=True))
            elif self._recomputes_for_nothing(candidate):
                self._add(candidate, place, Figures(is_pruned=True, why_pruned="it fits with less recomputation"))
            else:
                yield self._simulation(place, candidate)

    def _simulation(self, place: int, candidate: Candidate) -> WorkerCall:
        """Return the call that simulates a configuration."""
        configurations = [(candidate.strategy, dict(candidate.options))]
        is_slow = candidate.problem.machine.has_experts or candidate.in_usual_order is not None
        ends_when_full = self.prune != "none" and is_slow
        simulate = partial(simulate_each, candidate.problem, configurations, self.time_limit_s)
        return [(place, candidate)], partial(simulate, ends_when_full=ends_when_full)

    def _recomputes_for_nothing(self, candidate: Candidate) -> bool:
        """Return whether the same layout fits with less recomputation, and so is quicker."""
        if self.prune not in ("auto", "best") or not candidate.problem.machine.has_experts:
            return False
        known = self._fits_with.get(_but_recomputation(candidate), ())
        return any(is_less(recompute, _recomputed(candidate)) for recompute in known)

    def _is_beaten(self, bound: Bound, candidate: Candidate) -> bool:
        """Return whether a known row is better than a configuration can be by its bound."""
        if self.prune == "none" or self._best is None or not bound.step_time_s:
            return False
        machine = candidate.problem.machine
        least = machine.figures(bound.step_time_s, bound.busy_s) | {"peak_memory_bytes": bound.peak_memory_bytes}
        if self.prune != "front":
            column, sign = OBJECTIVES[self.objective]
            return least[column] is not None and sign * least[column] > value_of(self._best, self.objective)
        columns = [name for name in OF_FRONT if least[name] is not None]
        return any(all(row[name] <= least[name] for name in columns) for row in self._points)

    def _is_compared(self, candidate: Candidate) -> bool:
        """Return whether a beaten layout is priced, to say how much slower its strategy is: until one of it fits."""
        if self.prune != "auto" or candidate.label in self._fitting:
            return False
        self._num_compared[candidate.label] += 1
        return self._num_compared[candidate.label] <= _MOST_COMPARED

    def _limit(self, problem: TuningProblem) -> Limit | None:
        """Return the limit beyond which layouts need not be priced; None where more than the step time decides."""
        if self.prune != "best" or self.objective == "energy" or self._num_problems > 1:
            return None
        best = float("inf") if self._best is None else float(self._best["step_time_s"])
        return Limit(best, self.most_bytes(problem.machine))

    def _run(self, calls: Iterator[WorkerCall], *, inline: bool) -> None:
        """Make calls, here or on workers, and rows of their figures."""
        if not inline:
            self._run_on_workers(calls)
            return
        for task, figures_of in calls:
            if self._is_over():
                return
            self._take(task, figures_of())

    def _run_on_workers(self, calls: Iterator[WorkerCall]) -> None:
        """Keep workers busy until nothing is left."""
        in_flight: dict[Future[Sequence[Figures]], WorkerCall] = {}
        again: list[WorkerCall] = []  # parts of what ended its workers
        try:
            while True:
                while self._has_place(in_flight) and (call := again.pop() if again else next(calls, None)):
                    in_flight[self._workers[0].submit(call[1])] = call
                if not in_flight:
                    return
                for future in first_done(self._workers[0], in_flight):
                    task, _ = in_flight.pop(future)
                    try:
                        self._take(task, result_of(future))
                    except WorkerLostError as error:
                        again += self._parts_of_lost(task, error)
        except BaseException:
            for future in in_flight:
                future.cancel()
            raise

    def each(self, function: Callable[..., T], tasks: Sequence[tuple[Any, ...]]) -> Iterator[T]:
        """Yield what a function returns for each task, in their order: made on workers, if the search had some."""
        if "_workers" not in self.__dict__:
            yield from starmap(function, tasks)
            return
        with workers_of(self.executor, self.jobs, [one.strategy for one in self.candidates]) as (workers, _):
            futures = [workers.submit(function, *task) for task in tasks]
            for future in futures:
                first_done(workers, [future])
                yield result_of(future)

    def _has_place(self, in_flight: Collection[Any]) -> bool:
        """Return whether more can be begun."""
        return (not in_flight or len(in_flight) < self._workers[1]) and not self._is_over()

    def _parts_of_lost(self, task: Task, error: WorkerLostError) -> Sequence[WorkerCall]:
        """Return the halves of what ended every worker; of one configuration, make a failed row."""
        middle = len(task) // 2
        if middle:
            return [self._pricing(task[:middle]), self._pricing(task[middle:])]
        self._take(task, [Figures(error=f"{type(error).__name__}: {error}")])
        return []

    @cached_property
    def _workers(self) -> tuple[Executor, int]:
        """The workers of this search, and how many tasks to submit at once; they end with `run`."""
        strategies = {one.label: one.strategy for one in self.candidates}
        return self._opened.enter_context(workers_of(self.executor, self.jobs, list(strategies.values())))

    def _is_over(self) -> bool:
        """Return whether the time that was given is over."""
        is_over = self._end is not None and time.monotonic() > self._end
        self.was_interrupted |= is_over
        return is_over

    def _take(self, task: Task, found: Sequence[Figures]) -> None:
        """Take what a task has come to."""
        for (place, candidate), figures in zip(task, found, strict=True):
            self._add(candidate, place, figures)
        if self.progress is not None:
            self.progress(len(self.rows), len(self.candidates), self._best)


def _recomputed(candidate: Candidate) -> Recompute:
    """Return what backward computes again."""
    return as_recompute(candidate.options.get("recompute", "none"))


def _amount_recomputed(candidate: Candidate) -> int:
    """Return how much that is: more for what includes another one."""
    recompute = _recomputed(candidate)
    return len(MODULES) + 1 if recompute == "full" else len(modules_within(recompute))


def _but_recomputation(candidate: Candidate) -> Hashable:
    """Return what tells layouts apart but for what backward computes again."""
    options = {name: repr(value) for name, value in candidate.options.items() if name != "recompute"}
    return candidate.problem, candidate.label, frozenset(options.items())


def _tasks(missing: Task) -> Iterator[Task]:
    """Yield layouts in groups of about equal work; those of one structure stay together."""
    by_problem: dict[TuningProblem, dict[Structure, Task]] = {}
    for place, candidate in missing:
        structures = by_problem.setdefault(candidate.problem, {})
        structures.setdefault(_structure_of(candidate), []).append((place, candidate))
    for structures in by_problem.values():
        task: Task = []
        for structure in sorted(structures, key=_order_of_structures):
            if task and _work_of(task) > _WORK_OF_TASK:
                yield task
                task = []
            task = task + structures[structure]
        yield task


def _order_of_structures(structure: Structure) -> Any:
    """Return the sort key of a structure: equal ratios of microbatches to ranks have passes in common."""
    pp, _, num_microbatches, _ = structure
    return num_microbatches / pp, structure


def _structure_of(candidate: Candidate) -> Structure:
    assert candidate.pipeline is not None
    return candidate.pipeline.structure


def _work_of(task: Task) -> int:
    """Return about how much work it is to price layouts: the steps of each structure, and something for each layout."""
    structures = {_structure_of(candidate) for _, candidate in task}
    return sum(2 * pp * chunks * num_microbatches for pp, chunks, num_microbatches, _ in structures) + 20 * len(task)
