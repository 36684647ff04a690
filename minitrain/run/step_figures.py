"""What `Run` shows of its step: when it begins and ends, and what it takes.

The step begins when the weights are there. A rank's *loading* is its loads before its first other operation. It is in
the events and on the clocks, and in no figure of the step: it has one of its own, `load_time`. A load in mid-step is
part of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from minitrain.run.ranks_alike import RanksAlike

if TYPE_CHECKING:
    from minitrain.analysis.timeline import Timeline
    from minitrain.events import Outage


class StepFigures(RanksAlike):
    """When the step of a run begins and ends, and its columns.

    Attributes:
        outages: when the step was interrupted by devices that died.
    """

    outages: Sequence[Outage]

    @property
    def _load_ends(self) -> Sequence[float]:
        """When the weights of each rank, or class of ranks, that does anything are there, s."""
        from minitrain.analysis.breakdown import are_flat, load_end_of  # noqa: PLC0415

        logs = self.class_logs
        if are_flat(logs):
            return [load_end_of(log._rows) for log in logs if len(log)]
        ends: list[float] = self.timeline.load_ends.tolist()
        return ends

    @cached_property
    def load_time(self) -> float:
        """When the weights of all ranks are there, s: the latest end of a rank's loads before its other operations."""
        return max(self._load_ends, default=0.0)

    @cached_property
    def loads_alike(self) -> bool:
        """Whether the weights of all ranks are there at the same time, or an outage has come between."""
        from minitrain.analysis.breakdown import are_alike  # noqa: PLC0415  (numpy only when somebody looks)

        return bool(self.outages) or are_alike(self._load_ends)

    @cached_property
    def last_clock(self) -> float:
        """The latest final clock of all ranks, s: loading and the step."""
        models = self.class_models
        if models and models[0]._log is self.class_logs[0]:  # the run was not timed again for contention
            latest: float = max(model.time for model in models)
            return latest
        return self.timeline.last_end

    @cached_property
    def step_time(self) -> float:
        """From the end of loading to the latest final clock of all ranks, s.

        Where ranks load for unequal times: as if the weights of all of them were there at 0.
        """
        return self.last_clock - self.load_time if self.loads_alike else self.step_timeline_of_classes.step_time

    @property
    def step_end(self) -> float | None:
        """When the step ends on the clock of `step_timeline`, s; None for its last end."""
        return self.last_clock if self.loads_alike else None

    @property
    def step_times(self) -> list[float]:
        """The time of each step, s: of the only one."""
        return [self.step_time]

    @cached_property
    def step_timeline(self) -> Timeline:
        """The columns that figures of the step are made from; where ranks load alike, the timeline as it is."""
        return self._of_step(self.timeline)

    @property
    def step_timeline_of_classes(self) -> Timeline:
        """The same of `timeline_of_classes`."""
        return self.step_timeline

    def _of_step(self, timeline: Timeline) -> Timeline:
        from minitrain.analysis.breakdown import step_alone  # noqa: PLC0415

        return timeline if self.loads_alike else step_alone(timeline)
