"""Processes that tests of real runs start and look for."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

MARK = "MINITRAIN_TEST"


def marked(mark: str) -> dict[str, str]:
    """Return an environment that the processes of a run inherit, by which they are found."""
    return {**os.environ, MARK: mark}


def left(mark: str) -> list[str]:
    """Return the processes that run with a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if path.parent.name != str(os.getpid()) and f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


def minitrain() -> list[str]:
    """Return the command line's first words."""
    return [sys.executable, "-m", "minitrain"]


def wait_for(condition: Any, limit_s: float = 60.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
