"""The figures of machines that were simulated one after the other, as columns like those of `JointFigures`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from minitrain.run.result import Run

COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "step_time": "step_time_s",
        "load_time": "load_time_s",
        "peak_memory_bytes": "peak_memory_bytes",
        "capacity_bytes": "capacity_bytes",
        "fits": "fits",
        "mfu": "mfu",
        "hfu": "hfu",
        "computing_fraction": "computing_fraction",
        "exposed_comm_fraction": "exposed_comm_fraction",
        "bubble_fraction": "bubble_fraction",
        "span_bubble": "span_bubble_s",
        "makespan_bubble": "makespan_bubble_s",
        "tokens_per_second": "tokens_per_second",
        "tokens_per_second_per_rank": "tokens_per_second_per_rank",
        "energy_joules": "energy_joules",
        "dollars": "dollars",
        "num_events": "num_events",
    }
)
"""The columns: the attribute that has each, and its name in tables."""

_ASKED_OTHERWISE: Mapping[str, Callable[[Run], Any]] = MappingProxyType(
    {"computing_fraction": lambda run: run.breakdown.computing_fraction, "fits": lambda run: run.oom is None}
)
"""Columns that are no attribute of a run: what gives them."""


class SeparateFigures:
    """Figures of machines, taken from a run of each; the runs are not kept."""

    def __init__(self) -> None:
        self._figures: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "oom")}
        self._summaries: list[dict[str, Any]] = []

    def add(self, run: Run) -> None:
        """Take the figures of the next machine."""
        for name, values in self._figures.items():
            values.append(_ASKED_OTHERWISE.get(name, attrgetter(name))(run))
        self._summaries.append(run.summary())

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_figures"][name]
        except KeyError:
            raise AttributeError(f"machines that were simulated alone have no column {name!r}") from None

    def names(self, hardware: Sequence[Any]) -> list[str]:  # noqa: ARG002  (a parameter of `JointFigures.names`)
        """Return what runs call the hardware of each machine."""
        return [summary["hardware"] for summary in self._summaries]

    def summaries(self, hardware: Sequence[Any]) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return what `Run.summary` says on each machine."""
        return self._summaries
