"""How sure a run's figures are: how far validated runs like it were off, and figures that no device was measured at.

It is a file of its own, since it alone of this room imports `minitrain.evidence`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from minitrain.machine.calibrated import CALIBRATED
from minitrain.operations import PRICE, STRIDE
from minitrain.run.above import above
from minitrain.run.trained_model import TrainedModel

MOST_MFU = 0.75
"""Published steps of transformers stay below this MFU; those of the package's tables do by far."""


class SurenessFigures:
    """How sure a run's figures are.

    Attributes:
        priced_by: what priced its operations.
        trained_model: the transformer that it trains, or None.
        meshes: sizes by axis, of each mesh that ranks were laid out on.
        hardware: the name of its hardware config.
        world_size: its ranks.
        prepared: how it was simulated; None of one that was read.
    """

    priced_by: str
    trained_model: TrainedModel | None
    meshes: Sequence[Mapping[str, int]]
    hardware: str
    world_size: int
    prepared: Any

    @property
    def sureness(self) -> str:
        """How far validated runs like this one were off, in words; see `minitrain.evidence.similar_runs`."""
        trained = self.trained_model
        kind = "" if trained is None else f"partly trained {trained.kind}" if trained.trained else trained.kind
        if self.priced_by.startswith(CALIBRATED):
            return self.priced_by
        axes = {axis: size for mesh in self.meshes for axis, size in mesh.items()}
        return sureness_of(self.priced_by, self.hardware, kind, axes, self.world_size)

    @property
    def headline_sureness(self) -> str:
        """What a headline adds to the step time of a transformer: ", +- 6 % (...)"."""
        is_said_before = self.trained_model is None or self.priced_by.startswith(CALIBRATED)
        return "" if is_said_before else f", {self.sureness}"

    @property
    def interval(self: Any) -> tuple[float, float] | None:
        """Where a measured step would lie, s, with the chance `minitrain.machine.calibrated.LEVEL`.

        None where no calibration priced the run, or one of too few measurements, and in a run that was read.
        """
        calibration = getattr(getattr(self.prepared, "predictor", None), "calibration", None)
        factors = calibration and calibration.factors()
        return factors and (factors[0] * self.step_time, factors[1] * self.step_time)

    @property
    def doubts(self: Any) -> list[str]:
        """What the step rests on that a calibration has not measured: what to measure next, in order of its share."""
        predictor: Any = getattr(self.prepared, "predictor", None)
        if not hasattr(predictor, "doubts"):
            return []
        counts = max((Counter(map(id, log._rows[PRICE::STRIDE])) for log in self.logs), key=Counter.total)
        found: list[str] = predictor.doubts(counts, self.step_time)
        return found


def sureness_of(priced_by: str, hardware: str, kind: str, axes: Mapping[str, int], world_size: int) -> str:
    """Return how far validated runs like one were off, in words.

    Args:
        priced_by: what priced its operations.
        hardware: the name of its hardware config.
        kind: of its model.
        axes: sizes by axis.
        world_size: its ranks.
    """
    likeness = above("sureness").Likeness
    given = likeness(priced_by=priced_by, hardware=hardware, kind=kind, axes=axes, world_size=world_size)
    return str(given.how_sure())


def remark_on(mfu: float | None, *, in_eight_bits: bool = False) -> str:
    """Return what is to be said of an MFU that is too good to be true; "" of others.

    Args:
        mfu: by the peak of sixteen bits.
        in_eight_bits: whether weights are multiplied in eight bits, at twice that peak.

    >>> remark_on(0.97, in_eight_bits=True)
    ''
    >>> remark_on(0.97)
    'MFU 97.0 % is more than any published step reaches (75 % at most): something that limits real ones has no price'
    """
    share = 0.0 if mfu is None else mfu / 2 if in_eight_bits else mfu
    if mfu is None or share <= MOST_MFU:
        return ""
    what = "beyond the device's peak" if share > 1 else "more than any published step reaches (75 % at most)"
    return f"MFU {100 * mfu:.1f} % is {what}: something that limits real ones has no price"
