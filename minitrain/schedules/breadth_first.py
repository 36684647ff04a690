"""Breadth-first schedules: all forwards of a stage, then all of the next one, then back.

`gpipe` is the plain case of one stage a rank; `looped_bfs` gives each rank several stages in a loop.
"""

from minitrain.schedules.action import Action
from minitrain.schedules.building_blocks import check_chunks, check_sizes
from minitrain.schedules.schedule import Schedule


def gpipe(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Fill the pipeline with all forwards, then drain it with all backwards.

    Bubble: (p - 1)(tf + tb), a fraction (p - 1) / (m + p - 1) of the step. Live activations: m on every rank.

    Args:
        num_ranks: p; stage s is on rank s.
        num_microbatches: m, any number.
        num_chunks: 1; `looped_bfs` takes more.

    Returns:
        The schedule, equal to torch 2.13's ScheduleGPipe.

    Raises:
        UsageError: for sizes outside these rules.

    Source: Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline
        Parallelism", Figure 2c (backwards here in the order of the forwards, as torch runs them).
    """
    check_sizes("gpipe", num_ranks, num_microbatches, num_chunks)
    check_chunks("gpipe", num_chunks, 1, "use looped_bfs for several stages a rank")
    microbatches = range(num_microbatches)
    orders = (
        [Action(kind, stage, microbatch) for kind in ("F", "B") for microbatch in microbatches]
        for stage in range(num_ranks)
    )
    return Schedule.from_orders(orders, "gpipe")


def looped_bfs(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Run every microbatch through a stage before the rank's next stage starts; go back in mirrored order.

    Bubble: (p - 1)(tf + tb) / v for m >= p. Live activations: m on every rank.

    Args:
        num_ranks: p; stage s is on rank s mod p.
        num_microbatches: m, any number.
        num_chunks: v, stages a rank, any number.

    Returns:
        The schedule, equal to torch 2.13's ScheduleLoopedBFS.

    Raises:
        UsageError: for sizes outside these rules.

    Source: Lamy-Poirier 2023, "Breadth-First Pipeline Parallelism", arXiv 2211.05953.
    """
    check_sizes("looped_bfs", num_ranks, num_microbatches, num_chunks)
    orders = (_down_and_up(rank, num_ranks, num_microbatches, num_chunks) for rank in range(num_ranks))
    return Schedule.from_orders(orders, "looped_bfs")


def _down_and_up(rank: int, num_ranks: int, num_microbatches: int, num_chunks: int) -> list[Action]:
    """Return one rank's order: stage by stage down, stage by stage up."""
    stages = range(rank, num_ranks * num_chunks, num_ranks)
    microbatches = range(num_microbatches)
    forwards = [Action("F", stage, microbatch) for stage in stages for microbatch in microbatches]
    return forwards + [Action("B", forward.stage, forward.microbatch) for forward in reversed(forwards)]
