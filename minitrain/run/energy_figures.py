"""What `Run` shows of `minitrain.run.energy`: energy, power and money of a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minitrain.analysis.breakdown import Breakdown
    from minitrain.analysis.timeline import Timeline
    from minitrain.hardware.data_sheet import DataSheet
    from minitrain.run.energy import StepEnergy


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
        def timeline(self) -> Timeline:
            """The events as columns."""
            ...

        @property
        def breakdown(self) -> Breakdown:
            """Where the time of each rank goes."""
            ...

        @property
        def step_time(self) -> float:
            """The latest final clock, s."""
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

        return peak_watts(self.timeline, self.sheets)

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
