"""One run explained: where its time goes, why ranks wait, what sets the step time, what would help, what fills memory.

Each part has a module of its own: `breakdown`, `waits`, `critical_path`, `what_if`, `memory_over_time` and
`textbook_bubble`. Here they are put together, as objects and as data that can be written as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from minitrain.analysis.breakdown import Breakdown, breakdown
from minitrain.analysis.critical_path import Binding, CriticalPath, binding, critical_path
from minitrain.analysis.dependencies import Graph, make_graph
from minitrain.analysis.memory_over_time import HighWater, Journals, high_water
from minitrain.analysis.textbook_bubble import ClosedForm, closed_form
from minitrain.analysis.timeline import Timeline
from minitrain.analysis.waits import GAP_KINDS, Gaps, find_gaps, waits_by_device
from minitrain.analysis.what_if import what_ifs


@dataclass(frozen=True, eq=False)
class Explanation:
    """All analyses of one run; each is computed when it is first asked for.

    Args:
        timeline: the run.
        bytes_per_element: bytes of one element of memory.
        step_end: when the step ends, s; the latest end of all ranks if None.
        strategy: name of the strategy, for the textbook's bubble.
        options: its options.
        journals: every change of every store, one journal a rank; empty if none were kept.
    """

    timeline: Timeline
    bytes_per_element: float
    step_end: float | None = None
    strategy: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    journals: Journals = ()

    @cached_property
    def graph(self) -> Graph:
        """Which operations wait for which."""
        return make_graph(self.timeline)

    @cached_property
    def binding(self) -> Binding:
        """The dependency of each moment that was fulfilled last."""
        return binding(self.graph)

    @cached_property
    def breakdown(self) -> Breakdown:
        """Computing, exposed communication and waiting of each rank."""
        return breakdown(self.timeline, self.step_end)

    @cached_property
    def gaps(self) -> Gaps:
        """Every idle time with its reason."""
        return find_gaps(self.timeline, self.step_end, self.graph, self.binding)

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The chain of operations that sets the step time."""
        return critical_path(self.graph, self.binding)

    @cached_property
    def what_ifs(self) -> Mapping[str, float]:
        """The step time if one class of operation were free, s."""
        return what_ifs(self.graph)

    @cached_property
    def closed_form(self) -> ClosedForm | None:
        """The bubble by the textbook's formula beside the measured one."""
        return closed_form(self.graph, self.strategy, self.options)

    @cached_property
    def high_water(self) -> list[HighWater]:
        """When each rank held most memory, and what it consisted of."""
        return high_water(self.timeline, self.journals)

    @cached_property
    def waits_by_device(self) -> Mapping[str, Mapping[str, float]]:
        """How long a rank with each kind of device waits on average, by the kind that it waits for, s."""
        return waits_by_device(self.timeline, self.step_end)

    def longest_gaps(self, count: int = 5) -> list[int]:
        """Return the longest gaps, as indices into `gaps`, the longest first."""
        order = np.lexsort((np.arange(len(self.gaps)), -self.gaps.duration))
        return [int(gap) for gap in order[:count]]

    def data(self) -> dict[str, Any]:
        """Return all analyses as plain data, ready for JSON: times in s, sizes in bytes."""
        split, waits = self.breakdown, self.gaps.seconds()
        kinds = [kind.replace("-", "_").replace(" ", "_").replace("'", "") for kind in GAP_KINDS]
        form = self.closed_form
        return {
            "step_time_s": split.step_time_s,
            "ranks": [
                {
                    "rank": rank,
                    "computing_s": float(split.computing[rank]),
                    "exposed_communication_s": float(split.exposed[rank]),
                    "overlapped_communication_s": float(split.overlapped[rank]),
                    "waiting_s": float(split.waiting[rank]),
                    "waiting_by_kind_s": dict(zip(kinds, waits[rank].tolist(), strict=True)),
                    "high_water": self._mark(self.high_water[rank]),
                }
                for rank in range(self.timeline.num_ranks)
            ],
            **({"waits_by_device_s": self.waits_by_device} if self.timeline.devices else {}),
            "longest_waits": [self._gap(gap) for gap in self.longest_gaps()],
            "critical_path": {
                **{f"{part}_s": value for part, value in self.critical_path.seconds().items()},
                "by_type_s": self.critical_path.by_typ(),
                "num_operations": len(self.critical_path.event),
            },
            "step_time_if_free_s": dict(self.what_ifs),
            "closed_form": None if form is None else _form(form),
        }

    def _gap(self, gap: int) -> dict[str, Any]:
        gaps = self.gaps
        return {
            "rank": int(gaps.rank[gap]),
            "start_s": float(gaps.start[gap]),
            "duration_s": float(gaps.duration[gap]),
            "kind": GAP_KINDS[gaps.kind[gap]],
            "waits_for": gaps.reason(gap),
        }

    def _mark(self, mark: HighWater) -> dict[str, Any]:
        scale = self.bytes_per_element
        return {
            "time_s": mark.time,
            "bytes": mark.elements * scale,
            "by_kind_bytes": {name: size * scale for name, size in mark.held.items()},
            "text": mark.text(self.timeline, scale),
        }


def _form(form: ClosedForm) -> dict[str, Any]:
    """Return a closed form as data."""
    return {
        "formula": form.formula,
        "condition": form.condition,
        "holds": form.holds,
        "textbook_s": form.textbook_s,
        "with_free_communication_s": form.free_s,
        "measured_s": form.measured_s,
        "textbook_fraction": form.fraction(form.textbook_s),
        "with_free_communication_fraction": form.fraction(form.free_s),
        "measured_fraction": form.fraction(form.measured_s),
    }
