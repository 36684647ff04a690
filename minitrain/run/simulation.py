"""Running a strategy: all ranks in one asyncio loop, on a hardware model's logical clocks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError, require_count
from minitrain.events import TIME
from minitrain.hardware.predictor import RuntimePredictor
from minitrain.hardware.price import Predictor
from minitrain.hardware.rank_predictors import RankPredictors, predictor_of
from minitrain.rank.model import Model
from minitrain.run.contention import with_contention
from minitrain.run.garbage_collection import rare_collections
from minitrain.run.log_interning import sharing_sizes
from minitrain.run.out_of_memory import watching_memory
from minitrain.run.rank_tasks import require_nothing_left, run_ranks
from minitrain.run.result import HeldOutside, Run
from minitrain.run.strategy_loading import Strategy, load_strategy, require_options
from minitrain.transport.dist import Dist

if TYPE_CHECKING:
    from minitrain.folding.known_splits import Parted

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
    fold: bool | Parted = False,
    log: str = "full",
    **options: Any,
) -> Run:
    """Simulate one training step of a strategy in the running event loop.

    Args:
        strategy: a coroutine function of one rank's `Model`, a shipped name, or "path.py:function".
        world_size: number of ranks.
        num_layers: layers of the trained model.
        global_batch_size: samples of the step, over all ranks.
        hardware: a shipped config's name, a path, a loaded config, or a predictor (`RankPredictors` for one a rank).
        network: "flat" (one tier for the run) or "hierarchical" (the tier that each group needs).
        placement: node of each rank, for the hierarchical network.
        slowdown: factor by which computing takes longer, by rank.
        contention: slow computing down by the communication beside it (see `minitrain.run.contention`); `model.time`
            during the run does not know of it.
        p2p_buffer: untagged messages that may lie unreceived before a blocking send waits.
        check: verify the final weights.
        strict: count every tensor alive as memory, wherever it is kept, and accept only tensors that came out of
            operations (see `minitrain.accounting.strict`).
        strict_memory: raise when a rank holds more than the device's memory, instead of reporting it.
        memory_by_kind: keep a journal of what enters and leaves each store, for memory curves by kind.
        numerics: "numpy", or a `minitrain.numerics.Problem`, to let tensors carry numbers; the log stays the same.
        model_kind: class of the ranks' models, for who follows a run by an extension of his own; that of `strict` and
            `numerics` if None.
        fold: simulate ranks that do the same but for shard index and samples once (see `minitrain.folding`); in place
            of True, what runs before this one remember for it.
        log: "full", or "summary" to keep what events come to, and not the events (see `minitrain.accounting.summary`).
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
    predictor = _predictors(hardware, world_size, network, placement)
    beside = {"fold": fold, "contention": contention, "strict": strict, "numerics": numerics}
    _require_log(log, beside | {"memory_by_kind": memory_by_kind, "model_kind": model_kind})
    if fold:
        from minitrain.folding.driver import require_foldable, simulate_folded  # noqa: PLC0415  (only where it is asked for)
        from minitrain.folding.job import Job  # noqa: PLC0415
        from minitrain.folding.known_splits import Parted  # noqa: PLC0415

        if isinstance(predictor, RankPredictors):
            raise UsageError("fold=True does not go with a predictor for each rank, which tells ranks apart")
        telling_apart = {"slowdown": slowdown, "contention": contention, "strict": strict, "numerics": numerics}
        require_foldable(predictor, telling_apart | {"memory_by_kind": memory_by_kind, "model_kind": model_kind})
        sizes: dict[str, Any] = {
            "world_size": world_size,
            "num_layers": num_layers,
            "global_batch_size": global_batch_size,
        }
        limits: dict[str, Any] = {"p2p_buffer": p2p_buffer, "check": check, "strict_memory": strict_memory}
        parted = fold if isinstance(fold, Parted) else Parted()
        job = Job(
            name, function, predictor, _hardware_name(hardware, predictor), options, **sizes, **limits, parted=parted
        )
        return await simulate_folded(
            job, lambda: simulate_async(strategy, hardware=hardware, **sizes, **limits, **options)
        )
    predictors = _slowed(predictor, world_size, slowdown or {})
    dist = Dist(world_size, p2p_buffer=p2p_buffer)
    make_model, run_kind = _kinds(log, world_size, model_kind, numerics, strict=strict)
    with rare_collections():  # from the set-up on: a rank is a few dozen objects too
        models = [
            make_model(
                rank,
                dist,
                num_layers,
                global_batch_size,
                runtime_predictor=predictors.get(rank) or predictor_of(predictor, rank),
                memory_by_kind=memory_by_kind,
            )
            for rank in range(world_size)
        ]
        with (
            sharing_sizes(models) if log == "full" else contextlib.nullcontext(),
            watching_memory(models, strict=strict_memory) as excesses,
            _strictness(models) if strict else contextlib.nullcontext(),
        ):
            await run_ranks(name, function, models, options)
            require_nothing_left(dist, models)
        if check:
            Model.check(models)
        for model in models if log == "summary" else ():
            model.finish()
    workload = predictor.workload
    return run_kind(
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


def _require_log(log: str, others: Mapping[str, Any]) -> None:
    """Require that totals are enough for what is asked for beside them.

    Args:
        log: what is to be kept.
        others: parameters of `simulate_async` that need every event or a model of their own, if they are given.

    Raises:
        UsageError: they do not go together.
    """
    if log not in ("full", "summary"):
        raise UsageError(f'log must be "full" or "summary", got {log!r}', log=log)
    given = [name for name, value in others.items() if value]
    if log == "summary" and given:
        raise UsageError(f'log="summary" does not go with {", ".join(given)}; leave one out', log=log)


def _kinds(
    log: str, world_size: int, kind: type[Model] | None, numerics: Any, *, strict: bool
) -> tuple[Callable[..., Any], type[Run]]:
    """Return what makes the model of a rank, and the class of the run."""
    if log == "full":
        return _model_maker(kind, numerics, strict=strict), Run
    from minitrain.accounting.summary.model import summary_models  # noqa: PLC0415  (only where it is asked for)
    from minitrain.accounting.summary.run import SummaryRun  # noqa: PLC0415

    return summary_models(world_size), SummaryRun


def _model_maker(kind: type[Model] | None, numerics: Any, *, strict: bool) -> Callable[..., Model]:
    """Return what makes the model of a rank: extensions of `Model` work beside each other."""
    problem: dict[str, Any] = {}
    if kind is None and numerics is not None:
        from minitrain.numerics import NumericModel, problem_of  # noqa: PLC0415  (numpy only when somebody computes)

        kind, problem = NumericModel, {"problem": problem_of(numerics)}
    if strict:
        from minitrain.accounting.strict.model import StrictModel  # noqa: PLC0415  (only where it is asked for)

        if kind is None or not issubclass(kind, StrictModel):
            kind = StrictModel if kind is None else type(f"Strict{kind.__name__}", (StrictModel, kind), {})
    return functools.partial(kind or Model, **problem)


@contextlib.contextmanager
def _strictness(models: Sequence[Any]) -> Iterator[None]:
    """Note which tensors are made by hand during a run, and look at its end whether it was left to itself."""
    from minitrain.accounting.strict.audit import audit  # noqa: PLC0415
    from minitrain.accounting.strict.handmade import noting_handmade  # noqa: PLC0415

    with noting_handmade():
        yield
    audit(models)


def _held_outside(models: Sequence[Any]) -> HeldOutside:
    """Return what was held outside the stores, on the rank that held the most."""
    model = max(models, key=lambda model: model.ledger.most_outside)
    lines = model.ledger.held_outside()
    time = model.log.rows[model.ledger.at_row + TIME] if lines else 0.0
    return HeldOutside(model.rank, time, sum(lines.values()), lines)


def _predictors(
    hardware: Any, world_size: int, network: str, placement: Sequence[int] | None
) -> Predictor | RankPredictors:
    """Return what prices the operations of a run: one predictor, or one a rank."""
    if not isinstance(hardware, RankPredictors):
        return make_predictor(hardware, world_size, network, placement)
    if len(hardware.predictors) != world_size:
        raise UsageError(f"a run of {world_size} ranks needs one predictor a rank, got {len(hardware.predictors)}")
    return hardware


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


def _hardware_name(hardware: Any, predictor: Predictor | RankPredictors) -> str:
    """Return how a run calls its hardware."""
    system = getattr(predictor, "system", None)
    return str(getattr(system, "name", None) or hardware)


def _slowed(
    predictor: Predictor | RankPredictors, world_size: int, slowdown: Mapping[int, float]
) -> dict[int, Predictor]:
    """Return the predictors of the stragglers."""
    for rank, factor in slowdown.items():
        if rank not in range(world_size):
            raise UsageError(f"slowdown names rank {rank!r}, but ranks are 0..{world_size - 1}")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise UsageError(f"the slowdown of rank {rank} must be a positive number, got {factor!r}")
    return {rank: predictor_of(predictor, rank).slowed(factor) for rank, factor in slowdown.items()}
