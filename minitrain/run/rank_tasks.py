"""The tasks of the ranks of one run: all in one event loop, all ended when one fails, none left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from operator import is_not
from typing import Any, NoReturn

from minitrain.errors import StrategyError
from minitrain.events import PRICE, STRIDE
from minitrain.hardware.price import PENDING
from minitrain.rank.model import Model
from minitrain.run.prepared_run import PreparedRun
from minitrain.run.progress import RunProgress
from minitrain.transport.deadlocks import DeadlockDetector
from minitrain.transport.dist import Dist
from minitrain.transport.task_ownership import (
    RankTask,
    collecting_unretrieved_errors,
    end_ownership,
    task_of_rank,
)

INTERRUPTED_S = 2.0
"""Real time that clean-ups may take after Ctrl-C, s."""

_MOST_CANCELLATIONS = 3  # one for the task, the others for clean-ups that wait for what cannot come


async def run_ranks(prepared: PreparedRun, models: Sequence[Model], ranks_a_model: int = 1) -> None:
    """Run the strategy on every rank; if one fails, end the others and raise its error.

    Args:
        prepared: the strategy and its options.
        models: those of the ranks.
        ranks_a_model: how many ranks each of them stands for.
    """
    dist = models[0].dist
    ranks = _RankTasks(prepared, len(models))
    dist.detector.on_deadlock = ranks.end
    dist.detector.progress = _Progress(models)
    patience_s: float | None = None
    with collecting_unretrieved_errors(dist) as unretrieved:
        tasks = [task_of_rank(dist, model._rank, ranks.run(model)) for model in models]
        dist.detector.watch_run()
        if prepared.watch is not None:
            prepared.watch(RunProgress(models, ranks_a_model))
        try:
            await ranks.ended
        except asyncio.CancelledError:  # from outside: Ctrl-C, or a caller's time limit
            patience_s = INTERRUPTED_S
            raise
        finally:
            ranks.is_ending = True
            found = dist.error
            left = {*tasks, *ranks.left_over, *dist.detector.unfinished_tasks()}
            await end_all(dist.detector, left, patience_s)
            dist.detector.progress = None  # it would keep the models alive
    if ranks.failures and found is None:  # what the transport found comes before what followed from it
        _raise_failure(prepared.name, models, *min(ranks.failures, key=lambda failure: failure[0]))
    if dist.error is not None:
        raise dist.error.with_traceback(None)
    if unretrieved:
        rank, error = min(unretrieved, key=lambda found: found[0])
        error.add_note(
            f"in a sub-task of rank {rank} of {dist.world_size}, strategy {prepared.name}, that nobody awaited"
        )
        raise error


async def end_all(detector: DeadlockDetector, tasks: set[asyncio.Task[Any]], patience_s: float | None = None) -> None:
    """Cancel what still runs, wait for it, and retrieve every error: asyncio logs what nobody retrieved.

    A task that swallows its cancellation and then waits for what can never come is abandoned, as is one that goes on
    when the run is interrupted.

    Args:
        detector: that of the run.
        tasks: to be ended.
        patience_s: real time that clean-ups may take, s; None for any.
    """
    pending = {task for task in tasks - {asyncio.current_task()} if not task.done()}
    detector.run_is_over = False  # a rank that meets others in its clean-up may wait for ever
    try:
        if patience_s is not None and detector.num_reports:
            detector.report("interrupted while still waiting")
        for _ in range(_MOST_CANCELLATIONS if patience_s is None else 1):
            pending = pending and await _cancelled(detector, pending, patience_s)
    except asyncio.CancelledError:
        if detector.num_reports:
            detector.report("interrupted while tasks of the run do not end")
        raise
    finally:
        _abandon(pending)
        detector.on_deadlock = None
        detector.run_is_over = True
    for task in tasks:
        if task.done() and task not in pending and not task.cancelled():
            task.exception()


async def _cancelled(
    detector: DeadlockDetector, tasks: set[asyncio.Task[Any]], patience_s: float | None
) -> set[asyncio.Task[Any]]:
    """Cancel tasks, and return those that swallow it, as soon as none of them can go on or the time is up."""
    stuck: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    detector.on_deadlock = lambda _: None if stuck.done() else stuck.set_result(None)
    for task in tasks:
        task.cancel()
    ends: list[asyncio.Future[Any]] = [asyncio.gather(*tasks, return_exceptions=True), stuck]
    detector.watch_run()
    await asyncio.wait(ends, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    return {task for task in tasks if not task.done()}


def _abandon(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Give tasks up that do not end: the event loop waits for them no longer when it closes, and does not log them."""
    for task in tasks:
        if isinstance(task, RankTask) and not task.done():
            task.is_given_up = True


class _Progress:
    """How far ranks have come: their clocks, and the operations that are done where no clock has moved.

    Args:
        models: those of the ranks.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = models
        self._clocks: list[float] = []

    def __call__(self) -> object:
        """Return a value that differs from the last one if a rank has got on since."""
        before, self._clocks = self._clocks, [model.time for model in self._models]
        if len(before) != len(self._clocks) or any(map(is_not, before, self._clocks)):  # an event makes a new clock
            return object()
        return sum(price is not PENDING for model in self._models for price in model._log._rows[PRICE::STRIDE])


class _RankTasks:
    """The tasks of the ranks of one run.

    Args:
        prepared: the strategy and its options.
        num_ranks: number of tasks.

    Attributes:
        num_running: ranks that have not returned yet.
        is_ending: whether the tasks are being cancelled.
        failures: ranks that failed, and their errors.
        left_over: tasks of the strategy that have to be ended too.
        ended: done when all ranks have returned, one has failed, or nobody can go on.
    """

    def __init__(self, prepared: PreparedRun, num_ranks: int) -> None:
        self.prepared = prepared
        self.num_running = num_ranks
        self.is_ending = False
        self.failures: list[tuple[int, BaseException]] = []
        self.left_over: list[asyncio.Task[Any]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, model: Model) -> None:
        """Run the strategy on one rank, which must return its model."""
        detector = model._dist.detector
        try:
            result = await self.prepared.function(model, **self.prepared.options)
            self._require_model(model, result)
        except BaseException as error:
            if not self.is_ending:  # what fails in a clean-up only follows from the first failure
                self._fail(model, error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            detector.finished_ranks.add(model._rank)
            self.num_running -= 1
            if not self.num_running:
                detector.run_is_over = True
                self.end([])
        finally:
            end_ownership()

    def end(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """End the run: all have returned, one has failed, or nobody can go on."""
        self.left_over += tasks
        if not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, model: Model, error: BaseException) -> None:
        """Note why a rank failed, unless it was cancelled because another one had failed."""
        if not (self.ended.done() and isinstance(error, asyncio.CancelledError)):
            self.failures.append((model._rank, error))
        model.dist.detector.run_is_over = True
        if not self.ended.done():  # once: all ranks may fail together, and looking for tasks takes long with many
            self.end(model.dist.detector.unfinished_tasks())

    def _require_model(self, model: Model, result: Any) -> None:
        """Require that a rank returned its model."""
        if result is not model:
            raise StrategyError(
                f"the strategy {self.prepared.name} must return the model of its rank, got {result!r:.80} on rank "
                f"{model._rank}; end it with `return model`",
                rank=model._rank,
            )


def _raise_failure(name: str, models: Sequence[Model], rank: int, error: BaseException) -> NoReturn:
    """Raise the error of the lowest rank that has one."""
    models[0].dist.close(error)
    if isinstance(error, asyncio.CancelledError):  # by the strategy itself, or the whole run would be cancelled
        raise StrategyError(
            f"rank {rank} was cancelled from within the strategy {name}; catch CancelledError where a task of its own "
            "is cancelled",
            rank=rank,
        ) from error
    error.add_note(f"on rank {rank} of {models[0].world_size}, strategy {name}")  # a folded run has fewer models
    raise error


def require_nothing_left(dist: Dist, models: Sequence[Model]) -> None:
    """Require that no error was swallowed, every message was received and every launched operation awaited."""
    if dist.error is not None:  # swallowed by the strategy, or by a task that nobody awaited
        raise dist.error.with_traceback(None)
    lost = dist.unreceived()
    if lost:
        first = lost[0]
        raise StrategyError(
            f"{len(lost)} message{'s were' if len(lost) > 1 else ' was'} sent and never received; the first: rank "
            f"{first.rank} sent {first.value!r:.120}; every send needs a receive",
            messages=lost,
        )
    for model in models:
        for work in model._in_flight.values():
            raise StrategyError(
                f"rank {model._rank} launched {work.op} and never awaited it; `await work` before returning",
                rank=model._rank,
                op=work.op,
            )
