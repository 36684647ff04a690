"""A rank's order, written as the phases of its paper's figure.

A phase is a pattern and how often it is repeated: `("F0 F1", 3)` runs a forward of the rank's chunk 0 and one
of its chunk 1, three times. Each token takes the next microbatch of its kind and chunk: `F0`, `B1`, `I1`.
`W1` is the oldest weight gradient of chunk 1 whose input gradient is done, `W` that of any chunk; `F0+B1`
fuses two actions in one cell.
"""

from collections import Counter
from collections.abc import Iterable
from typing import final

from minitrain.schedules.action import KINDS, Action, Cell

Phase = tuple[str, int]


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
    """Count, token by token, which microbatch comes next."""

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
