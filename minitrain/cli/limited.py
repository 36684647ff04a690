"""A command whose address space is limited (`ulimit -v`) is the child of a process that tells when it crashes.

Without room for even an exception, Python and its libraries crash, or never come back; see
`minitrain.run.worker_processes`. Then the command has no words left. So a process that takes next to nothing waits for
it, passes on signals and the exit code, ends a command that is stuck, and says in one sentence why.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from typing import NoReturn

_PASSED_ON = ("SIGINT", "SIGTERM")
_CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL")
_SENT_BY_A_PROCESS = 0  # SI_USER; what a terminal sends comes to all of its processes
_STDERR = 2
_ENDED = 1


def watch_limited() -> None:
    """If the address space is limited, and there is room for it, go on in a child of this process, which waits."""
    if sys.platform != "linux":
        return
    import resource  # noqa: PLC0415  (this and what follows a command without a limit does not need)

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    signals = {signal.Signals[name] for name in ("SIGCHLD", *_PASSED_ON)}
    us, before = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with suppress(OSError, MemoryError, ImportError):
        import minitrain.run.worker_processes  # noqa: PLC0415  (once for both)

        if pid := os.fork():
            try:
                code, was_stuck = _waited_for(pid, signals)
                _end_as(code, limit, was_stuck=was_stuck)
            finally:  # whatever it lacks, this is not the command
                os._exit(_ENDED)
        minitrain.run.worker_processes.die_with(us)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _waited_for(pid: int, signals: Collection[int]) -> tuple[int, bool]:
    """Wait for the end of a command; return its exit code, below 0 if a signal ended it, and whether it was stuck."""
    from minitrain.run.worker_processes import LOOK_S, StuckProcesses  # noqa: PLC0415

    stuck, was_stuck = StuckProcesses(), False
    while True:
        news = signal.sigtimedwait(signals, LOOK_S)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), was_stuck
        if news is not None and news.si_signo != signal.SIGCHLD and news.si_code == _SENT_BY_A_PROCESS:
            os.kill(pid, news.si_signo)
        was_stuck = stuck.end(pid) or was_stuck


def _end_as(code: int, limit: int, *, was_stuck: bool) -> NoReturn:
    """End as a command did; with a sentence if it was stuck or crashed."""
    name = signal.Signals(-code).name if code < 0 else ""
    if was_stuck or name in _CRASHES:
        how = "did nothing any more but ask for memory" if was_stuck else f"crashed ({name})"
        text = (
            f"minitrain: the command {how}, as may be where memory is short: a process may take {limit / 2**20:.0f} "
            "MiB of address space here; allow more (`ulimit -v`), or ask for less\n"
        )
        with suppress(OSError):
            os.write(_STDERR, text.encode())
        os._exit(_ENDED)
    if name:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with suppress(OSError):  # SIGKILL needs no more than to be sent
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
