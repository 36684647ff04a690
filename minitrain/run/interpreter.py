"""What a run asks of Python's interpreter while it goes on, and gives back: the cycle collector, and other threads.

A run makes many objects that live until its end, and few reference cycles. With the thresholds of a fresh interpreter,
the collector traverses all events and tensors again and again, which is a third of the time of a large run.

A strict run counts a tensor until it is freed. A thread that samples stacks (the profiler of Dask's workers) keeps the
frames that it sees, and what their variables hold, as long as it likes, so that a peak would depend on chance. Python
tells audit hooks when a thread asks for the frames of others. It then waits until the event loop of each strict run has
a moment, where no strategy is on the stack.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
from collections.abc import Iterator

from minitrain.engine.transport.event_loop import RankLoop

RARELY = (1_000_000, 50, 1000)
"""Thresholds of the collector during a run."""

_MOST_UNTRAVERSED = 2_000_000
_ASK_AGAIN_AFTER = 100  # runs beside objects that somebody else has frozen

_FRAMES = frozenset({"sys._current_frames", "sys._current_exceptions"})
"""Audit events of whoever asks for the frames of other threads."""

_LONGEST_WAIT_S = 5.0  # after which frames are given nevertheless: a strategy may compute for ever
_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05  # of a run, for who waits for several
_working: dict[int, None] = {}  # threads in which ranks of strict runs are at work
_asking: dict[object, None] = {}  # who waits for frames
_guards = False

_lock = threading.Lock()
_before: list[
    tuple[int, tuple[int, int, int]]
] = []  # collections and thresholds when each present run began, in any thread
_untraversed = 0  # objects that became old since the last full collection here
_runs_beside_frozen = 0  # how many more runs assume that somebody else has frozen objects


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Let the cycle collector run rarely; the last of several runs at once restores its thresholds."""
    with _lock:
        _before.append((gc.get_count()[1], gc.get_threshold()))
        gc.set_threshold(*RARELY)
    is_done = False
    try:
        yield
        is_done = True  # after an error, cycles through its traceback are left to the collector
    finally:
        with _lock:
            middle_aged, thresholds = _before.pop()
            if not _before:
                if is_done:
                    _age_garbage(middle_aged)
                gc.set_threshold(*thresholds)


def _age_garbage(middle_aged: int) -> None:
    """Move what a run leaves behind into the oldest generation, which is traversed least often.

    Otherwise, the collector would traverse it as soon as new objects are made. A finished run has hardly any reference
    cycles, so it is freed when it is dropped. The collector's own count of old objects does not include those that are
    moved this way. They are counted here instead, and many of them bring about a full collection.

    Args:
        middle_aged: collections of the youngest generation since one of the middle generation, when the run began.
    """
    global _untraversed, _runs_beside_frozen  # noqa: PLW0603  (there is one collector)
    if _runs_beside_frozen:
        _runs_beside_frozen -= 1
        return
    if gc.get_freeze_count():  # objects that somebody else has frozen would be unfrozen
        _runs_beside_frozen = _ASK_AGAIN_AFTER  # Python counts them one by one: 10 ms for a million
        return
    young, collections, _ = gc.get_count()
    _untraversed += young + max(0, collections - middle_aged) * RARELY[0]
    gc.freeze()
    gc.unfreeze()
    if _untraversed > _MOST_UNTRAVERSED:
        _untraversed = 0
        gc.collect()


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Give other threads the frames of this one only while its event loop has a moment, where that tells when."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    if not isinstance(loop, RankLoop):
        yield
        return
    _guard_beside_threads()
    watcher = _Moments(thread)
    loop.watchers[watcher] = None
    _working[thread] = None
    try:
        yield
    finally:
        _working.pop(thread, None)  # another run of this thread may have ended before
        del loop.watchers[watcher]


class _Moments:
    """Lets a strict run pause for threads that wait for frames.

    Args:
        thread: that of the run.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread

    def look(self, now_s: float) -> float:
        """Let whoever waits now have the frames."""
        _guard_beside_threads()
        waiting = set(_asking)
        if waiting:
            _working.pop(self._thread, None)
            until = time.monotonic() + _LONGEST_PAUSE_S
            while time.monotonic() < until and not waiting.isdisjoint(_asking):
                time.sleep(_PAUSE_S)
            _working[self._thread] = None
        return now_s + _LONGEST_PAUSE_S

    def rest(self, *, beside_old_threads: bool) -> bool:  # noqa: ARG002  (a watcher's)
        """Begin nothing."""
        return False


def _guard_beside_threads() -> None:
    """Guard the frames where other threads are; the hook stays for ever, and makes later runs some percent slower."""
    global _guards  # noqa: PLW0603
    if not _guards and threading.active_count() > 1:
        sys.addaudithook(_guard_frames)
        _guards = True


def _guard_frames(event: str, _: object) -> None:
    """Let a thread wait that asks for the frames of others, while ranks of strict runs are at work."""
    if event not in _FRAMES or not _working or threading.get_ident() in _working:
        return
    until, mine = time.monotonic() + _LONGEST_WAIT_S, object()
    _asking[mine] = None
    # nothing is called from the last look at `_working` until the frames are taken, so no other thread comes between
    while time.monotonic() < until and _working:
        time.sleep(_PAUSE_S)
    del _asking[mine]
