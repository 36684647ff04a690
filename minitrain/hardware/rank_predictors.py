"""A predictor for each rank, where ranks run on different devices, and what the devices come to together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from minitrain.errors import UsageError

if TYPE_CHECKING:
    from minitrain.hardware.price import Predictor
    from minitrain.workloads.workload import Workload


@final
class RankPredictors:
    """What prices the operations of each rank of a run, in the place of one predictor for all.

    The ranks train one workload and share one network: what they do together is priced by the predictor of the lowest
    rank that takes part.

    Args:
        predictors: one a rank.

    Raises:
        UsageError: the predictors are of different workloads.
    """

    def __init__(self, predictors: Sequence[Predictor]) -> None:
        self.predictors = tuple(predictors)
        for rank, predictor in enumerate(self.predictors):
            if predictor.workload is not self.workload:
                raise UsageError(
                    f"all ranks of a run must train the same workload, but that of rank {rank} is "
                    f"{predictor.workload!r:.80} and that of rank 0 {self.workload!r:.80}; give all predictors one",
                    rank=rank,
                )

    @property
    def workload(self) -> Workload:
        """What all ranks train."""
        return self.predictors[0].workload

    @property
    def peak_flop_per_s(self) -> float | None:
        """The mean of the devices' peak rates, so that world_size times it is that of all; None if any has none."""
        rates = [predictor.peak_flop_per_s for predictor in self.predictors]
        known = [rate for rate in rates if rate is not None]
        return math.fsum(known) / len(known) if len(known) == len(rates) else None

    @property
    def capacity_bytes(self) -> float | None:
        """The memory of each device if all have the same; None otherwise, or where there is no device."""
        capacities = {predictor.capacity_bytes for predictor in self.predictors}
        return capacities.pop() if len(capacities) == 1 else None


def predictor_of(predictor: Predictor | RankPredictors, rank: int) -> Predictor:
    """Return what prices the operations of one rank, where ranks may or may not have predictors of their own."""
    return predictor.predictors[rank] if isinstance(predictor, RankPredictors) else predictor
