"""A run whose events were not kept: the figures of a whole one, read from totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from minitrain.run.result import Run

if TYPE_CHECKING:
    from minitrain.run.accounting.summary.log import RankTotals
    from minitrain.run.analysis.breakdown import AxisTotal, Breakdown, PassTime, TypeTotal


@dataclass(frozen=True, repr=False)
class SummaryRun(Run):
    """A run whose `logs` know their length and their totals; to read an event of them is an error."""

    @property
    def _totals(self) -> list[RankTotals]:
        """The totals of each rank."""
        return [log.totals for log in self.logs]  # type: ignore[attr-defined]  # they are `SummaryLog`s

    @property
    def _load_ends(self) -> Sequence[float]:
        """When the weights of each rank that does anything are there, s."""
        return [totals.load_end for totals in self._totals if totals.num_events]

    @cached_property
    def _without_loading(self) -> Run:
        """The same run with loads that take no time; itself where ranks load alike."""
        from minitrain.machine.fixed_durations import with_free_loading  # noqa: PLC0415  (few runs need it)
        from minitrain.run.event_loops import run_to_end  # noqa: PLC0415

        simulate = self.prepared.simulate
        if self.loads_alike or simulate is None:
            return self
        prepared = replace(self.prepared, predictor=with_free_loading(self.prepared.predictor))
        run: Run = run_to_end(lambda: simulate(prepared))
        return run

    @cached_property
    def step_time(self) -> float:
        """From the end of loading to the latest final clock of all ranks, s."""
        return self.last_clock - self.load_time if self.loads_alike else self._without_loading.step_time

    @cached_property
    def breakdown(self) -> Breakdown:
        """The split of each rank's step time into computing, exposed communication and waiting, s."""
        from minitrain.run.analysis.breakdown import breakdown_of  # noqa: PLC0415

        if not self.loads_alike:
            return self._without_loading.breakdown
        return breakdown_of([totals.working.busy for totals in self._totals], self.load_time, self.last_clock)

    @cached_property
    def by_type(self) -> dict[str, TypeTotal]:
        """Number of events of each type on all ranks, and the time that they worked, s."""
        return self._totals[0].by_type.totals()

    @cached_property
    def communication_by_axis(self) -> dict[str, AxisTotal]:
        """What a rank communicates along each axis, on average; nothing where layers are alike, as nobody asks."""
        from minitrain.run.analysis.breakdown import mean_by_axis  # noqa: PLC0415

        sums = [totals.by_axis for totals in self._totals]
        return mean_by_axis([each.totals() for each in sums if each is not None])

    @cached_property
    def _passes(self) -> list[PassTime]:
        """When each rank passes microbatches through its layers."""
        if not self.loads_alike:
            return self._without_loading._passes
        return [passes for totals in self._totals if (passes := totals.passing.passes) is not None]

    @property
    def keeps_events(self) -> bool:
        """Whether the logs can be read: they hold totals."""
        return False

    def _picture_html(self) -> str:
        """Return no picture: it would need every event."""
        return ""

    def _timeline_html(self) -> str:
        """Return no timeline, for the same reason."""
        return ""
