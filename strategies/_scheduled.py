"""What the strategies that are schedules share: they make the schedule for their sizes, and run it."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from minitrain.errors import StrategyError, UsageError
from minitrain.lib import Model
from minitrain.run.strategy_loading import ShippedStrategy
from minitrain.schedules import Schedule
from minitrain.search.schedules.pipeline import from_schedule

from ._batch import require_multiple, require_range

Generator = Callable[[int, int, int], Schedule]


async def run_schedule(
    model: Model,
    generator: Generator,
    num_chunks: int,
    microbatch_size: int | None,
    pp: int | None,
    zero: int,
    layers_per_stage: Sequence[int] | None,
    recompute: str,
    overlap_messages: bool,
    *,
    least_microbatches: int = 1,
    directions: int = 1,
) -> Model:
    """Run the schedule of a generator on a mesh of pipelines and replicas.

    Args:
        model: the rank.
        generator: makes the schedule from ranks, microbatches and chunks.
        num_chunks: stages a rank.
        microbatch_size: samples a microbatch; if None, as many as make `least_microbatches` x pp microbatches.
        pp: ranks of a pipeline; world_size if None.
        zero: ZeRO stage of the replicas.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again.
        overlap_messages: whether messages between stages are hidden behind compute.
        least_microbatches: microbatches for each rank of a pipeline by default.
        directions: in which microbatches go through a pipeline; pp is a multiple of it.

    Returns:
        The model.
    """
    model.recompute = recompute
    name = generator.__name__
    require_range("pp", pp, model.world_size, name)
    pp = pp or model.world_size
    require_multiple("pp", pp, "directions", directions, name)
    require_multiple("world_size", model.world_size, "pp", pp, name)
    num_replicas = model.world_size // pp
    size = microbatch_size
    if size is None:
        count = least_microbatches * pp * num_replicas
        require_multiple("global_batch_size", model.global_batch_size, "replicas x microbatches", count, name)
        size = model.global_batch_size // count
    require_range("microbatch_size", size, model.global_batch_size, name)
    require_multiple(
        "global_batch_size", model.global_batch_size, "replicas x microbatch_size", num_replicas * size, name
    )
    num_microbatches = model.global_batch_size // (num_replicas * size)
    strategy = _strategy(generator, pp, num_microbatches, num_chunks)
    return await strategy(model, size, zero, layers_per_stage, overlap_messages=overlap_messages)


@lru_cache(maxsize=8)
def _strategy(generator: Generator, num_ranks: int, num_microbatches: int, num_chunks: int) -> ShippedStrategy:
    """Return the strategy that runs a schedule, the same for all ranks of a run."""
    try:
        return from_schedule(generator(num_ranks, num_microbatches, num_chunks))
    except UsageError as error:
        raise StrategyError(str(error)) from error
