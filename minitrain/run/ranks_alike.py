"""Which logs a run's figures and pictures are made from: all, or one for each class of ranks that do the same.

Figures are made from `class_logs`, and pictures from `drawn`. In a run of all ranks these are the logs themselves. A
folded run has one log for each class of ranks (see `minitrain.folding.run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    """

    world_size: int
    logs: Sequence[Sequence[Event]]
    models: Sequence[Any]
    memory_journals: Sequence[Sequence[MemoryChange]]

    if TYPE_CHECKING:

        @property
        def timeline(self) -> Timeline:
            """The events as columns."""
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
    def ranks_of_class_logs(self) -> Sequence[int]:
        """The rank whose log each of them is."""
        return range(self.world_size)

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
        """What pictures show: the timeline, a row a rank."""
        return self.timeline

    @property
    def drawn_journals(self) -> Sequence[Sequence[MemoryChange]]:
        """Every change of every store of what pictures show."""
        return self.memory_journals
