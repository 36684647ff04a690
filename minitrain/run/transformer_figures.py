"""What `Run` shows of a transformer's step: tokens, utilization with recomputation, communication by axis.

It is a file of its own, since `minitrain.run.result` is long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minitrain.analysis.breakdown import AxisTotal
    from minitrain.events import Event
    from minitrain.run.trained_model import TrainedModel


class TransformerFigures:
    """Figures of a step; those of tokens and recomputation are None for workloads that have none.

    Attributes:
        trained_model: the transformer that was trained.
        world_size: number of ranks.
        global_batch_size: samples of the step.
        useful_flop: floating-point operations that the step has to do.
        meshes: size by axis of each mesh that the ranks have made.
    """

    trained_model: TrainedModel | None
    world_size: int
    global_batch_size: int
    useful_flop: float
    meshes: Sequence[Mapping[str, int]]

    if TYPE_CHECKING:

        @property
        def mfu(self) -> float | None:
            """Model FLOPs utilization."""
            ...

        @cached_property
        def step_time(self) -> float:
            """What the step takes, s."""
            ...

        @property
        def class_logs(self) -> Sequence[Sequence[Event]]:
            """The logs that figures are made from."""
            ...

        @property
        def ranks_of_class_logs(self) -> Sequence[int]:
            """The rank whose log each of them is."""
            ...

    @property
    def dropped_token_fraction(self) -> float | None:
        """Share of the copies of tokens that experts did not take; None where experts are not divided among ranks."""
        return None if self.trained_model is None else self.trained_model.dropped_token_fraction

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilization: `mfu` with what backward computed again (Korthikanti et al. 2022, section 6.3).

        None where durations were given by hand, and for workloads that say nothing of recomputation.
        """
        if self.mfu is None or self.trained_model is None or not self.useful_flop:
            return None
        return self.mfu * (1 + self.trained_model.recomputed_flop / self.useful_flop)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens that all ranks together train on in a second; None for workloads that have no tokens."""
        if self.trained_model is None or not self.step_time:
            return None
        return self.global_batch_size * self.trained_model.seq_len / self.step_time

    @property
    def tokens_per_second_per_rank(self) -> float | None:
        """Tokens a second of one rank's share; None for workloads that have no tokens."""
        return None if self.tokens_per_second is None else self.tokens_per_second / self.world_size

    @cached_property
    def communication_by_axis(self) -> dict[str, AxisTotal]:
        """What a rank communicates along each axis of its mesh, on average: operations, bytes, and s, exposed too."""
        from minitrain.analysis.breakdown import mean_by_axis, totals_of_log  # noqa: PLC0415

        ranks = zip(self.ranks_of_class_logs, self.class_logs, strict=True)
        return mean_by_axis([totals_of_log(log, rank, self.world_size, self.meshes) for rank, log in ranks])
