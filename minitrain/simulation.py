"""Running a strategy: all ranks in one asyncio loop, on a hardware model's logical clocks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from minitrain.contention import with_contention
from minitrain.dist import Dist
from minitrain.errors import OutOfMemoryError, StrategyError, UsageError, require_count
from minitrain.events import TIME
from minitrain.loading import Strategy, load_strategy, require_options
from minitrain.model import Model
from minitrain.predictor import Predictor, RuntimePredictor
from minitrain.run import HeldOutside, OutOfMemory, Run
from minitrain.storage import UNITS_PER_ELEMENT

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def simulate(strategy: str | Strategy, *, loop_factory: LoopFactory | None = None, **parameters: Any) -> Run:
    """Simulate one training step of a strategy.

    Inside a running event loop (a notebook) the ranks get a loop of their own, in a thread.

    Args:
        strategy: a coroutine function of one rank's `Model`, a shipped name, or "path.py:function".
        loop_factory: makes the event loop, `uvloop.new_event_loop` for example; the log does not depend on it.
        parameters: those of `simulate_async`.

    Returns:
        The run.

    Raises:
        UsageError: a parameter is outside its rule.
        MinitrainError: of the kind that says what went wrong in the strategy; its own exceptions pass unchanged.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return _in_thread(strategy, loop_factory, parameters)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(simulate_async(strategy, **parameters))


def _in_thread(strategy: str | Strategy, loop_factory: LoopFactory | None, parameters: Mapping[str, Any]) -> Run:
    """Simulate in a loop of another thread, which ends with this one's patience (Ctrl-C)."""
    outcome: list[Run | BaseException] = []
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def main() -> Run:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await simulate_async(strategy, **parameters)

    def target() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                outcome.append(runner.run(main()))
        except BaseException as error:  # raised again below
            outcome.append(error)

    thread = threading.Thread(target=target, name="minitrain", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        for loop, task in running:
            with contextlib.suppress(RuntimeError):  # it was just over
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


async def simulate_async(
    strategy: str | Strategy,
    *,
    world_size: int = 8,
    num_layers: int = 32,
    global_batch_size: int = 64,
    hardware: Any = "h100_80g_nvl8",
    network: str = "flat",
    placement: Sequence[int] | None = None,
    slowdown: Mapping[int, float] | None = None,
    contention: bool = False,
    p2p_buffer: int | None = 1,
    check: bool = True,
    strict: bool = False,
    strict_memory: bool = False,
    memory_by_kind: bool = False,
    numerics: Any = None,
    model_kind: type[Model] | None = None,
    fold: bool = False,
    **options: Any,
) -> Run:
    """Simulate one training step of a strategy in the running event loop.

    Args:
        strategy: a coroutine function of one rank's `Model`, a shipped name, or "path.py:function".
        world_size: number of ranks.
        num_layers: layers of the trained model.
        global_batch_size: samples of the step, over all ranks.
        hardware: a shipped config's name, a path, a loaded config, or a predictor.
        network: "flat" (one tier for the run) or "hierarchical" (the tier that each group needs).
        placement: node of each rank, for the hierarchical network.
        slowdown: factor by which computing takes longer, by rank.
        contention: slow computing down by the communication beside it (see `minitrain.contention`); `model.time`
            during the run does not know of it.
        p2p_buffer: untagged messages that may lie unreceived before a blocking send waits.
        check: verify the final weights.
        strict: count every tensor alive as memory, wherever it is kept, and accept only tensors that came out of
            operations (see `minitrain.strict`).
        strict_memory: raise when a rank holds more than the device's memory, instead of reporting it.
        memory_by_kind: keep a journal of what enters and leaves each store, for memory curves by kind.
        numerics: "numpy", or a `minitrain.numerics.Problem`, to let tensors carry numbers; the log stays the same.
        model_kind: class of the ranks' models, for who follows a run by an extension of his own; that of `strict` and
            `numerics` if None.
        fold: simulate ranks that do the same but for shard index and samples once (see `minitrain.folding`).
        options: the strategy's own.

    Returns:
        The run.

    Raises:
        UsageError: a parameter is outside its rule.
        HardwareConfigError: the hardware config cannot be found, read or believed.
        StrategyError: the strategy cannot be called so, or leaves something undone.
        LawError: the strategy breaks a law of training.
        OutOfMemoryError: with `strict_memory`, a rank held too much.
    """
    for name, value in (
        ("world_size", world_size),
        ("num_layers", num_layers),
        ("global_batch_size", global_batch_size),
    ):
        require_count(name, value)
    name, function = load_strategy(strategy)
    require_options(name, function, options)
    predictor = make_predictor(hardware, world_size, network, placement)
    if fold:
        from minitrain.folding.driver import Job, require_foldable, simulate_folded  # noqa: PLC0415  (it needs this module)

        telling_apart = {"slowdown": slowdown, "contention": contention, "strict": strict, "numerics": numerics}
        require_foldable(predictor, telling_apart | {"memory_by_kind": memory_by_kind, "model_kind": model_kind})
        sizes: dict[str, Any] = {
            "world_size": world_size,
            "num_layers": num_layers,
            "global_batch_size": global_batch_size,
        }
        limits: dict[str, Any] = {"p2p_buffer": p2p_buffer, "check": check, "strict_memory": strict_memory}
        job = Job(name, function, predictor, _hardware_name(hardware, predictor), options, **sizes, **limits)
        return await simulate_folded(
            job, lambda: simulate_async(strategy, hardware=hardware, **sizes, **limits, **options)
        )
    predictors = _slowed(predictor, world_size, slowdown or {})
    dist = Dist(world_size, p2p_buffer=p2p_buffer)
    make_model = _model_maker(model_kind, numerics, strict=strict)
    models = [
        make_model(
            rank,
            dist,
            num_layers,
            global_batch_size,
            runtime_predictor=predictors.get(rank, predictor),
            memory_by_kind=memory_by_kind,
        )
        for rank in range(world_size)
    ]
    excesses = _watch_memory(models, strict=strict_memory)
    with _rare_collections(), _strictness(models) if strict else contextlib.nullcontext():
        await _run_ranks(name, function, models, options)
        _require_nothing_left(dist, models)
    if check:
        Model.check(models)
    workload = predictor.workload
    return Run(
        strategy=name,
        world_size=world_size,
        num_layers=num_layers,
        global_batch_size=global_batch_size,
        hardware=_hardware_name(hardware, predictor),
        options=options,
        logs=with_contention([model.log for model in models]) if contention else [model.log for model in models],
        peak_memory_per_rank=[model.peak_memory for model in models],
        bytes_per_element=workload.bytes_per_element,
        useful_flop=workload.training_flop(global_batch_size, num_layers),
        peak_flop_per_s=predictor.peak_flop_per_s,
        capacity_bytes=predictor.capacity_bytes,
        oom=min(excesses, key=lambda excess: (excess.time, excess.rank), default=None),
        memory_journals=[model.memory_journal for model in models] if memory_by_kind else (),
        held_outside=_held_outside(models) if strict else None,
        models=models,
    )


def _model_maker(kind: type[Model] | None, numerics: Any, *, strict: bool) -> Callable[..., Model]:
    """Return what makes the model of a rank: extensions of `Model` work beside each other."""
    problem: dict[str, Any] = {}
    if kind is None and numerics is not None:
        from minitrain.numerics import NumericModel, problem_of  # noqa: PLC0415  (numpy only when somebody computes)

        kind, problem = NumericModel, {"problem": problem_of(numerics)}
    if strict:
        from minitrain.strict.model import StrictModel  # noqa: PLC0415  (only where it is asked for)

        if kind is None or not issubclass(kind, StrictModel):
            kind = StrictModel if kind is None else type(f"Strict{kind.__name__}", (StrictModel, kind), {})
    return functools.partial(kind or Model, **problem)


@contextlib.contextmanager
def _strictness(models: Sequence[Any]) -> Iterator[None]:
    """Note which tensors are made by hand during a run, and look at its end whether it was left to itself."""
    from minitrain.strict.audit import audit  # noqa: PLC0415
    from minitrain.strict.handmade import noting_handmade  # noqa: PLC0415

    with noting_handmade():
        yield
    audit(models)


def _held_outside(models: Sequence[Any]) -> HeldOutside:
    """Return what was held outside the stores, on the rank that held the most."""
    model = max(models, key=lambda model: model.ledger.most_outside)
    lines = model.ledger.held_outside()
    time = model.log.rows[model.ledger.at_row + TIME] if lines else 0.0
    return HeldOutside(model.rank, time, sum(lines.values()), lines)


def make_predictor(
    hardware: Any, world_size: int, network: str = "flat", placement: Sequence[int] | None = None
) -> Predictor:
    """Return what prices the operations of a run.

    Args:
        hardware: a shipped config's name, a path, a loaded config, or a predictor, which is returned as it is.
        world_size: number of ranks.
        network: "flat" or "hierarchical".
        placement: node of each rank.
    """
    if hasattr(hardware, "compute") and hasattr(hardware, "slowed"):
        return hardware  # type: ignore[no-any-return]  # a Predictor
    return RuntimePredictor(world_size, hardware, network=network, placement=placement)


def _hardware_name(hardware: Any, predictor: Predictor) -> str:
    """Return how a run calls its hardware."""
    system = getattr(predictor, "system", None)
    return str(getattr(system, "name", None) or hardware)


def _slowed(predictor: Predictor, world_size: int, slowdown: Mapping[int, float]) -> dict[int, Predictor]:
    """Return the predictors of the stragglers."""
    for rank, factor in slowdown.items():
        if rank not in range(world_size):
            raise UsageError(f"slowdown names rank {rank!r}, but ranks are 0..{world_size - 1}")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise UsageError(f"the slowdown of rank {rank} must be a positive number, got {factor!r}")
    return {rank: predictor.slowed(factor) for rank, factor in slowdown.items()}


def _watch_memory(models: Sequence[Model], *, strict: bool) -> list[OutOfMemory]:
    """Let each rank report the first time that it holds more than the device can, into the returned list."""
    excesses: list[OutOfMemory] = []
    predictor = models[0].runtime_predictor
    capacity_bytes, element_bytes = predictor.capacity_bytes, predictor.workload.bytes_per_element
    if capacity_bytes is None:
        return excesses

    def report(model: Model) -> None:
        held = {name: elements * element_bytes for name, elements in model.memory_by_store().items()}
        excess = OutOfMemory(model.rank, model.time, capacity_bytes, held)
        excesses.append(excess)
        if strict:
            raise OutOfMemoryError(
                f"{excess}; shard more, use smaller microbatches, or free tensors sooner", oom=excess
            )

    for model in models:
        model.counted.limit_units = capacity_bytes / element_bytes * UNITS_PER_ELEMENT
        model.counted.on_overflow = lambda model=model: report(model)
    return excesses


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the cycle collector run rarely: a run makes many objects and few cycles."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _run_ranks(name: str, function: Strategy, models: Sequence[Model], options: Mapping[str, Any]) -> None:
    """Run the strategy on every rank; if one fails, end the others and raise its error."""
    crew = _Crew(name, function, len(models), options)
    models[0].dist.watch.alarm = crew.end
    tasks = [asyncio.ensure_future(crew.run(model)) for model in models]
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(functools.partial(crew.notice, handler))
    try:
        await crew.ended
    finally:
        loop.set_exception_handler(handler)
        models[0].dist.watch.alarm = None
        await _end_all({*tasks, *crew.left_over, *models[0].dist.watch.tasks(loop)})
    lost = crew.lost + models[0].dist.watch.lost_errors(loop)
    if models[0].dist.error is not None:  # what the transport found comes before what followed from it
        raise models[0].dist.error.with_traceback(None)
    if crew.failures:
        _raise_failure(name, models, *min(crew.failures, key=lambda failure: failure[0]))
    for error in lost:
        error.add_note(f"in a sub-task of the strategy {name} that nobody awaited")
        raise error


async def _end_all(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, wait for it, and look at every outcome: asyncio logs what nobody looked at."""
    pending = [task for task in tasks - {asyncio.current_task()} if not task.done()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()


class _Crew:
    """The ranks of one run on their way; `ended` is done when all have returned or one has failed."""

    def __init__(self, name: str, function: Strategy, world_size: int, options: Mapping[str, Any]) -> None:
        self.name = name
        self.function = function
        self.options = options
        self.missing = world_size
        self.failures: list[tuple[int, BaseException]] = []
        self.left_over: list[asyncio.Task[Any]] = []
        self.lost: list[BaseException] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, model: Model) -> None:
        """Run the strategy on one rank, which must return its model."""
        model.dist.watch.mark()
        try:
            result = await self.function(model, **self.options)
            self._require_model(model, result)
        except BaseException as error:
            model.dist.watch.over = True
            self._fail(model.rank, error)
            self.end(model.dist.watch.tasks(asyncio.get_running_loop()))
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            model.dist.watch.returned.add(model.rank)
            self.missing -= 1
            if not self.missing:
                model.dist.watch.over = True
                self.end([])

    def end(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """End the run: all have returned, one has failed, or nobody can go on."""
        self.left_over += tasks
        if not self.ended.done():
            self.ended.set_result(None)

    def notice(self, handler: Any, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keep the error of a sub-task that is gone and that nobody looked at, which asyncio would only log."""
        if "never retrieved" in context.get("message", "") and isinstance(context.get("exception"), Exception):
            self.lost.append(context["exception"])
        elif handler is not None:
            handler(loop, context)
        else:
            loop.default_exception_handler(context)

    def _fail(self, rank: int, error: BaseException) -> None:
        """Note why a rank failed, unless it was cancelled because another had."""
        if not (self.ended.done() and isinstance(error, asyncio.CancelledError)):
            self.failures.append((rank, error))

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
    error.add_note(f"on rank {rank} of {len(models)}, strategy {name}")
    raise error


def _require_nothing_left(dist: Dist, models: Sequence[Model]) -> None:
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
