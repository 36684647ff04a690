"""V-shaped schedules: rank r holds stages r and 2p - 1 - r, so that the model goes down the ranks and back.

The rank that starts the forward of a microbatch also ends it. It has the loss at once, and the first backwards
start early. Each rank's order is written as phases: F0 is the next forward of the rank's
first stage, I1 the next input gradient of its second, W the oldest weight gradient still to do, F0+B1 two
actions that overlap.
"""

from minitrain.errors import UsageError
from minitrain.schedules.action import Cell
from minitrain.schedules.building_blocks import Phase, check_chunks, check_sizes, follow
from minitrain.schedules.schedule import Schedule


def zbv(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Run without a bubble in the memory of 1F1B.

    Span bubble (from a rank's first start to its last end): 0 for tf = ti = tw and m >= 2p - 1, when the step
    takes m (tf + tb) + (p - 1) tf / 2. Live activations: at most min(p, m), on every rank p for m >= 2p - 1.

    Args:
        num_ranks: p; rank r holds stages r and 2p - 1 - r.
        num_microbatches: m, any number (below 2p - 1 the order is that of 2p - 1 without the missing ones).
        num_chunks: 2.

    Returns:
        The schedule, equal to torch 2.13's ScheduleZBVZeroBubble.

    Raises:
        UsageError: for sizes outside these rules.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 6 (ZB-V), and Qi et
        al. 2024, "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362 (V-ZB).
    """
    check_sizes("zbv", num_ranks, num_microbatches, num_chunks)
    check_chunks("zbv", num_chunks, 2, "use interleaved_zero_bubble for other numbers")
    num_full = max(num_microbatches, 2 * num_ranks - 1)
    rows = []
    for rank in range(num_ranks):
        cells = follow(_zbv_phases(rank, num_ranks, num_full), _stages(rank, num_ranks))
        rows.append(tuple(cell for cell in cells if cell[0].microbatch < num_microbatches))
    return Schedule(tuple(rows), "zbv")


def _zbv_phases(rank: int, num_ranks: int, num_microbatches: int) -> list[Phase]:
    """Return one rank's phases, for m >= 2p - 1."""
    ranks_after = num_ranks - 1 - rank
    return [
        # Warm-up: forwards go down, come back, and turn into the first backwards of the second stage.
        ("F0", 2 * ranks_after + 1),
        ("F1 F0", rank),
        ("F1 I1 W1", ranks_after + 1),
        # Steady state, until the first stage, then the second one, has no forward left.
        ("F0 I0 W0 F1 I1 W1", num_microbatches - 2 * num_ranks + 1 + rank),
        ("I0 W0 F1 I1 W1", ranks_after),
        # Cool-down: input gradients first, for the ranks that wait; weight gradients fill the end.
        ("I0 I1", rank),
        ("I0 W0", ranks_after + 1),
        ("W1", rank),
        ("W0", rank),
    ]


def dualpipe_v(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Overlap forwards with backwards of the other stage: one computes while the other communicates.

    Bubble, with fused cells run one action after the other and tf = ti = tw: (p - 1) tf / 2. Live
    activations: p + 1/2 on every rank.

    Args:
        num_ranks: p; rank r holds stages r and 2p - 1 - r.
        num_microbatches: m, at least 2p.
        num_chunks: 2.

    Returns:
        The schedule, equal to torch 2.13's ScheduleDualPipeV, fused cells included.

    Raises:
        UsageError: for sizes outside these rules.

    Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1 (DualPipe); cut
        in half as proposed by Sea AI Lab 2025, "DualPipe could be better without the Dual"; phases as in
        github.com/deepseek-ai/DualPipe, dualpipev.py.
    """
    check_sizes("dualpipe_v", num_ranks, num_microbatches, num_chunks)
    check_chunks("dualpipe_v", num_chunks, 2, "use interleaved_zero_bubble for other numbers")
    if num_microbatches < 2 * num_ranks:
        raise UsageError(
            f"num_microbatches ({num_microbatches}) must be at least the number of stages ({2 * num_ranks}) "
            f"for dualpipe_v; use {2 * num_ranks} or more, or zbv",
            num_microbatches=num_microbatches,
            num_ranks=num_ranks,
        )
    rows = (_dualpipe_v_row(rank, num_ranks, num_microbatches) for rank in range(num_ranks))
    return Schedule(tuple(rows), "dualpipe_v")


def _dualpipe_v_row(rank: int, num_ranks: int, num_microbatches: int) -> tuple[Cell, ...]:
    """Return one rank's cells."""
    ranks_after = num_ranks - 1 - rank
    num_steady = num_microbatches - num_ranks - ranks_after
    # On the last rank, the first pair is not fused: all other ranks wait for its backward.
    apart = 1 if ranks_after == 0 else 0
    pairs, middle = divmod(rank + 1, 2)
    phases = [
        ("F0", 2 * ranks_after),
        ("F0 F1", rank + 1),
        ("I1 W F1", ranks_after),
        ("F0 B1 F1+B0", apart),
        ("F0+B1 F1+B0", num_steady - apart),
        ("B1 F1+B0", ranks_after),
        # The last backwards: half of them whole, half of them split to let the ranks before go on.
        ("B1 B0", pairs),
        ("B1 I0", middle),
        ("I1 I0", pairs),
        ("W I0", ranks_after),
        ("W", rank + 1),
    ]
    return tuple(follow(phases, _stages(rank, num_ranks)))


def _stages(rank: int, num_ranks: int) -> tuple[int, int]:
    """Return the two stages of a rank: one on the way down, one on the way back."""
    return rank, 2 * num_ranks - 1 - rank
