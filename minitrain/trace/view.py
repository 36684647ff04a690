"""What a picture says beside its bars, and the units it says it in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minitrain.tensors import BYTES_PER_ELEMENT


@dataclass(frozen=True, slots=True)
class View:
    """The words and units of one picture.

    Args:
        title: what is shown, such as the strategy and the hardware.
        facts: short texts for the line below it, such as "step 12.3 ms" and "MFU 41 %".
        step_time: the step time, s; the latest end of the log if None.
        capacity_bytes: memory of the device, bytes, drawn as a line; None where there is none.
        bytes_per_element: bytes of one element of memory.
    """

    title: str = ""
    facts: Sequence[str] = ()
    step_time: float | None = None
    capacity_bytes: float | None = None
    bytes_per_element: float = BYTES_PER_ELEMENT

    @property
    def subtitle(self) -> str:
        """The facts in one line."""
        return " · ".join(self.facts)
