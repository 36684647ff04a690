"""The tasks of the ranks of one run: all in one event loop, all ended when one fails, none left behind.

Every way of simulating (all ranks, folded) begins with a `PreparedRun` and makes its `Run` by it. In it the strategy is
found, and what prices its operations is made. `run_ranks` runs the tasks. `RunProgress` says how far a simulation is,
to be read from another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import Any, NoReturn, TypeVar

from minitrain.engine.deadlocks import DeadlockDetector
from minitrain.engine.dist import Dist
from minitrain.engine.event_loop import RankTask, collecting_unretrieved_errors, end_ownership, task_of_rank
from minitrain.engine.model import Model
from minitrain.engine.protocol import lines_of_calls, shortened
from minitrain.engine.semantics import DeclaredLocalSteps, Entry, SharesOfRun
from minitrain.errors import MinitrainError, StrategyError, UsageError, one_of, text_of
from minitrain.machine.device import DataSheet
from minitrain.machine.platforms import StandsFor, find_platform
from minitrain.machine.predictor import network_of
from minitrain.machine.price import PENDING, Predictor, RankPredictors, predictor_of
from minitrain.operations import PRICE, STRIDE
from minitrain.run.device_memory import OutOfMemory, error_of, excess_of, needed_memory_of, when, worst_of
from minitrain.run.facts import DeviceKind, kinds_of, name_of_workload, trained_model_of
from minitrain.run.parameters import AUTO, DEFAULTS, RunParameters, split_keywords
from minitrain.run.result import Run
from minitrain.run.strategy_loading import (
    Strategy,
    choose_strategy,
    hides_collectives,
    options_of,
    stands_for,
    unwrapped,
)
from minitrain.source_lines import passed_by
from minitrain.workloads.workload import fills_devices

R = TypeVar("R", bound=Run)


def declared_by(function: Strategy, options: Mapping[str, Any]) -> tuple[DeclaredLocalSteps | None, dict[str, Any]]:
    """Return what a strategy declares that it means to compute, if it does, and its options with their defaults."""
    defaults = {name: option.default for name, option in options_of(function).items()}
    return getattr(unwrapped(function), "semantics", None), {**defaults, **options}


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A strategy, its options, and what it is simulated with.

    Args:
        name: the strategy's name.
        function: the strategy.
        options: the strategy's own options.
        parameters: those of the run.
        predictor: what prices the operations: one for all ranks, or one for each.
        watch: called when the ranks begin, with a `RunProgress`.
        variant: how all ranks are simulated (a `minitrain.run.simulation.Variant`), for whoever extends the engine;
            chosen by the parameters if None.
        folded_kind: class of the models where ranks are folded, likewise.
        simulate: simulates another run that is ready, for a run that needs one to know its own figures.
        entry_clocks: of a step of a longer run, when each rank begins it, s.
        is_later: whether a step has come before it.
    """

    name: str
    function: Strategy
    options: Mapping[str, Any]
    parameters: RunParameters
    predictor: Predictor | RankPredictors
    watch: Watch | None = None
    variant: Any = None
    folded_kind: Any = None
    simulate: Callable[[PreparedRun], Awaitable[Run]] | None = None
    entry_clocks: Sequence[float] | None = None
    is_later: bool = False

    @property
    def contention(self) -> bool | str:
        """Whether the run is timed again for contention; one of several steps, or of totals, is not by itself."""
        asked, parameters = self.parameters.contention, self.parameters
        if asked != AUTO:
            return asked
        is_whole = parameters.log == "full" and self.entry_clocks is None
        return is_whole and suits_contention(self.function, self.predictor)

    @property
    def stands_for(self) -> StandsFor:
        """What the run stands for: its strategy's framework, and the layout."""
        return stands_for(self.function, self.options, self.parameters.world_size)

    @property
    def priced_by(self) -> str:
        """What prices operations, in words; devices of a cluster may have platforms of their own."""
        each = self.predictor.predictors if isinstance(self.predictor, RankPredictors) else (self.predictor,)
        different = {id(pricing): pricing for pricing in (getattr(one, "pricing", "roofline") for one in each)}
        return "; ".join(dict.fromkeys(map(str, different.values()))) + contention_in_words(self)

    @property
    def hardware_name(self) -> str:
        """What the run calls its hardware."""
        if isinstance(self.predictor, RankPredictors) and self.predictor.cluster is not None:
            return str(self.predictor.cluster.name)
        system = getattr(self.predictor, "system", None)
        return str(getattr(system, "name", None) or self.parameters.hardware)

    @property
    def has_stragglers(self) -> bool:
        """Whether computing takes longer on some ranks."""
        return bool(self.parameters.slowdown)

    def predictor_of(self, rank: int) -> Predictor:
        """Return what prices the operations of one rank, which may be a straggler."""
        predictor, factor = predictor_of(self.predictor, rank), (self.parameters.slowdown or {}).get(rank)
        return predictor if factor is None else predictor.slowed(factor)

    def give_shares(self, models: Sequence[Model]) -> None:
        """Tell the ranks who takes how much of the step, if they do not all take the same."""
        shares = None if self.parameters.shares is None else SharesOfRun(self.parameters.shares)
        for model in models if shares else ():
            model._shares = shares

    def enter(self, model: Model) -> None:
        """Tell a rank what its strategy means to compute, and let it begin a step of a longer run."""
        declared: DeclaredLocalSteps | None = getattr(unwrapped(self.function), "semantics", None)
        if declared is not None:
            _, options = declared_by(self.function, self.options)
            sizes = self.parameters.world_size, self.parameters.global_batch_size, model._num_layers
            model._semantics = declared.of(self.name, options, *sizes)
            ema = getattr(getattr(model._runtime_predictor.workload, "model", None), "ema", None)
            if not declared.in_turn and ema is not None:
                raise StrategyError(
                    f"{self.name} lets replicas take steps of their own, of whose weights there is no one average; "
                    f"leave ema={ema:g} out"
                )
        if self.entry_clocks is not None:
            model._time = self.entry_clocks[model._rank]
            model._entry = Entry(self.is_later)

    def require_shares_read(self, models: Sequence[Model]) -> None:
        """Require that the strategy has asked for the shares that it was given.

        Raises:
            UsageError: it has not, and has divided the step equally.
        """
        given = models[0]._shares
        if given is not None and given.unread:
            raise UsageError(
                f"{self.name} has not asked for the {' and the '.join(given.unread)} of shares, and divides the step "
                "without them; use a strategy that asks for them (model.samples_of_rank, model.microbatches, "
                "model.stages), or leave them out",
                shares=given.shares,
            )

    def transport(self) -> Dist:
        """Return a fresh transport for the ranks."""
        return Dist(self.parameters.world_size, p2p_buffer=self.parameters.p2p_buffer)

    def _sheets(self) -> tuple[DataSheet | None, ...]:
        """Return the data sheet of each rank's device, or one for all."""
        predictors = self.predictor.predictors if isinstance(self.predictor, RankPredictors) else (self.predictor,)
        return tuple([getattr(getattr(predictor, "system", None), "sheet", None) for predictor in predictors])

    def _device_kinds(self) -> Sequence[DeviceKind]:
        """Return which ranks have which device, where a cluster tells them apart."""
        predictor = self.predictor
        return kinds_of(predictor) if isinstance(predictor, RankPredictors) and predictor.cluster is not None else ()

    def result(self, kind: type[R], models: Sequence[Model], excesses: Sequence[OutOfMemory], /, **more: Any) -> R:
        """Return the run that was simulated.

        Args:
            kind: class of the run.
            models: those of the ranks, at their end.
            excesses: where tensors took more than the device's memory.
            more: further fields of that class, and those of `Run` that are not read from the models as they are.
        """
        workload, parameters = self.predictor.workload, self.parameters
        memories = [needed_memory_of(model) for model in models] if fills_devices(workload) else []
        oom = min(excesses, key=when, default=None)
        if memories:
            sizes = [model._runtime_predictor.capacity_bytes for model in models]
            oom = worst_of(map(excess_of, models, memories, sizes))
        if oom is not None and parameters.strict_memory:
            raise error_of(oom)
        machine = predictor_of(self.predictor, 0)  # the ranks of a run share one network
        of_models: dict[str, Any] = {
            "models": models,
            "logs": [model._log for model in models],
            "peak_memory_per_rank": [model.peak_memory for model in models],
            "memory_by_kind": _memory_by_kind(models, workload.bytes_per_element),
            "peak_host_memory_bytes": max([model.peak_host_bytes for model in models]),
            "meshes": _different([mesh for model in models for mesh in model._meshes]),
            "trained_model": trained_model_of(workload, models),
            "device_kinds": self._device_kinds(),
        }
        trained = (of_models | more)["trained_model"]
        dropped = trained.dropped_copies if trained is not None else 0
        lost_flop = workload.dropped_flop(dropped) if dropped else 0  # type: ignore[attr-defined]  # a transformer's
        return kind(
            strategy=self.name,
            world_size=parameters.world_size,
            num_layers=parameters.num_layers,
            global_batch_size=parameters.global_batch_size,
            hardware=self.hardware_name,
            options=self.options,
            bytes_per_element=workload.bytes_per_element,
            useful_flop=workload.training_flop(parameters.global_batch_size, parameters.num_layers) - lost_flop,
            peak_flop_per_s=self.predictor.peak_flop_per_s,
            capacity_bytes=self.predictor.capacity_bytes,
            oom=oom,
            needed_memory_bytes=max([memory.needed_bytes for memory in memories], default=None),
            network=network_of(machine) or "flat",
            num_nodes=getattr(machine, "num_nodes", 1),
            priced_by=self.priced_by,
            prepared=self,
            sheets=self._sheets(),
            tokens_per_sample=getattr(workload, "tokens_per_sample", None),
            workload=name_of_workload(workload),
            **(of_models | more),
        )


def suits_contention(strategy: Strategy, predictor: Any) -> bool:
    """Return whether collectives of a strategy slow computing down, which no number of its platform contains."""
    each = predictor.predictors if isinstance(predictor, RankPredictors) else (predictor,)
    platforms = {getattr(getattr(one, "pricing", None), "platform", None) for one in each} - {None}
    return hides_collectives(strategy) and any(not find_platform(one).contains_contention for one in platforms)


def contention_in_words(prepared: PreparedRun) -> str:
    """Return whether contention has a price, as figures end what priced operations; "" where that is no question."""
    if not suits_contention(prepared.function, prepared.predictor):
        return ""
    return ", with contention" if prepared.contention else ", without contention"


def _different(meshes: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """Return meshes that differ, each once."""
    return list({tuple(mesh.items()): mesh for mesh in meshes}.values())


def _memory_by_kind(models: Sequence[Model], bytes_per_element: int) -> dict[str, float] | None:
    """Return the bytes of each kind on the rank that held most, when it did; None where stores did not tell kinds."""
    if models[0].layers_are_alike:
        return None
    kinds = max(models, key=lambda model: model.peak_memory).peak_by_kind
    return kinds and {kind: elements * bytes_per_element for kind, elements in kinds.items()}


def prepare(strategy: str | Strategy, keywords: Mapping[str, Any], watch: Watch | None = None) -> PreparedRun:
    """Find a strategy and make what prices its operations.

    Args:
        strategy: a coroutine function of one rank's `Model`, a shipped name, or "path.py:function"; a name may have
            options ("pp_dp:pp=4").
        keywords: parameters of the run, and the strategy's own options.
        watch: called when the ranks begin, with a `RunProgress`.

    Raises:
        UsageError: a parameter is outside its rule.
        HardwareConfigError: the hardware config cannot be found or read, or is invalid.
        StrategyError: there is no such strategy, or it takes other options.
    """
    parameters, common = split_keywords(keywords)
    chosen = choose_strategy(strategy)
    options = chosen.options_with(common, DEFAULTS)
    predictor = parameters.predictor(stands_for(chosen.function, options, parameters.world_size))
    return PreparedRun(chosen.name, chosen.function, options, parameters, predictor, watch)


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
            waiting = lines_of_calls([call for call in dist.unsettled_calls() if call.is_awaited])
            left = {*tasks, *ranks.left_over, *dist.detector.unfinished_tasks()}
            await end_all(dist.detector, left, patience_s)
            dist.detector.progress = None  # it would keep the models alive
    if ranks.failures and found is None:  # what the transport found comes before what followed from it
        _raise_failure(prepared.name, models, *min(ranks.failures, key=lambda failure: failure[0]))
    if dist.error is not None:
        raise dist.error.with_traceback(None)
    if waiting:
        raise StrategyError(
            "all ranks have returned while tasks of theirs still wait; await a rank's tasks before it returns\n"
            + "\n".join(shortened(waiting))
        )
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
        with contextlib.suppress(RecursionError):  # it awaits itself, through others: none of them can be cancelled
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
        before, self._clocks = self._clocks, [model._time for model in self._models]
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
    place = passed_by(error) if isinstance(error, MinitrainError) else None  # Python says where others come from
    at = "" if place is None else f", {place}"
    meant = _parameter_meant(models[0], error)
    size = models[0].world_size  # a folded run has fewer models
    error.add_note(f"on rank {rank} of {size}, strategy {name}{at}{meant}")
    raise error


def _parameter_meant(model: Model, error: BaseException) -> str:
    """Return the parameters of an operation that was called by one it does not have, the likeliest first, or ""."""
    if not isinstance(error, TypeError):
        return ""
    found = re.match(r"(?:\w+\.)*(\w+)\(\) got an unexpected keyword argument '(\w+)'", text_of(error))
    called = getattr(model, found[1], None) if found else None
    return f"; {one_of(found[2], inspect.signature(called).parameters)}" if found and callable(called) else ""


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
        for work in model._in_flight:
            if any(other in model._in_flight for other in work.launched_memory.followers):
                continue  # the last one of a chain is to be awaited
            message = (
                f"rank {model._rank} launched {work.op} and never awaited it; `await work` before returning "
                f"({work.describe()}, at {work.clock:.6g} s)"
            )
            raise StrategyError(message, rank=model._rank, op=work.op)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far the ranks of a run are, at the moment of asking; asking does not disturb them.

    Args:
        models: those of the ranks that are simulated.
        ranks_a_model: how many ranks each of them stands for; 1 unless the run is folded.
    """

    models: Sequence[Model]
    ranks_a_model: int = 1

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.models) * self.ranks_a_model

    @property
    def ranks_done(self) -> int:
        """Number of ranks that have returned."""
        return len(self.models[0].dist.detector.finished_ranks) * self.ranks_a_model

    @property
    def num_events(self) -> int:
        """Number of events of all ranks so far."""
        return sum(len(model._log) for model in self.models) * self.ranks_a_model

    def __str__(self) -> str:
        return f"{self.ranks_done} of {self.num_ranks} ranks done, {self.num_events:,} events so far"


Watch = Callable[[RunProgress], None]
