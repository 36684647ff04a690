"""Strategies of one's own, with a file beside them: what is sent to the workers of a cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import minitrain as mt

SIZES: dict[str, Any] = {"num_layers": 4, "global_batch_size": 8, "network": "flat"}
GRID = {"world_size": [1, 2, 4], "microbatch_size": [1, 2]}
MINE = """
import os
import signal
import time
from pathlib import Path

import marks


async def mine(model, deadly=False):
    from late import answer
    if deadly and marks.is_first(Path({folder!r})):
        os.kill(os.getpid(), signal.SIGKILL)
    if model.world_size == 4:
        raise ValueError(f"{{answer}} in {{__file__}}")
    weights, states = model.load_weights(0)
    model.set_final_weight(0, weights)
    return model


async def waiting(model):
    while model.world_size == 2 and not (Path({folder!r}) / "go").exists():
        time.sleep(0.01)
    return model


async def always_deadly(model):
    if model.world_size == 2:
        time.sleep({lives_s})
        os.kill(os.getpid(), signal.SIGKILL)
    return model
"""
MARKS = """
def is_first(folder):
    try:
        (folder / "mark").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
"""


def write_strategies(folder: Path, lives_s: float = 0.0) -> Path:
    """Write strategies, of which some kill their process, one of them always after `lives_s`, and return their file."""
    (folder / "mine.py").write_text(MINE.format(folder=str(folder), lives_s=lives_s))
    (folder / "marks.py").write_text(MARKS)
    (folder / "late.py").write_text("answer = 42\n")
    return folder / "mine.py"


def alone(strategies: Any, grid: Any) -> list[dict[str, Any]]:
    """Return the rows of a sweep in this process."""
    with ThreadPoolExecutor(1) as executor:
        return mt.sweep(strategies, grid, executor, **SIZES).rows()
