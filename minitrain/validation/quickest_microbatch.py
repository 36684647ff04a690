"""Rows that do not say their microbatch: "quickest" in the column mbs.

Authors who publish what a system reaches have chosen its best microbatch. So the simulated one is the power of two that
is predicted to be quickest among those that fit into memory. The measured time has no part in the choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from minitrain.errors import MinitrainError
from minitrain.hardware.platforms import Platform
from minitrain.validation.cases import Case, case_of
from minitrain.validation.prediction import Prediction, predict
from minitrain.validation.rows import LackingError, Row

QUICKEST = "quickest"


def case_and_prediction(
    row: Row, platform: str | Platform | None, without: Sequence[str] = ()
) -> tuple[Case, Prediction]:
    """Return what is simulated for a row, and what it is predicted to take.

    Args:
        row: the row.
        platform: as for `case_of`.
        without: terms of the price to leave out.

    Raises:
        LackingError: the row lacks what the model needs, or no microbatch fits the device.
        MinitrainError: it cannot be simulated.
    """
    if row.text("mbs") != QUICKEST:
        case = case_of(row, platform)
        return case, predict(case, without)
    tried = list(_tried(row, platform, without))
    if not tried:
        raise LackingError("mbs is not published, and no microbatch both divides its batch and fits the device")
    case, found = min(tried, key=lambda pair: pair[1].seconds)
    chosen = f"mbs not published: {case.layout.microbatch_size}, the quickest that fits"
    return replace(case, assumed=(chosen, *case.assumed)), found


def _tried(row: Row, platform: str | Platform | None, without: Sequence[str]) -> Iterator[tuple[Case, Prediction]]:
    """Yield each microbatch that can be simulated and fits."""
    size, most = 1, row.count("gbs") // row.count("dp")
    while size <= most:
        try:
            case = case_of(Row(row.table, {**row.values, "mbs": str(size)}, row.line), platform)
            found = predict(case, without)
        except (LackingError, MinitrainError):
            found = None
        if found is not None and found.memory["needed"] <= case.system.mem_hbm.usable_bytes:
            yield case, found
        size *= 2
