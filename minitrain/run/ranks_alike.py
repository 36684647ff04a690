"""Which logs a run's figures and pictures are made from: all, or one for each class of ranks that do the same.

Figures are made from `class_logs`, and pictures from `drawn`. In a run of all ranks these are the logs themselves. A
folded run has one log for each class of ranks (see `minitrain.folding.run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minitrain.events import RECV
from minitrain.run.ranks_once import Repeated, by_rows
from minitrain.run.sureness import remark_on
from minitrain.workloads.matmul import NOTES

if TYPE_CHECKING:
    from minitrain.analysis.timeline import Timeline
    from minitrain.events import Event, MemoryChange


class RanksAlike:
    """Which logs a run's figures and pictures are made from.

    Attributes:
        world_size: number of ranks.
        logs: the events of each rank.
        models: the model of each rank.
        memory_journals: every change of every store of each rank, if they were kept.
        workload: name of what was trained.
        peak_flop_per_s: the device's peak rate; None where durations were given by hand.
        trained_model: the transformer that was trained, or None.
    """

    world_size: int
    logs: Sequence[Sequence[Event]]
    models: Sequence[Any]
    memory_journals: Sequence[Sequence[MemoryChange]]
    workload: str
    peak_flop_per_s: float | None
    trained_model: Any

    if TYPE_CHECKING:

        @property
        def mfu(self) -> float | None:
            """Model FLOPs utilization."""
            ...

        @property
        def timeline(self) -> Timeline:
            """The events as columns."""
            ...

        @property
        def step_timeline(self) -> Timeline:
            """The columns that figures of the step are made from."""
            ...

    @property
    def is_folded(self) -> bool:
        """Whether one rank of each class of ranks that do the same was simulated, and not every rank."""
        return False

    @property
    def num_ranks_a_class(self) -> int:
        """How many ranks each of `class_logs` stands for; 1 unless the run was folded."""
        return 1

    @property
    def class_logs(self) -> Sequence[Sequence[Event]]:
        """The logs that figures are made from: one for each class of a folded run, else all."""
        return self.logs

    @property
    def class_models(self) -> Sequence[Any]:
        """The models that those logs are of."""
        return self.models

    @property
    def notes(self) -> Sequence[str]:
        """What pictures and tables say beside the figures."""
        by_hand = self.peak_flop_per_s is None
        of_layers = () if by_hand or self.workload not in NOTES else (NOTES[self.workload],)
        trained = self.trained_model
        remark = remark_on(self.mfu, in_eight_bits=bool(trained.peak_of)) if trained else ""
        return (*of_layers, remark) if remark else of_layers

    @property
    def messages(self) -> str | None:
        """How ranks receive messages: "hidden" behind compute, or "waited for"; None without any, or in a read file."""
        peers = [found for model in self.class_models for found in model._peers.items()]
        waits = [stream.is_waited_for for (kind, _), stream in peers if kind == RECV]
        return ("waited for" if any(waits) else "hidden") if waits else None

    @property
    def ranks_of_class_logs(self) -> Sequence[int]:
        """The rank whose log each of them is."""
        return range(self.world_size)

    def repeated_ranks(self, most_events: int | None = None) -> Sequence[Repeated] | None:
        """Return the ranks that did what others did (see `minitrain.run.ranks_once`).

        Args:
            most_events: None is returned where the others have more events.
        """
        return by_rows(self.logs, most_events)

    @property
    def timeline_of_classes(self) -> Timeline:
        """The columns of `class_logs`, whose peers are rows."""
        return self.timeline

    @property
    def draws_classes(self) -> bool:
        """Whether pictures have a row for each class of ranks that do the same, and not for each rank."""
        return False

    @property
    def drawn(self) -> Timeline:
        """What pictures show: the timeline of the step, a row a rank."""
        return self.step_timeline

    @property
    def drawn_journals(self) -> Sequence[Sequence[MemoryChange]]:
        """Every change of every store of what pictures show."""
        return self.memory_journals
