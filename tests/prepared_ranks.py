"""Ranks of `mt.train` that start from a process that has imported torch: each would take seconds to do so itself."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

from minitrain.training import launcher
from minitrain.training.worker import FD, main
from tests.training.processes import MARK


def be_rank(pipe: Connection, printed: Connection, environment: dict[str, str], path: list[str], folder: str) -> None:
    """Be one rank, as the launcher starts it: in a session of its own, with what it prints sent to the launcher."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment, **{FD: str(os.dup(pipe.fileno()))})
    sys.path[:] = path
    os.chdir(folder)
    for number in (1, 2):
        os.dup2(printed.fileno(), number)
    printed.close()
    pipe.close()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is what Python opened
    main()


class PreparedProcess:
    """What the launcher looks at of a `subprocess.Popen`.

    Args:
        process: of a rank.
        printed: the end of a pipe with what it prints.
    """

    def __init__(self, process: Any, printed: int) -> None:
        self._process = process
        self.pid: int = process.pid
        self.stdout = os.fdopen(printed, "rb")

    @property
    def returncode(self) -> int | None:
        """How it has ended."""
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        """Return how it has ended, if it has."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a rank", timeout or 0.0)
        return self.returncode


def prepared(rank: int, say: Callable[[str], None]) -> Any:
    """Start the process of a rank, whose lines are passed on; takes the place of the launcher's own start."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    mark = os.environ.pop(MARK, None)  # which is not of the process that ranks of all tests start from
    ensure_running()
    if mark is not None:
        os.environ[MARK] = mark
    ours, theirs = context.Pipe()
    readable, writable = os.pipe()
    printed = Connection(writable, readable=False)
    given = (theirs, printed, {"OMP_NUM_THREADS": "1", **os.environ}, list(sys.path), str(Path.cwd()))
    process = context.Process(target=be_rank, args=given)
    process.start()
    theirs.close()
    printed.close()
    popen: Any = PreparedProcess(process, readable)
    return launcher._Process(rank, popen, ours, launcher._Printed(rank, popen.stdout, say))
