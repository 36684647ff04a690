"""Depth-first schedules: one forward, one backward, so that few microbatches are alive at a time.

`one_f_one_b` is the plain case of one stage a rank; `interleaved_1f1b` gives each rank several stages in a
loop, which cuts the bubble by their number.
"""

from minitrain.schedules.action import Action
from minitrain.schedules.building_blocks import check_chunks, check_sizes, passes, rounds_of
from minitrain.schedules.schedule import Schedule


def one_f_one_b(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Run one backward after each forward as soon as the pipeline is full.

    Bubble: (p - 1)(tf + tb), as GPipe's. Live activations on rank r: min(p - r, m).

    Args:
        num_ranks: p; stage s is on rank s.
        num_microbatches: m, any number (torch wants at least p).
        num_chunks: 1; `interleaved_1f1b` takes more.

    Returns:
        The schedule, in the order that torch 2.13's Schedule1F1B runs.

    Raises:
        UsageError: for sizes outside these rules.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
        Megatron-LM" (SC'21), Figure 4, top: PipeDream-Flush.
    """
    check_sizes("one_f_one_b", num_ranks, num_microbatches, num_chunks)
    check_chunks("one_f_one_b", num_chunks, 1, "use interleaved_1f1b for several stages a rank")
    microbatches = range(num_microbatches)
    orders = (
        _one_forward_one_backward(
            [Action("F", rank, microbatch) for microbatch in microbatches],
            [Action("B", rank, microbatch) for microbatch in microbatches],
            warmup=num_ranks - 1 - rank,
        )
        for rank in range(num_ranks)
    )
    return Schedule.from_orders(orders, "one_f_one_b")


def interleaved_1f1b(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Run 1F1B over a loop of stages, a round of p microbatches at a time through a rank's stages.

    Bubble: (p - 1)(tf + tb) / v for m a multiple of p. Live activations on rank r:
    min(m v, (v - 1) p + 2 (p - 1 - r) + 1) / v.

    Args:
        num_ranks: p; stage s is on rank s mod p.
        num_microbatches: m, a multiple of p, or any number that cuts into max(1, m // p) equal rounds.
        num_chunks: v, stages a rank, any number (1 has a longer warm-up than `one_f_one_b`, without a benefit).

    Returns:
        The schedule, equal to torch 2.13's ScheduleInterleaved1F1B.

    Raises:
        UsageError: for sizes outside these rules.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
        Megatron-LM" (SC'21), Figure 4, bottom.
    """
    check_sizes("interleaved_1f1b", num_ranks, num_microbatches, num_chunks)
    rounds = rounds_of("interleaved_1f1b", num_ranks, num_microbatches)
    orders = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * num_chunks, num_ranks)
        # The first microbatch needs all earlier chunks of its round, then two steps for every rank still to
        # cross.
        warmup = (num_chunks - 1) * len(rounds[0]) + 2 * (num_ranks - 1 - rank)
        forwards, backwards = passes("F", stages, rounds), passes("B", stages[::-1], rounds)
        orders.append(_one_forward_one_backward(forwards, backwards, warmup))
    return Schedule.from_orders(orders, "interleaved_1f1b")


def _one_forward_one_backward(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """Return forwards alone, then forward and backward in turn, then the backwards that are left."""
    order = forwards[:warmup]
    num_steady = len(forwards) - len(order)
    for forward, backward in zip(forwards[warmup:], backwards[:num_steady], strict=True):
        order += [forward, backward]
    return order + backwards[num_steady:]
