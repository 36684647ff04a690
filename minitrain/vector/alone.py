"""The figures of machines that were simulated one after the other, as the columns that `Together` has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitrain.run.result import Run

FIGURES = (
    "step_time",
    "peak_memory_bytes",
    "capacity_bytes",
    "oom",
    "mfu",
    "hfu",
    "computing_fraction",
    "exposed_comm_fraction",
    "bubble_fraction",
    "span_bubble",
    "makespan_bubble",
    "tokens_per_second",
    "tokens_per_second_per_rank",
    "energy_joules",
    "dollars",
    "num_events",
)
"""The figures of a run that there are columns of."""


class Alone:
    """Figures of machines, from a run of each, which is dropped."""

    def __init__(self) -> None:
        self._figures: dict[str, list[Any]] = {name: [] for name in FIGURES}
        self._summaries: list[dict[str, Any]] = []

    def add(self, run: Run) -> None:
        """Take the figures of the next machine."""
        for name, values in self._figures.items():
            values.append(run.breakdown.computing_fraction if name == "computing_fraction" else getattr(run, name))
        self._summaries.append(run.summary())

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_figures"][name]
        except KeyError:
            raise AttributeError(f"machines that were simulated alone have no column {name!r}") from None

    def names(self, hardware: Sequence[Any]) -> list[str]:  # noqa: ARG002  (a parameter of `Together.names`)
        """Return what runs call the hardware of each machine."""
        return [summary["hardware"] for summary in self._summaries]

    def summaries(self, hardware: Sequence[Any]) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return what `Run.summary` says on each machine."""
        return self._summaries
