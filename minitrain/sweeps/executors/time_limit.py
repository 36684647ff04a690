"""A time limit for a call: it interrupts what hangs in Python, or waits in its event loop.

In the main thread of a process an alarm interrupts whatever Python does, sleeping too. In another thread (a worker of
Dask) Python raises an exception there when the next line runs; an event loop that waits is woken for that. A library's
call that never comes back to Python cannot be interrupted.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from minitrain.errors import MinitrainError, UsageError
from minitrain.run.event_loops import run_to_end
from minitrain.transport.event_loop import RankLoop

T = TypeVar("T")

_AGAIN_S = 1.0  # after which the exception is raised again, in case the strategy caught it
_AWAKE_S = 0.25  # how often an event loop wakes up, and so how late a limit may act


class TimeLimitError(MinitrainError):
    """A simulation took longer than it may."""


class _OverTimeError(KeyboardInterrupt):
    """The time is over; it is a KeyboardInterrupt, so that a simulation ends as on Ctrl-C, whatever it does."""


def require_time_limit(seconds: float | None) -> None:
    """Require a positive number of seconds, or None.

    Raises:
        UsageError: it is no positive number.
    """
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
        raise UsageError(f"time_limit_s must be a number of seconds above 0, or None, got {seconds!r}")


def run_within(seconds: float, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end in a loop of its own, and return its result.

    Args:
        seconds: how long it may take, s.
        start: makes the coroutine.

    Raises:
        TimeLimitError: it took longer.
    """
    is_main = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    alarm = _Alarm(seconds) if is_main else _Timer(seconds)
    try:
        try:
            return run_to_end(lambda: _awake(start))
        finally:
            alarm.stop()
    except _OverTimeError:
        alarm.stop()  # it may have raised while it was being stopped
        raise TimeLimitError(
            f"the simulation did not end within time_limit_s={seconds:g}; give it more time, or simulate it alone to "
            "see where it hangs",
            time_limit_s=seconds,
        ) from None


async def _awake(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await a coroutine in a loop that wakes often: in a thread, only a line that runs can raise the exception."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, RankLoop)  # of `run_to_end`
    loop.longest_wait_s = _AWAKE_S
    return await start()


class _Alarm:
    """A signal to the main thread, after some seconds and then again and again.

    Args:
        seconds: after how many.
    """

    def __init__(self, seconds: float) -> None:
        self._before = signal.signal(signal.SIGALRM, _raise)
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)

    def stop(self) -> None:
        """Send no more signals."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)


def _raise(_signal: int, _frame: Any) -> None:
    raise _OverTimeError


class _Timer:
    """A thread that raises an exception in the one that made it, after some seconds and then again and again.

    Args:
        seconds: after how many.
    """

    def __init__(self, seconds: float) -> None:
        self._thread_id = threading.get_ident()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, args=(seconds,), name="minitrain-time-limit", daemon=True).start()

    def stop(self) -> None:
        """Raise no more, and take back an exception that was not raised yet."""
        self._stopped.set()
        with self._lock:
            _raise_in(self._thread_id, None)

    def _run(self, seconds: float) -> None:
        """Wait and raise, until it is stopped."""
        while not self._stopped.wait(seconds):
            with self._lock:
                if not self._stopped.is_set():
                    _raise_in(self._thread_id, _OverTimeError)
            seconds = _AGAIN_S


def _raise_in(thread_id: int, error: type[BaseException] | None) -> None:
    """Have an exception raised in a thread, or take back the one that was to be raised."""
    raised = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), raised)
