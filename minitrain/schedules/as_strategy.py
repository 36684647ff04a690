"""A pipeline schedule, which is data, run as a strategy: `from_schedule`.

Stage s of S holds the s-th of S contiguous parts of the layers: equal ones where layers are alike, and those of
`Model.stages` where they differ. Each rank runs its actions exactly in the order of the schedule, as
`minitrain.schedules.pipeline` says; within a stage, layers, sequences and experts may be divided among ranks
(`minitrain.schedules.division`). Replicas take equal parts of the batch, each cut into the schedule's microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minitrain.errors import StrategyError, UsageError
from minitrain.rank.model import Model
from minitrain.run.strategy_loading import Strategy
from minitrain.schedules.division import Degrees, Division, require_multiple
from minitrain.schedules.expert_passes import Routing
from minitrain.schedules.held_layers import HeldLayers
from minitrain.schedules.layer_passes import LayerPasses
from minitrain.schedules.legality import validate
from minitrain.schedules.pipeline import HIDDEN, PLAIN, PipelineRank
from minitrain.schedules.schedule import Schedule
from minitrain.source_lines import count_as_strategy
from minitrain.tensors.index_sets import span

count_as_strategy(__file__)


def from_schedule(schedule: Schedule) -> Strategy:
    """Return the strategy that runs a schedule.

    Its pipelines have `schedule.num_ranks` places, with tp x cp ranks at each; all others are replicas. The strategy
    has the schedule's name and these options beside the model:

    - `microbatch_size` (samples; a replica's share over the schedule's microbatches if None),
    - `zero` (ZeRO stage 0 to 3 of the ranks that hold the same) and `shard_size` (how many of them share; all if None),
    - `layers_per_stage` (the layers of each stage), and `recompute` (what backward computes again),
    - `tp`, `sequence_parallel`, `cp`, `cp_comm_type` and `ep`: see `minitrain.schedules.division.Degrees`,
    - `overlap_messages` (whether messages are hidden behind compute; True by default),
    - `imbalance` and `capacity_factor`: how tokens are sent to experts, as in `Model.route`,
    - `overlap_experts` (whether actions that are fused run by turns, one while tokens of the other travel).

    Args:
        schedule: the order of every rank; num_layers must be a multiple of its stages where layers are alike.

    Returns:
        A coroutine function of a model, to be simulated or compared.

    Raises:
        StrategyError: the schedule is not legal; when the strategy runs, sizes that do not divide.

    >>> import minitrain as mt
    >>> strategy = from_schedule(mt.schedules.zb_h1(4, 8))
    >>> units = mt.FixedPredictor(forward=1, backward_input=1, backward_weight=1)
    >>> mt.simulate(strategy, world_size=4, num_layers=4, hardware=units).step_time
    27.0
    """
    validate(schedule)

    async def strategy(
        model: Model,
        microbatch_size: int | None = None,
        zero: int = 0,
        layers_per_stage: Sequence[int] | None = None,
        recompute: str | None = None,
        overlap_messages: bool = True,
        tp: int = 1,
        cp: int = 1,
        ep: int = 1,
        sequence_parallel: bool = False,
        shard_size: int | None = None,
        cp_comm_type: str = "p2p",
        imbalance: float | Sequence[float] = 1,
        capacity_factor: float | None = None,
        overlap_experts: bool = True,
    ) -> Model:
        name = schedule.name
        if recompute is not None:
            model.recompute = recompute
        require_multiple("world_size", model.world_size, "the schedule's ranks", schedule.num_ranks, name)
        degrees = Degrees(schedule.num_ranks, tp, cp, ep, sequence_parallel, shard_size, cp_comm_type)
        division = Division(model, degrees, name)
        if layers_per_stage is None and model.layers_are_alike:
            require_multiple("num_layers", model.num_layers, "num_stages", schedule.num_stages, name)
        batches = _batches(model, name, schedule.num_microbatches, division, microbatch_size)
        stages = model.stages(schedule.num_stages, len(batches[0]), layers_per_stage=layers_per_stage)
        held = HeldLayers(model, division, zero, len(batches), name)
        in_pairs = overlap_experts and ep > 1
        passes = LayerPasses(model, division, held, Routing(imbalance, capacity_factor), in_pairs=in_pairs)
        messages = HIDDEN if overlap_messages else PLAIN
        pipeline = PipelineRank(
            model, schedule, division, batches, stages, held, passes, messages=messages, in_pairs=in_pairs
        )
        await pipeline.run()
        return model

    strategy.__name__ = strategy.__qualname__ = schedule.name
    strategy.__doc__ = f"Run the schedule {schedule.name}."
    strategy.framework = "torchtitan"  # type: ignore[attr-defined]  # what a strategy may say: see `framework_of`
    return strategy


def from_schedule_file(path: Path) -> Strategy:
    """Return the strategy that runs the schedule of a CSV file (see `Schedule.from_csv`), which has the file's name.

    Raises:
        StrategyError: there is no such file, it cannot be read, or the schedule is not legal.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StrategyError(f"{path} cannot be read ({error.strerror}); give the path of a schedule's CSV") from error
    try:
        return from_schedule(Schedule.from_csv(text, path.stem))
    except (StrategyError, UsageError) as error:
        raise StrategyError(f"{path} is no schedule that can run: {error}") from error


def _batches(
    model: Model, name: str, num_microbatches: int, division: Division, microbatch_size: int | None
) -> list[Sequence[int]]:
    """Return the samples of each of the schedule's microbatches, for this rank's replica."""
    num_replicas, total = division.replicas.size, model.global_batch_size
    require_multiple("global_batch_size", total, "replicas x microbatches", num_replicas * num_microbatches, name)
    size = total // num_replicas // num_microbatches
    if microbatch_size not in (None, size):
        raise StrategyError(
            f"microbatch_size ({microbatch_size}) must be {size} for {name}: {num_replicas} replicas of "
            f"{num_microbatches} microbatches make up the batch of {total}; leave it None"
        )
    first = division.replicas.index * num_microbatches
    return [span((first + i) * size, (first + i + 1) * size) for i in range(num_microbatches)]
