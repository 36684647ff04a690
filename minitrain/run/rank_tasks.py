"""The ranks of one run on their way: all in one event loop, all ended when one fails, nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from minitrain.errors import StrategyError
from minitrain.rank.model import Model
from minitrain.run.strategy_loading import Strategy
from minitrain.run.unretrieved_errors import collecting_unretrieved_errors
from minitrain.transport.deadlocks import DeadlockDetector
from minitrain.transport.dist import Dist


async def run_ranks(name: str, function: Strategy, models: Sequence[Model], options: Mapping[str, Any]) -> None:
    """Run the strategy on every rank; if one fails, end the others and raise its error.

    Args:
        name: what errors call the strategy.
        function: the strategy.
        models: those of the ranks.
        options: the strategy's own.
    """
    dist, loop = models[0].dist, asyncio.get_running_loop()
    crew = _Crew(name, function, len(models), options, dist.detector)
    dist.detector.on_deadlock = crew.end
    tasks = [asyncio.ensure_future(crew.run(model)) for model in models]
    with collecting_unretrieved_errors(dist, tasks) as unretrieved:
        try:
            await crew.ended
        finally:
            crew.is_ending = True
            dist.detector.on_deadlock = None
            found = dist.error
            await end_all(dist.detector, {*tasks, *crew.left_over, *dist.detector.unfinished_tasks(loop)})
    if crew.failures and found is None:  # what the transport found comes before what followed from it
        _raise_failure(name, models, *min(crew.failures, key=lambda failure: failure[0]))
    if dist.error is not None:
        raise dist.error.with_traceback(None)
    if unretrieved:
        rank, error = min(unretrieved, key=lambda found: found[0])
        error.add_note(f"in a sub-task of rank {rank} of {dist.world_size}, strategy {name}, that nobody awaited")
        raise error


async def end_all(detector: DeadlockDetector, tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, wait for it, and look at every outcome: asyncio logs what nobody looked at."""
    pending = [task for task in tasks - {asyncio.current_task()} if not task.done()]
    for task in pending:
        task.cancel()
    detector.run_is_over = False  # whoever meets others in his clean-up may wait for ever
    await asyncio.gather(*pending, return_exceptions=True)
    detector.run_is_over = True
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()


class _Crew:
    """The ranks of one run on their way; `ended` is done when all have returned or one has failed."""

    def __init__(
        self,
        name: str,
        function: Strategy,
        world_size: int,
        options: Mapping[str, Any],
        detector: DeadlockDetector,
    ) -> None:
        self.name = name
        self.function = function
        self.options = options
        self.detector = detector
        self.missing = world_size
        self.is_ending = False
        self.failures: list[tuple[int, BaseException]] = []
        self.left_over: list[asyncio.Task[Any]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, model: Model) -> None:
        """Run the strategy on one rank, which must return its model."""
        self.detector.claim_running_task(model.rank)
        try:
            result = await self.function(model, **self.options)
            self._require_model(model, result)
        except BaseException as error:
            if not self.is_ending:  # what fails in a clean-up only follows
                self._fail(model, error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            self.detector.finished_ranks.add(model.rank)
            self.missing -= 1
            if not self.missing:
                self.detector.run_is_over = True
                self.end([])

    def end(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """End the run: all have returned, one has failed, or nobody can go on."""
        self.left_over += tasks
        if not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, model: Model, error: BaseException) -> None:
        """Note why a rank failed, unless it was cancelled because another had."""
        if not (self.ended.done() and isinstance(error, asyncio.CancelledError)):
            self.failures.append((model.rank, error))
        self.detector.run_is_over = True
        if not self.ended.done():  # all ranks may fail at once, and looking for tasks takes longer with each of them
            self.end(self.detector.unfinished_tasks(self.ended.get_loop()))

    def _require_model(self, model: Model, result: Any) -> None:
        """Require that a rank returned its model."""
        if result is not model:
            raise StrategyError(
                f"the strategy {self.name} must return the model of its rank, got {result!r:.80} on rank {model.rank}; "
                "end it with `return model`",
                rank=model.rank,
            )


def _raise_failure(name: str, models: Sequence[Model], rank: int, error: BaseException) -> NoReturn:
    """Raise the error of the lowest rank that has one."""
    models[0].dist.close(error)
    if isinstance(error, asyncio.CancelledError):  # nobody else did, or the whole run would have ended with it
        raise StrategyError(
            f"rank {rank} was cancelled from within the strategy {name}; catch CancelledError where a task of its own "
            "is cancelled",
            rank=rank,
        ) from error
    error.add_note(f"on rank {rank} of {models[0].world_size}, strategy {name}")  # folded, there are fewer models
    raise error


def require_nothing_left(dist: Dist, models: Sequence[Model]) -> None:
    """Require that nothing failed unseen, every message was received and every launched operation awaited."""
    if dist.error is not None:  # the strategy, or a task that nobody awaited, has swallowed it
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
