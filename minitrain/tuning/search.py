"""Going through the configurations of a search: which are priced when, by whom, and what need not be priced.

Layouts that can be put together from pieces come first, many at a time. What must be simulated one by one comes after,
the most promising first; what takes longer for sure than the best that is known is pruned. A row is written to the
results file as soon as it is there, so that a search that is begun again goes on where the first one ended.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, final

from minitrain.sweeps.batches import Workers, result_of
from minitrain.sweeps.executors.choice import workers_of
from minitrain.sweeps.executors.own_processes import WorkerLostError
from minitrain.sweeps.sweep import read_rows, writing
from minitrain.tuning.bounds import Bound, bound_of
from minitrain.tuning.layouts import Structure
from minitrain.tuning.problem import Machine, TuningProblem
from minitrain.tuning.rows import FITS, OBJECTIVES, OF_FRONT, Row, judged_again, key_of_candidate, row_of, value_of
from minitrain.tuning.space import Candidate
from minitrain.tuning.worker_tasks import Figures, Limit, price_pipelines, simulate_each
from minitrain.workloads.workload import MODULES, Recompute, as_recompute, is_less, modules_within

Progress = Callable[[int, int, Row | None], None]
Task = list[tuple[int, Candidate]]
"""Configurations with their places."""

_WORK_OF_TASK = 30_000
"""About the work (`_work_of`) of a task, which takes one to two seconds."""
_WORK_INLINE = 60_000
"""Up to how much work the caller does itself: processes take a while to start."""
_MOST_INLINE = 2
"""Up to how many configurations the caller simulates itself."""


@final
@dataclass(frozen=True, slots=True)
class WorkerCall:
    """What is sent to a worker: configurations, and the function that makes their figures.

    Args:
        task: the configurations.
        function: makes their figures.
        arguments: returns those of the function, as they are when the call begins.
    """

    task: Task
    function: Callable[..., Sequence[Figures]]
    arguments: Callable[[], Sequence[Any]]


@final
class Search:
    """A search that is under way.

    Args:
        found: the configurations.
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
    """

    def __init__(
        self,
        found: Sequence[Candidate],
        *,
        objective: str,
        head_room: float,
        prune: str = "auto",
        executor: Workers = None,
        jobs: int | None = None,
        results: Path | None = None,
        progress: Progress | None = None,
        budget_s: float | None = None,
        time_limit_s: float | None = None,
    ) -> None:
        self.candidates = found
        self.rows: dict[int, Row] = {}
        self.was_interrupted = False
        self.objective, self._head_room, self._prune = objective, head_room, prune
        self._executor, self._jobs = executor, jobs
        self._time_limit_s = time_limit_s
        self._is_alone = executor is None and jobs == 1
        self._results, self._progress = results, progress
        self._end = None if budget_s is None else time.monotonic() + budget_s
        self._best: Row | None = None
        self._points: list[Row] = []
        self._fits_with: dict[Hashable, set[Recompute]] = {}  # the recomputations with which a layout fits

    def run(self, choose: Callable[[Task], Iterator[Task]] | None = None) -> None:
        """Price what is not known; Ctrl-C ends it and keeps what is there.

        Args:
            choose: yields parts of what is missing, and finds their rows in `rows` when it goes on; all of it if None.
        """
        self._known = {} if self._results is None else read_rows(self._results)
        with writing(self._results) as self._write, contextlib.ExitStack() as self._opened:
            missing = list(self._missing())
            try:
                for part in [missing] if choose is None else choose(missing):
                    self._price([one for one in part if one[1].pipeline is not None])
                    self._simulate([one for one in part if one[1].pipeline is None])
            except KeyboardInterrupt:
                self.was_interrupted = True
        if self._progress is not None:
            self._progress(len(self.rows), len(self.candidates), self._best)

    def _missing(self) -> Iterator[tuple[int, Candidate]]:
        """Yield what is to be priced or pruned, with its place; keep what is known or breaks a rule of the space."""
        for place, candidate in enumerate(self.candidates):
            machine = candidate.problem.machine
            key = key_of_candidate(candidate) if self._known else ""
            row = judged_again(self._known[key], self.most_bytes(machine)) if key in self._known else None
            if row is None and candidate.illegal is not None:
                row = row_of(candidate, None, machine, 0.0)
            if row is None:
                yield place, candidate
            else:
                self._keep(place, row)

    def most_bytes(self, machine: Machine) -> float:
        """Return how much memory a rank may use, bytes."""
        capacity = machine.capacity_bytes
        return float("inf") if capacity is None else capacity * (1 - self._head_room)

    def _keep(self, place: int, row: Row) -> None:
        """Keep a row."""
        self.rows[place] = row
        if row["status"] == FITS:
            if self._best is None or value_of(row, self.objective) < value_of(self._best, self.objective):
                self._best = row
            self._points.append(row)

    def _add(self, candidate: Candidate, place: int, figures: Figures) -> None:
        """Make a row of figures, keep it and write it."""
        machine = candidate.problem.machine
        row = row_of(candidate, figures, machine, self.most_bytes(machine))
        self._keep(place, row)
        if row["status"] == FITS:
            self._fits_with.setdefault(_but_recomputation(candidate), set()).add(_recomputed(candidate))
        if self._results is not None and self._known.get(key := key_of_candidate(candidate)) != row:
            self._write(key, row)

    def _price(self, missing: Task) -> None:
        """Price layouts from pieces."""
        tasks = list(_tasks(missing))
        is_small = sum(map(_work_of, tasks)) < _WORK_INLINE and self._executor is None
        self._run(map(self._pricing, tasks), inline=self._is_alone or is_small)

    def _pricing(self, task: Task) -> WorkerCall:
        """Return the call that prices layouts of one problem from pieces."""
        problem, layouts = task[0][1].problem, [candidate.pipeline for _, candidate in task]
        return WorkerCall(task, price_pipelines, lambda: (problem, layouts, self._limit(problem)))

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
        is_small = len(worth) <= _MOST_INLINE and self._executor is None
        self._run(self._worth_simulating(worth), inline=self._is_alone or is_small)

    def _worth_simulating(self, bounded: Sequence[tuple[Bound, int, Candidate]]) -> Iterator[WorkerCall]:
        """Yield what is to be simulated; what is pruned by then becomes a row."""
        for bound, place, candidate in bounded:
            if self._is_beaten(bound, candidate):
                self._add(candidate, place, Figures(is_pruned=True))
            elif self._recomputes_for_nothing(candidate):
                self._add(candidate, place, Figures(is_pruned=True, why_pruned="it fits with less recomputation"))
            else:
                yield self._simulation(place, candidate)

    def _simulation(self, place: int, candidate: Candidate) -> WorkerCall:
        """Return the call that simulates a configuration."""
        configurations = [(candidate.strategy, dict(candidate.options))]
        arguments = candidate.problem, configurations, self._time_limit_s
        is_slow = candidate.problem.machine.has_experts or candidate.in_usual_order is not None
        ends_when_full = self._prune != "none" and is_slow
        function = partial(simulate_each, ends_when_full=True) if ends_when_full else simulate_each
        return WorkerCall([(place, candidate)], function, lambda: arguments)

    def _recomputes_for_nothing(self, candidate: Candidate) -> bool:
        """Return whether the same layout fits with less recomputation, and so is quicker."""
        if self._prune not in ("auto", "best") or not candidate.problem.machine.has_experts:
            return False
        known = self._fits_with.get(_but_recomputation(candidate), ())
        return any(is_less(recompute, _recomputed(candidate)) for recompute in known)

    def _is_beaten(self, bound: Bound, candidate: Candidate) -> bool:
        """Return whether a known row is better than a configuration can be by its bound."""
        if self._prune == "none" or self._best is None or not bound.step_time_s:
            return False
        machine = candidate.problem.machine
        least = machine.figures(bound.step_time_s, bound.busy_s) | {"peak_memory_bytes": bound.peak_memory_bytes}
        if self._prune != "front":
            column, sign = OBJECTIVES[self.objective]
            return least[column] is not None and sign * least[column] > value_of(self._best, self.objective)
        columns = [name for name in OF_FRONT if least[name] is not None]
        return any(all(row[name] <= least[name] for name in columns) for row in self._points)

    def _limit(self, problem: TuningProblem) -> Limit | None:
        """Return the limit beyond which layouts need not be priced; None where more than the step time decides."""
        if self._prune != "best" or self.objective == "energy" or self._num_problems > 1:
            return None
        best = float("inf") if self._best is None else float(self._best["step_time_s"])
        return Limit(best, self.most_bytes(problem.machine))

    @cached_property
    def _num_problems(self) -> int:
        return len({one.problem for one in self.candidates})

    def _run(self, calls: Iterator[WorkerCall], *, inline: bool) -> None:
        """Make calls, here or on workers, and rows of their figures."""
        if not inline:
            self._run_on_workers(calls)
            return
        for call in calls:
            if self._is_over():
                return
            self._take(call.task, call.function(*call.arguments()))

    def _run_on_workers(self, calls: Iterator[WorkerCall]) -> None:
        """Keep workers busy until nothing is left."""
        in_flight: dict[Future[Sequence[Figures]], WorkerCall] = {}
        again: list[WorkerCall] = []  # parts of what ended its workers
        try:
            while True:
                while self._has_place(in_flight) and (call := again.pop() if again else next(calls, None)):
                    in_flight[self._workers[0].submit(call.function, *call.arguments())] = call
                if not in_flight:
                    return
                for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
                    call = in_flight.pop(future)
                    try:
                        self._take(call.task, result_of(future))
                    except WorkerLostError as error:
                        again += self._parts_of_lost(call, error)
        except BaseException:
            for future in in_flight:
                future.cancel()
            raise

    def _has_place(self, in_flight: Collection[Any]) -> bool:
        """Return whether more can be begun."""
        return (not in_flight or len(in_flight) < self._workers[1]) and not self._is_over()

    def _parts_of_lost(self, call: WorkerCall, error: WorkerLostError) -> Sequence[WorkerCall]:
        """Return the halves of what ended every worker; of one configuration, make a failed row."""
        middle = len(call.task) // 2
        if middle:
            return [self._pricing(call.task[:middle]), self._pricing(call.task[middle:])]
        self._take(call.task, [Figures(error=f"{type(error).__name__}: {error}")])
        return []

    @cached_property
    def _workers(self) -> tuple[Executor, int]:
        """The workers of this search, and how many tasks to submit at once; they end with `run`."""
        strategies = {one.label: one.strategy for one in self.candidates}
        return self._opened.enter_context(workers_of(self._executor, self._jobs, list(strategies.values())))

    def _is_over(self) -> bool:
        """Return whether the time that was given is over."""
        is_over = self._end is not None and time.monotonic() > self._end
        self.was_interrupted |= is_over
        return is_over

    def _take(self, task: Task, found: Sequence[Figures]) -> None:
        """Take what a task has come to."""
        for (place, candidate), figures in zip(task, found, strict=True):
            self._add(candidate, place, figures)
        if self._progress is not None:
            self._progress(len(self.rows), len(self.candidates), self._best)


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
