"""A run whose events were not kept: the figures of a whole one, read from totals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from minitrain.run.result import Run

if TYPE_CHECKING:
    from minitrain.accounting.summary.totals import RankTotals
    from minitrain.analysis.breakdown import Breakdown, PassTimes
    from minitrain.analysis.communication import AxisTotal
    from minitrain.analysis.totals_by_type import TypeTotal


@dataclass(frozen=True, repr=False)
class SummaryRun(Run):
    """A run whose `logs` know their length and their totals; to read an event of them is an error."""

    @property
    def _totals(self) -> list[RankTotals]:
        """The totals of each rank."""
        return [log.totals for log in self.logs]  # type: ignore[attr-defined]  # they are `SummaryLog`s

    @cached_property
    def breakdown(self) -> Breakdown:
        """The split of each rank's step time into computing, exposed communication and waiting, s."""
        from minitrain.analysis.breakdown import breakdown_of  # noqa: PLC0415  (numpy only when somebody looks)

        return breakdown_of([totals.working.busy for totals in self._totals], self.step_time)

    @cached_property
    def by_type(self) -> dict[str, TypeTotal]:
        """Number of events of each type on all ranks, and the time that they worked, s."""
        return self._totals[0].by_type.totals()

    @cached_property
    def communication_by_axis(self) -> dict[str, AxisTotal]:
        """What a rank communicates along each axis, on average; nothing where layers are alike, as nobody asks."""
        from minitrain.analysis.communication import mean_by_axis  # noqa: PLC0415

        sums = [totals.by_axis for totals in self._totals]
        return mean_by_axis([each.totals() for each in sums if each is not None])

    @cached_property
    def _passes(self) -> PassTimes:
        """When each rank passes microbatches through its layers."""
        from minitrain.analysis.breakdown import pass_times_of  # noqa: PLC0415

        return pass_times_of(totals.passing.passes for totals in self._totals)

    @property
    def keeps_events(self) -> bool:
        """Whether the logs can be read: they hold totals."""
        return False

    def _mime_bundle(self) -> dict[str, Any]:
        """Return no picture: it would need every event."""
        return {}
