"""Runs of many steps: each begins where the one before has left the clocks and the weights of its ranks.

A rank begins its next step when all that it did in this one has ended, whatever other ranks do. The weights are those
that it handed in, so that later steps load nothing. Each step is simulated as a run of its own, from the clocks that
the one before has left. Once clocks return, relative to one another, all that follows returns with them: operations
depend on differences of clocks alone. The rest is then known without being simulated. That it comes to this is a
theorem of max-plus algebra (Baccelli, Cohen, Olsder, Quadrat 1992, *Synchronization and Linearity*, theorem 3.109).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.run.analysis.labels import duration

_SAME = 1e-12
"""The largest difference of two clocks, relative to the length of the steps so far, that is rounding."""


@final
@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a run of many.

    Args:
        num_steps: how many.
        load_time: how long the first one loads the weights, s.
        ends: when the last rank ended each of those that were simulated, until clocks returned, s.
        period: how many steps it takes until they return; None where all steps were simulated and they did not.
        first: the `Run` of the first step; None of a run that was read from a file, and of steps of one round.
        returned: after how many steps clocks had returned; None for the last of `ends`.
    """

    num_steps: int
    load_time: float
    ends: tuple[float, ...]
    period: int | None
    first: Any = field(default=None, repr=False, compare=False)
    returned: int | None = None

    @property
    def borders(self) -> tuple[float, ...]:
        """When the steps that were simulated begin and end, s."""
        return (self.load_time, *self.ends)

    @property
    def times(self) -> list[float]:
        """The time of each step, s: from the end of the one before (of loading, for the first) on its last rank."""
        known = [end - begin for begin, end in pairwise(self.borders)]
        if self.period is None:
            return known
        again = known[-self.period :]
        missing = self.num_steps - len(known)
        return known + [again[index % self.period] for index in range(missing)]

    @property
    def steady_time(self) -> float:
        """The mean time of the steps that return, or the time of the last one, s."""
        length, place = self.period or 1, len(self.ends) if self.returned is None else self.returned
        return (self.borders[place] - self.borders[place - length]) / length

    @property
    def total_time(self) -> float:
        """From the beginning of loading to the end of the last step, s."""
        if self.period is None:
            return self.ends[-1]
        again = self.borders[-1 - self.period :]
        whole, part = divmod(self.num_steps - len(self.ends), self.period)
        return self.ends[-1] + whole * (again[-1] - again[0]) + (again[part] - again[0])

    def __str__(self) -> str:
        first, loading = duration(self.ends[0] - self.load_time), duration(self.load_time)
        return (
            f"{self.num_steps:,} steps take {duration(self.total_time)}: {loading} of loading, {first} for the first, "
            f"then {duration(self.steady_time)} each"
        )


def steps_of_round(begun: Sequence[Sequence[float]], ended: Sequence[float]) -> Steps:
    """Return the steps of a loop that a strategy has written, all of which were simulated.

    Args:
        begun: when each rank began each of them, s.
        ended: when each rank ended the last, s.
    """
    borders = [*zip(*begun, strict=True), ended]
    latest = [max(clocks) for clocks in borders]
    seen: list[Sequence[float]] = []
    for place, clocks in enumerate(borders[1:-1], 1):  # what is launched for a next step is missing in the last
        earliest = min(clocks)
        seen.append([clock - earliest for clock in clocks])
        period = period_of(seen, earliest)
        if period is not None:
            return Steps(len(latest) - 1, latest[0], tuple(latest[1:]), period, returned=place)
    return Steps(len(latest) - 1, latest[0], tuple(latest[1:]), None)


def require_one_step(run: Any, what: str) -> None:
    """Require a run of one step, whose ranks begin together.

    Args:
        run: a `Run`.
        what: asks for it.

    Raises:
        UsageError: it is one of many steps.
    """
    if run.steps is not None:
        raise UsageError(
            f"{what} follows one step whose ranks begin together, and the run of {run.strategy} has "
            f"{run.steps.num_steps:,}; simulate it without steps, or give `run.steps.first`"
        )


def period_of(seen: Sequence[Sequence[float]], begin: float) -> int | None:
    """Return after how many steps the last clocks have come before; None if they have not.

    Args:
        seen: the clocks of all ranks after each step, relative to the earliest.
        begin: when the earliest was there after the last step, s.
    """
    tolerance = _SAME * begin
    last = seen[-1]
    for ago, before in enumerate(islice(reversed(seen), 1, None), 1):
        if all(abs(one - other) <= tolerance for one, other in zip(last, before, strict=True)):
            return ago
    return None
