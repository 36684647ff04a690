"""How sure a run's figures are: how far validated runs like it were off, and figures that no device was measured at.

It is a file of its own, since it alone of this room imports `minitrain.evidence`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    """

    priced_by: str
    trained_model: TrainedModel | None
    meshes: Sequence[Mapping[str, int]]
    hardware: str
    world_size: int

    @property
    def sureness(self) -> str:
        """How far validated runs like this one were off, in words; see `minitrain.evidence.similar_runs`."""
        kind = "" if self.trained_model is None else self.trained_model.kind
        axes = {axis: size for mesh in self.meshes for axis, size in mesh.items()}
        return sureness_of(self.priced_by, self.hardware, kind, axes, self.world_size)

    @property
    def headline_sureness(self) -> str:
        """What a headline adds to the step time of a transformer: ", +- 6 % (...)"."""
        return "" if self.trained_model is None else f", {self.sureness}"


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
