"""The tasks of the ranks of one run: all in one event loop, all ended when one fails, none left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from minitrain.errors import StrategyError
from minitrain.rank.model import Model
from minitrain.run.prepared_run import PreparedRun
from minitrain.run.unretrieved_errors import collecting_unretrieved_errors
from minitrain.transport.deadlocks import DeadlockDetector
from minitrain.transport.dist import Dist


async def run_ranks(prepared: PreparedRun, models: Sequence[Model]) -> None:
    """Run the strategy on every rank; if one fails, end the others and raise its error.

    Args:
        prepared: the strategy and its options.
        models: those of the ranks.
    """
    dist, loop = models[0].dist, asyncio.get_running_loop()
    ranks = _RankTasks(prepared, len(models))
    dist.detector.on_deadlock = ranks.end
    tasks = [asyncio.ensure_future(ranks.run(model)) for model in models]
    with collecting_unretrieved_errors(dist, tasks) as unretrieved:
        try:
            await ranks.ended
        finally:
            ranks.is_ending = True
            dist.detector.on_deadlock = None
            found = dist.error
            await end_all(dist.detector, {*tasks, *ranks.left_over, *dist.detector.unfinished_tasks(loop)})
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


async def end_all(detector: DeadlockDetector, tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, wait for it, and retrieve every error: asyncio logs what nobody retrieved."""
    pending = [task for task in tasks - {asyncio.current_task()} if not task.done()]
    for task in pending:
        task.cancel()
    detector.run_is_over = False  # a rank that meets others in its clean-up may wait for ever
    await asyncio.gather(*pending, return_exceptions=True)
    detector.run_is_over = True
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()


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
        model.dist.detector.claim_running_task(model.rank)
        try:
            result = await self.prepared.function(model, **self.prepared.options)
            self._require_model(model, result)
        except BaseException as error:
            if not self.is_ending:  # what fails in a clean-up only follows from the first failure
                self._fail(model, error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            model.dist.detector.finished_ranks.add(model.rank)
            self.num_running -= 1
            if not self.num_running:
                model.dist.detector.run_is_over = True
                self.end([])

    def end(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """End the run: all have returned, one has failed, or nobody can go on."""
        self.left_over += tasks
        if not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, model: Model, error: BaseException) -> None:
        """Note why a rank failed, unless it was cancelled because another one had failed."""
        if not (self.ended.done() and isinstance(error, asyncio.CancelledError)):
            self.failures.append((model.rank, error))
        model.dist.detector.run_is_over = True
        if not self.ended.done():  # once: all ranks may fail together, and looking for tasks takes long with many
            self.end(model.dist.detector.unfinished_tasks(self.ended.get_loop()))

    def _require_model(self, model: Model, result: Any) -> None:
        """Require that a rank returned its model."""
        if result is not model:
            raise StrategyError(
                f"the strategy {self.prepared.name} must return the model of its rank, got {result!r:.80} on rank "
                f"{model.rank}; end it with `return model`",
                rank=model.rank,
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
        for work in model.in_flight.values():
            raise StrategyError(
                f"rank {model.rank} launched {work.op} and never awaited it; `await work` before returning",
                rank=model.rank,
                op=work.op,
            )
