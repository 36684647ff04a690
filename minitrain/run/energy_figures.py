"""What `Run` shows of `minitrain.run.energy`: energy, power and money of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from minitrain.analysis.breakdown import Breakdown
    from minitrain.analysis.timeline import Timeline
    from minitrain.hardware.data_sheet import DataSheet
    from minitrain.run.energy import StepEnergy


SECONDS_A_DAY = 86_400
JOULES_A_MEGAWATT_HOUR = 3.6e9


@final
@dataclass(frozen=True, slots=True)
class TokenBudget:
    """What training on some tokens takes, in steps that are all alike.

    Args:
        tokens: how many.
        seconds: how long, s.
        dollars: renting the devices for it, USD; None where a config does not say the price.
        joules: what the devices draw, J; None where a config does not say their power.
    """

    tokens: float
    seconds: float
    dollars: float | None
    joules: float | None

    @classmethod
    def of(
        cls, tokens: float, num_tokens: int | None, step_time_s: float, dollars: float | None, joules: float | None
    ) -> TokenBudget | None:
        """Return the budget of steps of `num_tokens` tokens; None where a step has none.

        Example:
            >>> TokenBudget.of(1e6, 1000, 2.0, 0.5, None)
            TokenBudget(tokens=1000000.0, seconds=2000.0, dollars=500.0, joules=None)
        """
        if not num_tokens:
            return None
        steps = tokens / num_tokens
        dollars, joules = (None if one is None else steps * one for one in (dollars, joules))
        return cls(tokens, steps * step_time_s, dollars, joules)

    @property
    def days(self) -> float:
        """How long, days."""
        return self.seconds / SECONDS_A_DAY

    @property
    def megawatt_hours(self) -> float | None:
        """What the devices draw, MWh."""
        return None if self.joules is None else self.joules / JOULES_A_MEGAWATT_HOUR

    def summary(self) -> dict[str, float | None]:
        """Return the figures, ready for JSON."""
        figures = {"tokens": self.tokens, "days": self.days, "dollars": self.dollars}
        return {**figures, "megawatt_hours": self.megawatt_hours}


class EnergyFigures:
    """Energy, power and money of a step; each is None where the hardware config does not say what it needs.

    Attributes:
        sheets: the data sheet of each rank's device, or one for all; empty for a run that was read from a file.
        world_size: number of ranks.
        global_batch_size: samples of the step.
    """

    sheets: Sequence[DataSheet | None]
    world_size: int
    global_batch_size: int

    if TYPE_CHECKING:

        @property
        def step_timeline(self) -> Timeline:
            """The columns that figures of the step are made from."""
            ...

        @property
        def breakdown(self) -> Breakdown:
            """Where the time of each rank goes."""
            ...

        @property
        def step_time(self) -> float:
            """What the step takes, s."""
            ...

        @property
        def num_tokens(self) -> int | None:
            """Tokens of the batch."""
            ...

    @cached_property
    def energy(self) -> StepEnergy | None:
        """What each rank draws, busy and idle apart."""
        from minitrain.run.energy import energy_of  # noqa: PLC0415  (numpy only when somebody looks)

        return energy_of(self.breakdown, self.sheets)

    @property
    def energy_joules(self) -> float | None:
        """What all devices draw in the step, J."""
        return self.energy and self.energy.joules

    @property
    def average_watts(self) -> float | None:
        """What all devices draw together on average, W."""
        return self.energy and self.energy.average_watts

    @cached_property
    def peak_watts(self) -> float | None:
        """The most that all devices draw together at any moment, W."""
        from minitrain.run.energy import peak_watts  # noqa: PLC0415

        return peak_watts(self.step_timeline, self.sheets)

    @property
    def joules_per_token(self) -> float | None:
        """What a token of the batch takes, J; None also where the workload counts no tokens."""
        if self.energy is None or not self.num_tokens:
            return None
        return self.energy.joules / self.num_tokens

    @property
    def dollars(self) -> float | None:
        """What renting the devices for the step costs, USD."""
        from minitrain.run.energy import dollars_of  # noqa: PLC0415

        return dollars_of(self.sheets, self.world_size, self.step_time)

    def for_tokens(self, tokens: float) -> TokenBudget | None:
        """Return what training on so many tokens takes, in steps like this one; None where no tokens are counted.

        Left out: loading, failures (see `mt.goodput`), and all that is not a device.
        """
        return TokenBudget.of(tokens, self.num_tokens, self.step_time, self.dollars, self.energy_joules)
