"""The order in which interleaved schedules take microbatches through a rank's stages.

A round of microbatches passes all stages of the rank before the next round starts ("depth first"): forwards
from the rank's first stage to its last, backwards from its last to its first. Stages are looped: stage s is
on rank s mod p.
"""

from minitrain.errors import UsageError
from minitrain.schedules.action import Action, Kind


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
