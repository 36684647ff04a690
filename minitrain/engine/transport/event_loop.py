"""The event loop of a run, which notices when nothing can happen in it any more.

A loop can never go on exactly when its selector is asked to wait without a time limit, and nothing outside of the loop
can wake it: no file but its own pipe, no call in an executor, no signal handler, no thread. Files are the selector's;
the loop counts executor calls and signal handlers by overriding the methods that begin them. Nothing else of asyncio
is looked at.

A thread may hold a future of the run, so that one which was started during it may always wake the loop. Those that were
there before are named apart: a notebook has several, and only a run that hands them its futures can be woken by them.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from math import inf
from typing import Any, Protocol
from weakref import WeakSet

_TURNS_BETWEEN_LOOKS = 64  # of the loop, while it has callbacks to run


class Watcher(Protocol):
    """Who is asked when a loop has a moment, and when it comes to rest for ever."""

    def look(self, now_s: float) -> float | None:
        """Do what is due at a time on the loop's clock, s; return when to be asked again, None for never."""
        ...

    def rest(self, *, beside_old_threads: bool) -> bool:
        """Hear that nothing can happen any more, and return whether something was begun.

        Args:
            beside_old_threads: whether threads live that were there before the loop, and might know of it.
        """
        ...


class _Selector(selectors.DefaultSelector):
    """Says when the loop would wait, and asks the system rarely while there are callbacks to run.

    Attributes:
        can_end: returns whether nothing but a file that is ready now can wake the loop.
        before_waiting: called with the time limit of a wait, s, None for no limit, or infinity if nothing can happen
            any more; returns the limit to be taken.
        glance: called now and then while there are callbacks to run.
    """

    can_end: Callable[[], bool]
    before_waiting: Callable[[float | None], float | None]
    glance: Callable[[], object]
    _turns = 0

    def select(self, timeout: float | None = None) -> Any:
        """Return the files that are ready, after a wait if there is nothing to run."""
        if timeout is not None and timeout <= 0:
            self._turns = (self._turns + 1) % _TURNS_BETWEEN_LOOKS
            if self._turns:
                return []
            self.glance()
            return super().select(0)
        is_end = timeout is None and self.can_end()  # asked first: a thread that ends wakes the loop before
        return super().select(0) or super().select(self.before_waiting(inf if is_end else timeout))


class RankLoop(asyncio.SelectorEventLoop):
    """An event loop that tells those who watch it when nothing can happen any more.

    Args:
        waiting: a thread that waits for the loop to end, and so cannot wake it.

    Attributes:
        watchers: whom it tells.
        longest_wait_s: how long it sleeps at most, s; None for any time.
    """

    def __init__(self, waiting: threading.Thread | None = None) -> None:
        self.watchers: dict[Watcher, None] = {}
        self.longest_wait_s: float | None = None
        self._old_threads = set(threading.enumerate())
        self._harmless = WeakSet({waiting, threading.current_thread()} - {None})
        self._num_in_executors = 0
        self._signals: set[int] = set()
        selector = _Selector()
        selector.can_end, selector.before_waiting, selector.glance = self._can_end, self._before_waiting, self._look
        self._files = selector.get_map()
        super().__init__(selector)
        self._num_own_files = len(self._files)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Count the call while it is under way; the threads that it starts are idle afterwards."""
        before = set(threading.enumerate())
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self._harmless.update(set(threading.enumerate()) - before)
        self._num_in_executors += 1
        future.add_done_callback(self._end_in_executor)
        return future

    def _end_in_executor(self, _: object) -> None:
        self._num_in_executors -= 1

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Note that a signal may wake the loop."""
        super().add_signal_handler(sig, callback, *args)
        self._signals.add(sig)

    def remove_signal_handler(self, sig: int) -> bool:
        """Note that it no longer does."""
        self._signals.discard(sig)
        return super().remove_signal_handler(sig)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what went wrong as event loops do, but not what only followed from the end of a run, or of memory."""
        error = context.get("exception")
        if not (isinstance(error, asyncio.CancelledError | MemoryError) or getattr(error, "is_handled", False)):
            super().default_exception_handler(context)

    def _can_end(self) -> bool:
        """Return whether nothing that lasts can wake the loop, but for threads that were there before."""
        if self._num_in_executors or self._signals or len(self._files) > self._num_own_files:
            return False
        return self._other_threads() <= self._old_threads

    def _other_threads(self) -> set[threading.Thread]:
        """Return the threads that might wake the loop."""
        return set(threading.enumerate()) - set(self._harmless)

    def _before_waiting(self, limit_s: float | None) -> float | None:
        """Tell the watchers if this is the end, and return how long to wait, s; None for ever."""
        if limit_s == inf:
            limit_s, are_others = None, bool(self._other_threads())
            if any(watcher.rest(beside_old_threads=are_others) for watcher in list(self.watchers)):
                return 0
        limits = [limit for limit in (limit_s, self._look(), self.longest_wait_s) if limit is not None]
        return min(limits, default=None)

    def _look(self) -> float | None:
        """Let the watchers look; return how long the next one can wait, s."""
        now = self.time()
        times = [watcher.look(now) for watcher in list(self.watchers)]
        return min((max(0.0, time - now) for time in times if time is not None), default=None)
