"""Worker processes that leave Ctrl-C to the process that waits for them, and that end when it does.

A terminal sends Ctrl-C to all processes of a command. A worker that is interrupted prints a traceback, also while it
still imports, when no initializer of a pool has run yet. So SIGINT is blocked before a worker starts, which inherits
that, and the process that waits for the worker ends it.

A process that is killed ends nothing. So each worker watches for the end of the one that started it.
"""

from __future__ import annotations

import _thread
import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import final

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def worker_pool(num_processes: int, memory_bytes: int | None = None) -> ProcessPoolExecutor:
    """Return a pool of fresh processes, which Ctrl-C does not reach, and which end with this process.

    They are spawned, not forked: the caller may have threads, and libraries that no fork survives.

    Args:
        num_processes: how many there are at most.
        memory_bytes: address space of each, where the system can limit it; without a limit if None.
    """
    return ProcessPoolExecutor(num_processes, _CONTEXT, begin_work, (memory_bytes,))


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


def begin_work(memory_bytes: int | None = None) -> None:  # pragma: no cover  (only in a worker)
    """Ignore Ctrl-C where signals cannot be blocked, watch for the end of the parent, and limit the memory."""
    if memory_bytes is not None:
        with contextlib.suppress(ImportError, ValueError, OSError):  # not on Windows; a lower limit holds already
            import resource  # noqa: PLC0415

            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A `threading.Thread` would count as one that may wake an event loop, so that no deadlock would be found.
        _thread.start_new_thread(_end_with_parent, ())


def die_with(parent: int) -> None:
    """Let the system kill this process when the one that started it ends, where it can: also one that is stopped."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _end_with_parent() -> None:  # pragma: no cover  (only in a worker)
    """End this process, whatever it does, when its parent has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
