"""Depth-first schedules: one forward, one backward, so that few microbatches are alive at a time.

`one_f_one_b` is the plain case of one stage a rank; `interleaved_1f1b` gives each rank several stages in a
loop, which cuts the bubble by their number.

What the generators of schedules share: checks of their sizes, rounds of microbatches, and orders written as phases.

Rounds are for interleaved schedules, whose stages are looped: stage s is on rank s mod p. A round of microbatches
passes all stages of a rank before the next round starts ("depth first"): forwards from the rank's first stage to its
last, backwards from its last to its first.

Phases are for schedules whose paper shows them as a figure. A phase is a pattern and how often it is repeated:
`("F0 F1", 3)` runs a forward of the rank's chunk 0 and one of its chunk 1, three times. Each token takes the next
microbatch of its kind and chunk: `F0`, `B1`, `I1`. `W1` is the oldest weight gradient of chunk 1 whose input gradient
is done, `W` that of any chunk. `F0+B1` fuses two actions in one cell.

Breadth-first schedules: all forwards of a stage, then all of the next one, then back.

`gpipe` is the plain case of one stage a rank; `looped_bfs` gives each rank several stages in a loop.

Zero-bubble schedules: the backward is split, so that weight gradients fill idle time.

The rank before waits for the gradient of the input (I). The gradient of the weights (W) can run later.
Each schedule here is 1F1B with I in the place of the backward, and each W runs a fixed number of backwards
after its I: later on later ranks, so that early I's come sooner and the last W's fill the end of the step.

V-shaped schedules: rank r holds stages r and 2p - 1 - r, so that the model goes down the ranks and back.

The rank that starts the forward of a microbatch also ends it. It has the loss at once, and the first backwards
start early. Each rank's order is written as phases: F0 is the next forward of the rank's
first stage, I1 the next input gradient of its second, W the oldest weight gradient still to do, F0+B1 two
actions that overlap.

Zero-bubble schedules made for given times and a limit of memory: ZB-1p and ZB-2p.

Ranks are followed in time. A rank that is free takes the next forward or input gradient in turn, one of each, as far as
its activations stay within the limit. A weight gradient fills the wait for it, where it fits, where the rank would
else have the largest bubble of all, or where its activations stand in the way. Three choices are open: whether a rank
takes one more forward where its first gradient comes soon, whether it leaves out a forward where it is ahead of the
next rank, and whether the largest bubble counts. All eight are tried, and ZB-H1 and ZB-H2 where their memory allows.
The one with the shortest span is taken, and of several the one that ends first.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 3.1. Left out: the integer program
that the authors begin from the result.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, product

from minitrain.errors import UsageError, shown
from minitrain.search.schedules.schedule import KINDS, Action, Cell, Kind, Schedule

Phase = tuple[str, int]

MOST_PASSES = 2**22
"""Forward passes of a schedule: these and their backwards take 2 GB."""

MOST_PASSES_TRIED = 2**18
"""Forward passes of a schedule that is made for given times: its eight choices are followed within a minute or two."""


def check_sizes(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int,
    legal: int | None = None,
    remedy: str = "",
    most: int = MOST_PASSES,
) -> None:
    """Refuse a count below one, more actions than memory or time allows, and chunks that a schedule is not made for.

    Raises:
        UsageError: naming the count; of chunks, the legal number and a schedule for others.
    """
    counts = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "num_chunks": num_chunks}
    for count, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{count} ({value!r}) must be a whole number of 1 or more for {name}", **counts)
    if math.prod(counts.values()) > most:
        raise UsageError(
            f"num_ranks x num_microbatches x num_chunks must be at most {most} for {name}, got "
            f"{' x '.join(map(shown, counts.values()))}; take fewer microbatches, as a step repeats",
            **counts,
        )
    if legal is not None and num_chunks != legal:
        raise UsageError(f"num_chunks ({num_chunks}) must be {legal} for {name}; {remedy}")


def passes(kind: Kind, stages: range, rounds: list[range]) -> list[Action]:
    """Return one kind of action for every round, stage and microbatch, in this order of nesting."""
    return [Action(kind, stage, microbatch) for batch in rounds for stage in stages for microbatch in batch]


def rounds_of(name: str, num_ranks: int, num_microbatches: int) -> list[range]:
    """Cut the microbatches into rounds that an interleaved schedule can run.

    A round is p microbatches where m is a multiple of p, as the paper demands. As torch does, other m are cut
    into m // p rounds of more than p if they divide evenly, and m < p makes one round.

    Raises:
        UsageError: if the rounds would differ in size, naming the nearest m that fit.
    """
    num_rounds = max(1, num_microbatches // num_ranks)
    if num_microbatches % num_rounds:
        below = num_microbatches - num_microbatches % num_rounds
        above = next(m for m in range(num_microbatches, 2 * num_microbatches) if m % (m // num_ranks) == 0)
        message = (
            f"num_microbatches ({num_microbatches}) must be a multiple of its number of rounds, "
            f"num_microbatches // num_ranks = {num_rounds}, for {name}; use {below} or {above}"
        )
        raise UsageError(message, num_microbatches=num_microbatches)
    size = num_microbatches // num_rounds
    return [range(start, start + size) for start in range(0, num_microbatches, size)]


def follow(phases: Iterable[Phase], stages: tuple[int, ...]) -> list[Cell]:
    """Return a rank's cells.

    Args:
        phases: patterns and how often to repeat each.
        stages: the stage of each of the rank's chunks.
    """
    reader = _Reader(stages)
    return [reader.cell(tokens) for pattern, times in phases for _ in range(times) for tokens in pattern.split()]


class _Reader:
    """Read tokens one by one, and count which microbatch comes next."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        self.stages = stages
        self.num_forwards: Counter[int] = Counter()
        self.num_backwards: Counter[int] = Counter()
        self.pending: list[Action] = []

    def cell(self, tokens: str) -> Cell:
        """Return the cell of one token, or of several that are fused."""
        return tuple(self.action(token) for token in tokens.split("+"))

    def action(self, token: str) -> Action:
        """Return the next action of a token."""
        kind = KINDS[token[0]]
        if kind == "W":
            return self.oldest_weight(token[1:])
        chunk = int(token[1:])
        counter = self.num_forwards if kind == "F" else self.num_backwards
        action = Action(kind, self.stages[chunk], counter[chunk])
        counter[chunk] += 1
        if kind == "I":
            self.pending.append(Action("W", action.stage, action.microbatch))
        return action

    def oldest_weight(self, chunk: str) -> Action:
        """Take the weight gradient that waits longest, of one chunk or of any."""
        stages = (self.stages[int(chunk)],) if chunk else self.stages
        oldest = next(weight for weight in self.pending if weight.stage in stages)
        self.pending.remove(oldest)
        return oldest


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
    check_sizes(
        "one_f_one_b", num_ranks, num_microbatches, num_chunks, 1, "use interleaved_1f1b for several stages a rank"
    )
    orders = (
        _one_forward_one_backward(*_alone(rank, num_microbatches, "B"), warmup=num_ranks - 1 - rank)
        for rank in range(num_ranks)
    )
    return Schedule.from_orders(orders, "one_f_one_b")


def interleaved_1f1b(num_ranks: int, num_microbatches: int, num_chunks: int = 2, *, in_pairs: bool = False) -> Schedule:
    """Run 1F1B over a loop of stages, a round of p microbatches at a time through a rank's stages.

    Bubble: (p - 1)(tf + tb) / v for m a multiple of p. Live activations on rank r:
    min(m v, (v - 1) p + 2 (p - 1 - r) + 1) / v.

    Args:
        num_ranks: p; stage s is on rank s mod p.
        num_microbatches: m, a multiple of p, or any number that cuts into max(1, m // p) equal rounds.
        num_chunks: v, stages a rank, any number (1 has a longer warm-up than `one_f_one_b`, without a benefit).
        in_pairs: whether a forward and the backward after it are fused to overlap, each rank having run one more
            forward, so that no pair is of one microbatch (`combined_1f1b.py` of Megatron-Core 0.14).

    Returns:
        The schedule, equal to torch 2.13's ScheduleInterleaved1F1B where nothing is fused.

    Raises:
        UsageError: for sizes outside these rules.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
        Megatron-LM" (SC'21), Figure 4, bottom.
    """
    check_sizes("interleaved_1f1b", num_ranks, num_microbatches, num_chunks)
    rounds = rounds_of("interleaved_1f1b", num_ranks, num_microbatches)
    rows = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * num_chunks, num_ranks)
        # The first microbatch needs all earlier chunks of its round, then two steps for every rank still to
        # cross.
        warmup = (num_chunks - 1) * len(rounds[0]) + 2 * (num_ranks - 1 - rank) + in_pairs
        forwards, backwards = passes("F", stages, rounds), passes("B", stages[::-1], rounds)
        order = _one_forward_one_backward(forwards, backwards, warmup)
        alone = len(forwards[:warmup]) if in_pairs else len(forwards)
        fused = order[alone : len(order) - alone]
        first, last = ([(action,) for action in part] for part in (order[:alone], order[alone + len(fused) :]))
        rows.append((*first, *zip(fused[::2], fused[1::2], strict=True), *last))
    return Schedule(tuple(rows), "interleaved_1f1b")


def _one_forward_one_backward(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """Return forwards alone, then forward and backward in turn, then the backwards that are left."""
    order = forwards[:warmup]
    num_steady = len(forwards) - len(order)
    for forward, backward in zip(forwards[warmup:], backwards[:num_steady], strict=True):
        order += [forward, backward]
    return order + backwards[num_steady:]


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
    check_sizes("gpipe", num_ranks, num_microbatches, num_chunks, 1, "use looped_bfs for several stages a rank")
    orders = (list(chain(*_alone(stage, num_microbatches, "B"))) for stage in range(num_ranks))
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
    return _handcrafted("zb_h1", num_ranks, num_microbatches, num_chunks, 1)


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
    return _handcrafted("zb_h2", num_ranks, num_microbatches, num_chunks, 2)


def _handcrafted(name: str, num_ranks: int, num_microbatches: int, num_chunks: int, times: int) -> Schedule:
    """Return a schedule with the warm-up of 1F1B or twice that, and with weight gradients as late as that allows."""
    check_sizes(
        name, num_ranks, num_microbatches, num_chunks, 1, "use interleaved_zero_bubble for several stages a rank"
    )
    orders = (
        _delay_weights(*_alone(rank, num_microbatches, "I"), times * (num_ranks - 1 - rank), times * rank)
        for rank in range(num_ranks)
    )
    return Schedule.from_orders(orders, name)


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


def _alone(stage: int, num_microbatches: int, backward: Kind) -> tuple[list[Action], list[Action]]:
    """Return the forwards and the backwards of a rank with one stage."""
    stages, rounds = range(stage, stage + 1), [range(num_microbatches)]
    return passes("F", stages, rounds), passes(backward, stages, rounds)


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
    check_sizes("zbv", num_ranks, num_microbatches, num_chunks, 2, "use interleaved_zero_bubble for other numbers")
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
    check_sizes(
        "dualpipe_v", num_ranks, num_microbatches, num_chunks, 2, "use interleaved_zero_bubble for other numbers"
    )
    if num_microbatches < 2 * num_ranks:
        message = (
            f"num_microbatches ({num_microbatches}) must be at least the number of stages ({2 * num_ranks}) "
            f"for dualpipe_v; use {2 * num_ranks} or more, or zbv"
        )
        raise UsageError(message, num_microbatches=num_microbatches)
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


def chimera(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Send half of the microbatches down the ranks and half of them up, through two copies of the weights.

    Where a unit of p microbatches follows another, its forwards fill the other's end (direct concatenation). Time of a
    unit of m = p, for tb >= tf: p tf + (2p - 2) tb. Bubble of any multiple of p for tf = tb: (p - 2) tf. Live
    activations of m = p: from p / 2 + 1 on the first and the last rank to p in the middle. Each rank holds two stages,
    whose gradients are summed with the rank that has the same two.

    Args:
        num_ranks: p, an even number; ranks r and p - 1 - r hold stages r and p - 1 - r.
        num_microbatches: m, an even number.
        num_chunks: 2.

    Returns:
        The schedule.

    Raises:
        UsageError: for sizes outside these rules.

    Source: Li and Hoefler 2021, "Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional
        Pipelines" (SC'21), Figures 3 and 7, Table 2. Left out: more than two pipelines, forward doubling.
    """
    check_sizes("chimera", num_ranks, num_microbatches, num_chunks, 2, "use one_f_one_b for one copy of the weights")
    for count, value in {"num_ranks": num_ranks, "num_microbatches": num_microbatches}.items():
        if value % 2:
            raise UsageError(
                f"{count} ({value}) must be even for chimera, which goes both ways; use {value + 1}", **{count: value}
            )
    orders = (_both_ways(rank, num_ranks, num_microbatches) for rank in range(num_ranks))
    return Schedule.from_orders(orders, "chimera", copies=2)


def _both_ways(rank: int, num_ranks: int, num_microbatches: int) -> list[Action]:
    """Return one rank's order: by the slots of passes that are alike, no two of which coincide."""
    slots: dict[int, Action] = {}
    for microbatch in range(num_microbatches):
        unit, place = divmod(microbatch, num_ranks)
        # a unit goes down with its first half and up with its second; what is left is halved too
        half = min(num_ranks, num_microbatches - unit * num_ranks) // 2
        stage = rank if place < half else num_ranks - 1 - rank
        start = 2 * (unit * num_ranks + place % half)
        slots[start + stage] = Action("F", stage, microbatch)
        slots[start + 2 * num_ranks - 1 - stage] = Action("B", stage, microbatch)
    return [slots[slot] for slot in sorted(slots)]


EQUAL_COSTS = (1.0, 1.0, 1.0, 0.0, 1.0)
"""Of passes that are alike, messages that take no time, and weight gradients that keep all activations."""

_PASSES: tuple[Kind, ...] = ("F", "I", "W")


def zb_1p(num_ranks: int, num_microbatches: int, num_chunks: int = 1, costs: Sequence[float] = EQUAL_COSTS) -> Schedule:
    """Make the zero-bubble schedule for given costs in the memory of 1F1B.

    Live activations: as many as p microbatches have on every rank, where a weight gradient counts its share.

    Args:
        num_ranks: p; stage s is on rank s.
        num_microbatches: m, any number.
        num_chunks: 1.
        costs: the time of a forward, an input gradient, a weight gradient and a message, in one unit; and the share of
            a microbatch's activations that its weight gradient keeps.

    Returns:
        The schedule.

    Raises:
        UsageError: for sizes or costs outside these rules.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, sections 3.1 and 4.
    """
    return _shortest("zb_1p", num_ranks, num_microbatches, num_chunks, num_ranks, tuple(costs))


def zb_2p(num_ranks: int, num_microbatches: int, num_chunks: int = 1, costs: Sequence[float] = EQUAL_COSTS) -> Schedule:
    """Make the zero-bubble schedule for given costs in twice the memory of 1F1B.

    Live activations: as many as 2p microbatches have on every rank, where a weight gradient counts its share.

    Args:
        num_ranks: p; stage s is on rank s.
        num_microbatches: m, any number.
        num_chunks: 1.
        costs: the time of a forward, an input gradient, a weight gradient and a message, in one unit; and the share of
            a microbatch's activations that its weight gradient keeps.

    Returns:
        The schedule.

    Raises:
        UsageError: for sizes or costs outside these rules.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, sections 3.1 and 4.
    """
    return _shortest("zb_2p", num_ranks, num_microbatches, num_chunks, 2 * num_ranks, tuple(costs))


@lru_cache(maxsize=64)
def _shortest(
    name: str, num_ranks: int, num_microbatches: int, num_chunks: int, most_alive: int, costs: tuple[float, ...]
) -> Schedule:
    """Return the schedule of the choices with the shortest span, of these the one that ends first."""
    remedy = "use zbv for several stages a rank"
    check_sizes(name, num_ranks, num_microbatches, num_chunks, 1, remedy, MOST_PASSES_TRIED)
    is_legal = len(costs) == 5 and all(0 < cost < math.inf for cost in costs[:3]) and 0 <= costs[3] < math.inf
    if not (is_legal and 0 <= costs[4] <= 1):
        raise UsageError(
            f"costs of {name} must be the times of a forward, an input gradient and a weight gradient (above 0) and of "
            f"a message (from 0), and a share (0 to 1), got {costs}; leave them out where passes are alike"
        )
    tried = [
        _Pipeline(num_ranks, num_microbatches, most_alive, costs, choices).run()
        for choices in product((False, True), repeat=3)
    ]
    handmade = (zb_h1, zb_h2) if most_alive > num_ranks else (zb_h1,)
    tried += [generator(num_ranks, num_microbatches) for generator in handmade]
    return Schedule(min(tried, key=lambda schedule: span_and_end(schedule, costs)).rows, name)


def span_and_end(schedule: Schedule, costs: Sequence[float]) -> tuple[float, float]:
    """Return the longest time from a rank's first start to its last end, and the last end of all ranks.

    Args:
        schedule: of one stage a rank.
        costs: as for `zb_1p`, in whose unit times are returned.
    """
    times, message = dict(zip(_PASSES, costs, strict=False)), costs[3]
    done: dict[tuple[Kind, int, int], float] = {}
    free, begun = [0.0] * schedule.num_ranks, [-1.0] * schedule.num_ranks
    left = [list(reversed(order)) for order in schedule.orders]
    while any(left):
        for rank, actions in enumerate(left):
            while actions:
                action = actions[-1]
                source = rank + {"F": -1, "I": 1}.get(action.kind, schedule.num_ranks)
                needed = (action.kind, source, action.microbatch)
                if 0 <= source < schedule.num_ranks and needed not in done:
                    break
                start = max(free[rank], done.get(needed, -message) + message)
                begun[rank] = start if begun[rank] < 0 else begun[rank]
                free[rank] = done[action.kind, rank, action.microbatch] = start + times[action.kind]
                actions.pop()
    return round(max(end - start for end, start in zip(free, begun, strict=True)), 9), round(max(free), 9)


class _Pipeline:
    """Ranks in time.

    Args:
        num_ranks: p.
        num_microbatches: m.
        most_alive: microbatches that a rank may keep.
        costs: as for `zb_1p`.
        choices: the three that are open, in the order of the module's docstring.
    """

    def __init__(
        self, num_ranks: int, num_microbatches: int, most_alive: int, costs: Sequence[float], choices: tuple[bool, ...]
    ) -> None:
        self.last, self.num, self.most_alive = num_ranks - 1, num_microbatches, most_alive
        self.times: dict[Kind, float] = dict(zip(_PASSES, costs[:3], strict=True))
        self.message, self.share = costs[3:]
        self.delays, self.skips, self.evens = choices
        self.orders: list[list[Action]] = [[] for _ in range(num_ranks)]
        self.ends: list[dict[Kind, list[float]]] = [{"F": [], "I": [], "W": []} for _ in range(num_ranks)]
        self.free, self.bubbles, self.largest_bubble = [0.0] * num_ranks, [0.0] * num_ranks, 0.0
        self.were_forward = [False] * num_ranks  # what each began last, weight gradients aside
        self.moments, self.woken = [0.0], {0.0: [*range(num_ranks)]}
        self.num_looks = Counter({0.0: 1})

    def run(self) -> Schedule:
        """Follow all ranks to the end, and return what they did.

        A rank is looked at when it is free, when what it needs comes, and after the next rank's forward: nothing else
        makes a rank begin that waited.
        """
        late: set[int] = set()  # looked at before the next rank's forward
        while self.moments:
            now = heapq.heappop(self.moments)
            late.update(self.woken.pop(now))
            for _ in range(self.num_looks.pop(now)):
                due, late = sorted(late), set()
                for rank in due:
                    if self.free[rank] <= now and self._take(rank, now) == "F" and rank:
                        late.add(rank - 1)
        return Schedule.from_orders(self.orders)

    def _take(self, rank: int, now: float) -> Kind | None:
        """Begin what a free rank does now, and note who is looked at when it ends and when its message is there."""
        kind = self._chosen(rank, now)
        if kind is None:
            return None
        if self.orders[rank]:
            self.bubbles[rank] += now - self.free[rank]
            self.largest_bubble = max(self.largest_bubble, self.bubbles[rank])
        self.free[rank] = end = now + self.times[kind]
        self.orders[rank].append(Action(kind, rank, self._done(rank, kind)))
        self.ends[rank][kind].append(end)
        if kind != "W":
            self.were_forward[rank] = kind == "F"
        others = [other for other in (rank - 1, rank + 1) if 0 <= other <= self.last]
        for moment, ranks in ((end, [rank]), (end + self.message, others)):
            if moment not in self.woken:
                heapq.heappush(self.moments, moment)
            self.woken.setdefault(moment, []).extend(ranks)
            self.num_looks[moment] += 1
        return kind

    def _done(self, rank: int, kind: Kind) -> int:
        return len(self.ends[rank][kind])

    def _chosen(self, rank: int, now: float) -> Kind | None:
        """Return what a rank begins now, or None if it waits."""
        forward, gradient = self._arrival(rank, "F"), self._arrival(rank, "I")
        has_room = self._alive(rank) + 1 <= self.most_alive
        may_go = forward is not None and forward <= now and has_room
        may_return = gradient is not None and gradient <= now
        has_weights = self._done(rank, "W") < self._done(rank, "I")
        is_turn = self._is_turn_of_gradient(rank)
        makes_room = not is_turn and not has_room and has_weights and self._done(rank, "F") < self.num
        if may_return and (is_turn or not may_go) and not makes_room:
            return "I"
        wait = math.inf if gradient is None else gradient - now
        if may_go and (not is_turn or self.delays or wait >= self.times["F"]):
            return "F"
        if not has_weights:
            return None
        if not is_turn and has_room and forward is not None:
            wait = min(wait, forward - now)
        is_largest = self.evens and self.bubbles[rank] + wait > self.largest_bubble
        return "W" if wait >= self.times["W"] or is_largest or makes_room else None

    def _is_turn_of_gradient(self, rank: int) -> bool:
        """Return whether an input gradient comes before the next forward, one of each in turn after the first."""
        if not self._done(rank, "I"):
            return self._arrival(rank, "I") is not None
        is_ahead = rank < self.last and self._done(rank, "F") - self._done(rank + 1, "F") > 1
        return self.were_forward[rank] or (self.skips and is_ahead)

    def _alive(self, rank: int) -> float:
        """Return the activations that a rank keeps, in those of a microbatch."""
        forwards, backwards, weights = (self._done(rank, kind) for kind in _PASSES)
        return forwards - backwards + self.share * (backwards - weights)

    def _arrival(self, rank: int, kind: Kind) -> float | None:
        """Return when what the next action of a kind needs is there; None where that has not begun, or none is left."""
        place = self._done(rank, kind)
        if place == self.num or (kind == "I" and place == self._done(rank, "F")):
            return None
        if kind == "F":
            return 0.0 if rank == 0 else self._sent(self.ends[rank - 1]["F"], place)
        return self._sent(self.ends[rank + 1]["I"], place) if rank < self.last else self.ends[rank]["F"][place]

    def _sent(self, ends: Sequence[float], place: int) -> float | None:
        return ends[place] + self.message if place < len(ends) else None
