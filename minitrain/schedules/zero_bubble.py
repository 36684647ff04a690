"""Zero-bubble schedules: the backward is split, so that weight gradients fill idle time.

The rank before waits for the gradient of the input (I). The gradient of the weights (W) can run later.
Each schedule here is 1F1B with I in the place of the backward, and each W runs a fixed number of backwards
after its I: later on later ranks, so that early I's come sooner and the last W's fill the end of the step.
"""

from minitrain.schedules.action import Action
from minitrain.schedules.building_blocks import check_chunks, check_sizes, passes, rounds_of
from minitrain.schedules.schedule import Schedule


def zb_h1(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Take the memory of 1F1B and a third of its bubble.

    Bubble: (p - 1)(tf + ti - tw) for tw <= min(tf, ti) and m >= p. Live activations: min(p, m) on every rank.

    Args:
        num_ranks: p; stage s is on rank s.
        num_microbatches: m, any number.
        num_chunks: 1; `interleaved_zero_bubble` takes more.

    Returns:
        The schedule.

    Raises:
        UsageError: for sizes outside these rules.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.1 and Figure 3,
        top.
    """
    check_sizes("zb_h1", num_ranks, num_microbatches, num_chunks)
    check_chunks("zb_h1", num_chunks, 1, "use interleaved_zero_bubble for several stages a rank")
    orders = (_one_stage(rank, num_microbatches, warmup=num_ranks - 1 - rank, delay=rank) for rank in range(num_ranks))
    return Schedule.from_orders(orders, "zb_h1")


def zb_h2(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Fill the warm-up with more forwards, so that no bubble is left, for twice the memory of 1F1B.

    Span bubble (from a rank's first start to its last end): 0 for tf = ti = tw and m >= 2p - 1; ranks start
    and end one after the other, so that the step still takes m (tf + tb) + (p - 1) tf. Live activations:
    min(2p - 1, m) on every rank.

    Args:
        num_ranks: p; stage s is on rank s.
        num_microbatches: m, any number.
        num_chunks: 1; `interleaved_zero_bubble` takes more.

    Returns:
        The schedule.

    Raises:
        UsageError: for sizes outside these rules.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.2 and Figure 3,
        bottom.
    """
    check_sizes("zb_h2", num_ranks, num_microbatches, num_chunks)
    check_chunks("zb_h2", num_chunks, 1, "use interleaved_zero_bubble for several stages a rank")
    orders = (
        _one_stage(rank, num_microbatches, warmup=2 * (num_ranks - 1 - rank), delay=2 * rank)
        for rank in range(num_ranks)
    )
    return Schedule.from_orders(orders, "zb_h2")


def interleaved_zero_bubble(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Run ZB-H1 over a loop of stages, a round of p microbatches at a time through a rank's stages.

    Bubble, for m a multiple of p and tf = ti = tw: (p - 1) tf / v. Live activations: p on every rank.

    Args:
        num_ranks: p; stage s is on rank s mod p.
        num_microbatches: m, a multiple of p, or any number that cuts into max(1, m // p) equal rounds.
        num_chunks: v, stages a rank, any number (1 is `zb_h1`).

    Returns:
        The schedule, equal to torch 2.13's ScheduleInterleavedZeroBubble.

    Raises:
        UsageError: for sizes outside these rules.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, and the interleaving of
        Narayanan et al. 2021 (SC'21), Figure 4.
    """
    check_sizes("interleaved_zero_bubble", num_ranks, num_microbatches, num_chunks)
    rounds = rounds_of("interleaved_zero_bubble", num_ranks, num_microbatches)
    orders = []
    for rank in range(num_ranks):
        down = range(rank, num_ranks * num_chunks, num_ranks)
        forwards, backwards = passes("F", down, rounds), passes("I", down[::-1], rounds)
        warmup = (num_chunks - 1) * len(rounds[0]) + num_ranks - 1 - rank
        orders.append(_delay_weights(forwards, backwards, warmup, delay=rank))
    return Schedule.from_orders(orders, "interleaved_zero_bubble")


def _one_stage(stage: int, num_microbatches: int, warmup: int, delay: int) -> list[Action]:
    """Return the order of a rank with one stage."""
    microbatches = [range(num_microbatches)]
    alone = range(stage, stage + 1)
    return _delay_weights(passes("F", alone, microbatches), passes("I", alone, microbatches), warmup, delay)


def _delay_weights(forwards: list[Action], backwards: list[Action], warmup: int, delay: int) -> list[Action]:
    """Return 1F1B of forwards and input gradients, each weight gradient `delay` backwards after its own."""
    weights = [Action("W", backward.stage, backward.microbatch) for backward in backwards]
    order = forwards[:warmup]
    for step, backward in enumerate(backwards):
        order += forwards[warmup + step : warmup + step + 1]
        order.append(backward)
        if step >= delay:
            order.append(weights[step - delay])
    return order + weights[max(0, len(weights) - delay) :]
