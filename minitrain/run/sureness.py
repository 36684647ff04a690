"""How sure a run's step time is: how far validated runs like it were off.

It is a file of its own, since it alone of this room imports `minitrain.validation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class SurenessFigures:
    """How sure a run's step time is.

    Attributes:
        priced_by: what priced its operations.
        models: those of its ranks.
        hardware: the name of its hardware config.
        world_size: its ranks.
    """

    priced_by: str
    models: Sequence[Any]
    hardware: str
    world_size: int

    @property
    def sureness(self) -> str:
        """How far validated runs like this one were off, in words; see `minitrain.validation.similar_runs`.

        Only prices of kernels were compared with measurements.
        """
        from minitrain.validation.similar_runs import NOTHING_LIKE_IT, how_sure  # noqa: PLC0415

        if not self.priced_by.startswith("kernels"):
            return NOTHING_LIKE_IT
        model = getattr(getattr(self.models[0].runtime_predictor, "workload", None), "model", None)
        found = how_sure(self.hardware, is_gated=getattr(model, "mlp", "") == "swiglu", world_size=self.world_size)
        return NOTHING_LIKE_IT if model is None or found is None else str(found)

    @property
    def sureness_of_kernels(self) -> str:
        """What a headline adds to a step time that was priced by kernels: ", +- 6 % (...)"."""
        return f", {self.sureness}" if self.priced_by.startswith("kernels") else ""
