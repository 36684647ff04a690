"""Worker processes that leave Ctrl-C to the process that waits for them.

A terminal sends Ctrl-C to all processes of a command. A worker that is interrupted prints a traceback, also while it
still imports, when no initializer of a pool has run yet. So SIGINT is blocked before a worker starts, which inherits
that, and the process that waits for the worker ends it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import final


def worker_pool(num_processes: int) -> ProcessPoolExecutor:
    """Return a pool of fresh processes, which Ctrl-C does not reach.

    They are spawned, not forked: the caller may have threads, and libraries that no fork survives.
    """
    return ProcessPoolExecutor(num_processes, _CONTEXT, _ignore_interrupts)


@final
class SparedProcess(SpawnProcess):
    """A process that starts with SIGINT blocked."""

    def start(self) -> None:
        """Start it."""
        with _interrupts_blocked():
            super().start()


@final
class _SparedContext(SpawnContext):
    """The context in which a pool makes its processes."""

    Process = SparedProcess


_CONTEXT = _SparedContext()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Keep SIGINT from this thread; one that comes meanwhile is delivered afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows, which has the initializer alone
        yield
        return
    resource_tracker.ensure_running()  # its own start would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_interrupts() -> None:  # pragma: no cover  (only in a worker)
    """Ignore Ctrl-C where signals cannot be blocked."""
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
