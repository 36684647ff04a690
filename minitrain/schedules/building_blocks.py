"""What the generators of schedules share: checks of their sizes, rounds of microbatches, and orders written as phases.

Rounds are for interleaved schedules, whose stages are looped: stage s is on rank s mod p. A round of microbatches
passes all stages of a rank before the next round starts ("depth first"): forwards from the rank's first stage to its
last, backwards from its last to its first.

Phases are for schedules whose paper shows them as a figure. A phase is a pattern and how often it is repeated:
`("F0 F1", 3)` runs a forward of the rank's chunk 0 and one of its chunk 1, three times. Each token takes the next
microbatch of its kind and chunk: `F0`, `B1`, `I1`. `W1` is the oldest weight gradient of chunk 1 whose input gradient
is done, `W` that of any chunk. `F0+B1` fuses two actions in one cell.
"""

from collections import Counter
from collections.abc import Iterable
from typing import final

from minitrain.errors import UsageError
from minitrain.schedules.action import KINDS, Action, Cell, Kind

Phase = tuple[str, int]


def check_sizes(name: str, num_ranks: int, num_microbatches: int, num_chunks: int) -> None:
    """Refuse a count below one.

    Raises:
        UsageError: naming the count.
    """
    counts = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "num_chunks": num_chunks}
    for count, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{count} ({value!r}) must be a whole number of 1 or more for {name}", **counts)


def check_chunks(name: str, num_chunks: int, legal: int, remedy: str) -> None:
    """Refuse any number of chunks but the one that the schedule is made for.

    Raises:
        UsageError: naming the legal number and a schedule for others.
    """
    if num_chunks != legal:
        raise UsageError(f"num_chunks ({num_chunks}) must be {legal} for {name}; {remedy}", num_chunks=num_chunks)


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
        raise UsageError(
            f"num_microbatches ({num_microbatches}) must be a multiple of its number of rounds, "
            f"num_microbatches // num_ranks = {num_rounds}, for {name}; use {below} or {above}",
            num_microbatches=num_microbatches,
            num_ranks=num_ranks,
        )
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


@final
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
