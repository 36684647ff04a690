"""One step of a pipeline: a kind of work, on one stage, for one microbatch.

The text form is the one of `torch.distributed.pipelining`: stage, kind, microbatch, as in `2F0`.
Communication is no action here: it follows from where the stages are.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from minitrain.errors import UsageError

Kind = Literal["F", "B", "I", "W"]
"""F forward, B full backward, I gradient of the input, W gradient of the weights (B = I and W together)."""

KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}

# Nine digits are more than any schedule needs; without a limit, a typing error could name 10^30 stages.
_TEXT = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a rank.

    Args:
        kind: F, B, I or W.
        stage: the stage of the model that it works on, counted from 0.
        microbatch: the microbatch that it works on, counted from 0.

    Raises:
        UsageError: for an unknown kind or a negative number.

    >>> str(Action("F", stage=2, microbatch=0))
    '2F0'
    """

    kind: Kind
    stage: int
    microbatch: int

    def __post_init__(self) -> None:
        """Refuse what no schedule can hold."""
        if self.kind not in KINDS:
            raise UsageError(f"an action's kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.stage < 0 or self.microbatch < 0:
            raise UsageError(f"stage ({self.stage}) and microbatch ({self.microbatch}) are counted from 0")

    def __str__(self) -> str:
        """Return the compact text form, `2F0`."""
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def from_text(cls, text: str) -> "Action":
        """Read the compact text form.

        Args:
            text: stage, kind and microbatch without anything between them, as in `2F0`.

        Raises:
            UsageError: if the text has another form.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is no action; write stage, F, B, I or W, and microbatch, as in 2F0")
        stage, kind, microbatch = match.groups()
        return cls(KINDS[kind], int(stage), int(microbatch))


Cell = tuple[Action, ...]
"""One cell of a schedule's grid: nothing (idle), one action, or several fused to overlap, in order."""
