"""What is to be simulated folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minitrain.folding.known_splits import Parted
from minitrain.folding.model import FoldedModel
from minitrain.folding.rank_values import Fold
from minitrain.hardware.price import Predictor
from minitrain.run.strategy_loading import Strategy
from minitrain.transport.dist import Dist


@dataclass(frozen=True)
class Job:
    """What is to be simulated; fields as the parameters of `simulate_async`, and what is remembered of others."""

    name: str
    function: Strategy
    predictor: Predictor
    hardware: str
    options: Mapping[str, Any]
    world_size: int
    num_layers: int
    global_batch_size: int
    p2p_buffer: int | None
    check: bool
    strict_memory: bool
    parted: Parted = field(default_factory=Parted)

    def transport(self) -> Dist:
        """Return a transport for one attempt."""
        return Dist(self.world_size, p2p_buffer=self.p2p_buffer)

    def model(self, fold: Fold, rank: int, dist: Dist) -> FoldedModel:
        """Return the model of the class of a rank, its lowest one."""
        return FoldedModel(fold, rank, dist, self.num_layers, self.global_batch_size, self.predictor)
