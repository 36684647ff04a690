"""Finding the classes of a strategy's ranks, and simulating one rank of each.

One attempt after the other is made, each with what the one before found out: the axes of the strategy's mesh (or of its
divisions of the rank), and axes whose positions have to be kept because ranks part ways along them. It costs little,
since ranks part ways early. An axis that was kept without a message ever going along it is no pipeline: then the
strategy depends on the rank in a way that folding refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from minitrain.errors import MinitrainError, StrategyError, UsageError
from minitrain.folding.index_ranges import Spans
from minitrain.folding.job import Job
from minitrain.folding.known_splits import way_of
from minitrain.folding.model import FoldedModel
from minitrain.folding.rank_values import Fold
from minitrain.folding.rehearsal import rehearse
from minitrain.folding.run import FoldedRun
from minitrain.hardware import FlatTopology
from minitrain.hardware.fixed_durations import FixedPredictor
from minitrain.hardware.predictor import RuntimePredictor
from minitrain.hardware.price import Predictor
from minitrain.run.final_weights import check_final_weights
from minitrain.run.garbage_collection import rare_collections
from minitrain.run.out_of_memory import watching_memory
from minitrain.run.rank_tasks import require_nothing_left, run_ranks
from minitrain.run.result import Run
from minitrain.tensors import Weight

_MANY_CLASSES = 64


_TELL_APART = ("slowdown", "contention", "strict", "numerics", "memory_by_kind", "model_kind")


def require_alike(parameters: Mapping[str, Any]) -> None:
    """Require that nothing is asked for that tells ranks apart.

    Args:
        parameters: those of `simulate_async` that are given.

    Raises:
        UsageError: something is.
    """
    given = [name for name in _TELL_APART if parameters.get(name)]
    if given:
        raise UsageError(f"fold=True does not go with {', '.join(given)}, which tells ranks apart; leave one out")


def require_foldable(predictor: Predictor, others: Mapping[str, Any]) -> None:
    """Require that ranks are priced alike, and that nothing is asked for that tells them apart.

    Args:
        predictor: what prices operations.
        others: the other parameters of `simulate_async` that are given.

    Raises:
        UsageError: they cannot be folded.
    """
    require_alike(others)
    is_flat = type(predictor) is RuntimePredictor and isinstance(predictor.topology, FlatTopology)
    if not is_flat and type(predictor) is not FixedPredictor:
        raise UsageError(
            "fold=True needs a network that is the same for all ranks: network='flat' or a FixedPredictor, got "
            f"{predictor!r:.80}"
        )


async def simulate_folded(job: Job, simulate_fully: Callable[[], Awaitable[Run]]) -> Run:
    """Simulate one rank of each class.

    Args:
        job: what is to be simulated.
        simulate_fully: simulates every rank, where nothing can be folded.

    Raises:
        StrategyError: the strategy depends on the rank in a way that does not fold.
    """
    try:
        return await _search(job, simulate_fully, free=True)
    except StrategyError as refusal:
        if not refusal.is_split:
            raise
        try:  # as one axis, it may be a pipeline
            return await _search(job, simulate_fully, free=False)
        except StrategyError:
            raise refusal from None


async def _search(job: Job, simulate_fully: Callable[[], Awaitable[Run]], *, free: bool) -> Run:
    """Make one attempt after the other.

    Args:
        job: what is to be simulated.
        simulate_fully: simulates every rank, where nothing can be folded.
        free: whether divisions of the rank lay out the ranks.
    """
    axes: Mapping[str, int] = {"world": job.world_size}
    reasons: dict[str, str] = {}  # why each axis is kept
    is_world = True  # as long as the strategy has not asked for a mesh
    while True:
        fold, run = await _attempt(job, Fold(axes, frozenset(reasons), free=free and is_world))
        if fold.is_laid:
            axes, is_world = fold.axes, False
        if fold.diverged is None:
            assert run is not None
            _require_travelled(job, fold, reasons)
            return run
        parted, place = fold.diverged
        if fold.layout is not None and is_world:
            axes, reasons, is_world = fold.layout, {}, fold.is_split
            continue
        new = (parted if fold.layout is None else frozenset(fold.sizes)) & fold.sizes.keys()
        if not new:
            _require_travelled(
                job, fold, {axis: reasons.get(axis, place) for axis in (parted & fold.kept) or fold.kept}
            )
            if fold.sizes:
                _refuse(job, fold, place)
            return await simulate_fully()
        reasons |= dict.fromkeys(new, place)


def _require_travelled(job: Job, fold: Fold, reasons: Mapping[str, str]) -> None:
    """Require that messages go along every axis that is kept."""
    for axis, place in reasons.items():
        if axis not in fold.travelled and fold.axes[axis] > 1:
            _refuse(job, fold, place)


def _refuse(job: Job, fold: Fold, place: str) -> NoReturn:
    """Raise why a strategy cannot be folded."""
    raise StrategyError(
        f"{job.name} cannot be folded: what it does depends on the rank in a way that folding does not follow, by "
        f"{place}; let ranks differ in shard index and samples alone (see `minitrain.span`), or "
        "simulate without fold=True",
        place=place,
        is_split=fold.free and len(fold.axes) > 1,
    )


async def _attempt(job: Job, fold: Fold) -> tuple[Fold, Run | None]:
    """Simulate with one way of folding, and return what was found out; no run if it turned out that ranks part ways.

    What is likely to be in vain is rehearsed before. (Where there are several classes, the others do something too
    before the first one's end is noticed, which a rehearsal leaves out; if there are many, that is what it is for.)
    """
    representatives = fold.representatives()
    way = way_of(job.name, job.options, fold.axes, fold.kept)
    is_likely = len(representatives) == 1 and job.parted.is_likely(way)
    if is_likely or len(representatives) > _MANY_CLASSES:
        rehearsed = await rehearse(job, fold)
        if rehearsed is not None:
            return rehearsed, None
    run = await _performed(job, fold, representatives)
    job.parted.note(way, parted=fold.diverged is not None)
    return fold, run


async def _performed(job: Job, fold: Fold, representatives: Sequence[int]) -> Run | None:
    """Simulate a rank of each class; None if it turned out that ranks part ways."""
    dist = job.transport()
    models = [job.model(fold, rank, dist) for rank in representatives]
    try:
        return await _simulated(job, fold, models)
    except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):  # of who asked for the run
        raise
    except BaseException as error:
        if fold.diverged is not None:
            error.with_traceback(None)  # it holds the run in a circle, and each task that lives costs all others
            return None
        if fold.sizes and isinstance(error, TypeError | AttributeError) and not isinstance(error, MinitrainError):
            error.add_note(
                "with fold=True, ranks, samples and shards are no ints and frozensets; if that is why, leave it"
            )
        raise
    finally:
        fold.over = True  # what an error carries may be shown


async def _simulated(job: Job, fold: Fold, models: Sequence[FoldedModel]) -> Run:
    """Simulate the classes and return their run."""
    with rare_collections(), watching_memory(models, strict=job.strict_memory) as excesses:
        await run_ranks(job.name, job.function, models, job.options)
        require_nothing_left(models[0].dist, models)
    if job.check:
        check_final_weights([_united(model, fold) for model in models])
    fold.over = True
    for model in models:
        model.finish()
    workload = job.predictor.workload
    return FoldedRun(
        strategy=job.name,
        world_size=job.world_size,
        num_layers=job.num_layers,
        global_batch_size=job.global_batch_size,
        hardware=job.hardware,
        options=job.options,
        logs=[model.log for model in models],
        peak_memory_per_rank=fold.spread([model.peak_memory for model in models]),
        bytes_per_element=workload.bytes_per_element,
        useful_flop=workload.training_flop(job.global_batch_size, job.num_layers),
        peak_flop_per_s=job.predictor.peak_flop_per_s,
        capacity_bytes=job.predictor.capacity_bytes,
        oom=min(excesses, key=lambda excess: (excess.time, excess.rank), default=None),
        models=models,
        fold=fold,
        representatives=fold.representatives(),
    )


def _united(model: FoldedModel, fold: Fold) -> Any:
    """Return what the final check asks of a model, with the shards of all ranks of its class."""
    final = {layer: _whole(weight, fold) for layer, weight in model.final_weights.items()}
    return SimpleNamespace(rank=model.rank, num_layers=model.num_layers, final_weights=final)


def _whole(weight: Weight, fold: Fold) -> Weight:
    """Return a final weight with the shards that a class holds together."""
    shards: Any = weight.shards.over(fold.sizes) if isinstance(weight.shards, Spans) else weight.shards
    return Weight(weight.layer, weight.layers, weight.step, shards, weight.num_shards)
