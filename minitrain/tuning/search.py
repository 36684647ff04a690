"""Going through the configurations of a search: which are priced when, by whom, and what need not be priced.

Layouts that can be put together from pieces come first, many at a time. What must be simulated one by one comes after,
the most promising first; what takes longer for sure than the best that is known is pruned. A row is written to the
results file as soon as it is there, so that a search that is begun again goes on where the first one ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path
from typing import Any, final

from minitrain.run.strategy_loading import Strategy
from minitrain.sweeps.batches import Workers, own_workers, result_of
from minitrain.sweeps.executors.cluster_workers import WorkerLostError
from minitrain.sweeps.results_file import read_rows, writing
from minitrain.tuning.bounds import Bound, bound_of
from minitrain.tuning.problem import Machine
from minitrain.tuning.rows import FITS, OBJECTIVES, OF_FRONT, Row, key_of_candidate, row_of, value_of
from minitrain.tuning.space import Candidate
from minitrain.tuning.work import Figures, Limit, price_pipelines, simulate_each

Progress = Callable[[int, int, Row | None], None]
Task = list[tuple[int, Candidate]]

_WORK_OF_TASK = 30_000
"""About how many steps of stages a task goes through: one to two seconds."""
_WORK_INLINE = 60_000
"""Up to how many the caller goes through them itself: processes take a while to start."""


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

    def run(self, choose: Callable[[Task], Iterator[Task]] | None = None) -> None:
        """Price what is not known; Ctrl-C ends it and keeps what is there.

        Args:
            choose: yields parts of what is missing, and finds their rows in `rows` when it goes on; all of it if None.
        """
        known = {} if self._results is None else read_rows(self._results)
        missing: Task = []
        with writing(self._results) as self._write:
            for place, candidate in enumerate(self.candidates):
                key = key_of_candidate(candidate) if self._results is not None else ""
                if key in known:
                    self._keep(place, known[key])
                elif candidate.illegal is not None:
                    self._keep(place, row_of(candidate, None, candidate.problem.machine, 0.0))
                else:
                    missing.append((place, candidate))
            try:
                for part in [missing] if choose is None else choose(missing):
                    self._price([one for one in part if one[1].pipeline is not None])
                    self._simulate([one for one in part if one[1].pipeline is None])
            except KeyboardInterrupt:
                self.was_interrupted = True
        if self._progress is not None:
            self._progress(len(self.rows), len(self.candidates), self._best)

    def most_bytes(self, machine: Machine) -> float:
        """Return what a rank may hold, bytes."""
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
        if self._results is not None:
            self._write(key_of_candidate(candidate), row)

    def _price(self, missing: Task) -> None:
        """Price layouts from pieces."""
        tasks = list(_tasks(missing))
        work = sum(_work_of(candidate) for _, candidate in missing)
        is_pruning = self._prune == "best"
        submit = [(task, price_pipelines, (task[0][1].problem, [one.pipeline for _, one in task])) for task in tasks]
        self._run(submit, inline=self._is_alone or (work < _WORK_INLINE and self._executor is None), limits=is_pruning)

    def _simulate(self, missing: Task) -> None:
        """Simulate configurations one by one, those first that may be quickest, and leave out what need not be."""
        bounded = [(bound_of(candidate, candidate.problem.machine), place, candidate) for place, candidate in missing]
        worth = []
        for bound, place, candidate in sorted(bounded, key=lambda one: (one[0].step_time_s, one[1])):
            if bound.peak_memory_bytes > self.most_bytes(candidate.problem.machine):
                figures = Figures(peak_memory_bytes=bound.peak_memory_bytes, is_pruned=True, is_bound=True)
                self._add(candidate, place, figures)
            else:
                worth.append((bound, place, candidate))
        is_small = len(worth) < 3 and self._executor is None
        self._run(self._worth_simulating(worth), inline=self._is_alone or is_small, limits=False)

    def _worth_simulating(self, bounded: Sequence[tuple[Bound, int, Candidate]]) -> Iterator[Any]:
        """Yield what is to be simulated; what is pruned by then becomes a row."""
        for bound, place, candidate in bounded:
            if self._is_beaten(bound, candidate):
                self._add(candidate, place, Figures(is_pruned=True))
            else:
                configuration = candidate.strategy, dict(candidate.options)
                yield [(place, candidate)], simulate_each, (candidate.problem, [configuration], self._time_limit_s)

    def _is_beaten(self, bound: Bound, candidate: Candidate) -> bool:
        """Return whether something that is known is better for sure."""
        if self._prune == "none" or self._best is None or not bound.step_time_s:
            return False
        machine = candidate.problem.machine
        least = machine.figures(bound.step_time_s, bound.busy_s) | {"peak_memory_bytes": bound.peak_memory_bytes}
        if self._prune != "front":
            column, sign = OBJECTIVES[self.objective]
            return least[column] is not None and sign * least[column] > value_of(self._best, self.objective)
        columns = [name for name in OF_FRONT if least[name] is not None]
        return any(all(row[name] <= least[name] for name in columns) for row in self._points)

    def _limit(self, task: Task) -> Limit | None:
        """Return what layouts must keep, where one objective that only the step time decides is all that counts."""
        problems = {one.problem for one in self.candidates}
        if self._prune != "best" or self.objective == "energy" or len(problems) > 1:
            return None
        best = float("inf") if self._best is None else float(self._best["step_time_s"])
        return Limit(best, self.most_bytes(task[0][1].problem.machine))

    def _run(self, tasks: Any, *, inline: bool, limits: bool) -> None:
        """Run tasks, here or on workers, and make rows of what comes."""
        todo = iter(tasks)
        if inline:
            for task, function, arguments in todo:
                if self._is_over():
                    return
                self._take(task, function(*arguments, *([self._limit(task)] if limits else [])))
            return
        first = next(todo, None)
        if first is None:
            return
        with own_workers(self._executor, self._jobs, self._strategies()) as (workers, num_at_once):
            self._run_on(workers, num_at_once, _with_first(first, todo), limits=limits)

    def _run_on(self, workers: Executor, num_at_once: int, todo: Iterator[Any], *, limits: bool) -> None:
        """Keep some tasks at work until none is left."""
        in_flight: dict[Future[Sequence[Figures]], Task] = {}
        try:
            while True:
                while len(in_flight) < num_at_once and not self._is_over() and (one := next(todo, None)):
                    task, function, arguments = one
                    limit = [self._limit(task)] if limits else []
                    in_flight[workers.submit(function, *arguments, *limit)] = task
                if not in_flight:
                    return
                done, _ = wait(in_flight, return_when=FIRST_COMPLETED)
                for future in done:
                    self._take(task := in_flight.pop(future), _figures_of(task, future))
        except BaseException:
            for future in in_flight:
                future.cancel()
            raise

    def _strategies(self) -> list[str | Strategy]:
        """Return the strategies that are searched, each once."""
        return list({one.label: one.strategy for one in self.candidates}.values())

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


def _figures_of(task: Task, future: Future[Sequence[Figures]]) -> Sequence[Figures]:
    """Return what a worker has made of a task; a configuration that ends every worker has failed."""
    try:
        return result_of(future)
    except WorkerLostError as error:
        if len(task) > 1:
            raise
        return [Figures(error=f"{type(error).__name__}: {error}")]


def _with_first(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    """Yield one more thing before others."""
    yield first
    yield from rest


def _work_of(candidate: Candidate) -> float:
    """Return about how many steps of stages a layout takes part in, beside its own pieces."""
    assert candidate.pipeline is not None
    return len(candidate.pipeline.stages)


def _tasks(missing: Task) -> Iterator[Task]:
    """Yield layouts in groups of about equal work; those of one structure stay together.

    Layouts with equal ratios of microbatches to ranks have passes in common, so that one process gets them in a row.
    """
    by_structure: dict[Any, Task] = {}
    for place, candidate in missing:
        assert candidate.pipeline is not None
        by_structure.setdefault((candidate.problem, candidate.pipeline.structure), []).append((place, candidate))

    def ratio(structure: Any) -> float:
        pp, _, num_microbatches, _ = structure[1]
        return float(num_microbatches / pp)

    task: Task = []
    work = 0.0
    last: Any = None
    for key in sorted(by_structure, key=lambda one: (ratio(one), one[1])):
        pp, num_chunks, num_microbatches, _ = key[1]
        if task and (work > _WORK_OF_TASK or last != key[0]):
            yield task
            task, work = [], 0.0
        task, last = task + by_structure[key], key[0]
        work += 2 * pp * num_chunks * num_microbatches + 20 * len(by_structure[key])
    if task:
        yield task
