"""How far a simulation is, to be read from another thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minitrain.engine.model import Model


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far the ranks of a run are, at the moment of asking; asking does not disturb them.

    Args:
        models: those of the ranks that are simulated.
        ranks_a_model: how many ranks each of them stands for; 1 unless the run is folded.
    """

    models: Sequence[Model]
    ranks_a_model: int = 1

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.models) * self.ranks_a_model

    @property
    def ranks_done(self) -> int:
        """Number of ranks that have returned."""
        return len(self.models[0].dist.detector.finished_ranks) * self.ranks_a_model

    @property
    def num_events(self) -> int:
        """Number of events of all ranks so far."""
        return sum(len(model._log) for model in self.models) * self.ranks_a_model

    def __str__(self) -> str:
        return f"{self.ranks_done} of {self.num_ranks} ranks done, {self.num_events:,} events so far"


Watch = Callable[[RunProgress], None]
