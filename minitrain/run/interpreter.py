"""What a run asks of Python's interpreter while it goes on, and gives back: the cycle collector, and other threads.

A run makes many objects that live until its end, and few reference cycles. With the thresholds of a fresh interpreter,
the collector traverses all events and tensors again and again, which is a third of the time of a large run.

A strict run counts a tensor until it is freed. A thread that samples stacks (the profiler of Dask's workers) keeps the
frames that it sees, and what their variables hold, a little longer, so that a peak would depend on chance. It sees a
strategy only where that is interrupted for another thread; so it is not, between two looks of the event loop at its
files, where no strategy is on the stack.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator

RARELY = (1_000_000, 50, 1000)
"""Thresholds of the collector during a run."""

_MOST_UNTRAVERSED = 2_000_000
_ASK_AGAIN_AFTER = 100  # runs beside objects that somebody else has frozen

_UNDISTURBED_S = 5.0  # after which another thread has its turn nevertheless: a strategy may compute for ever
_intervals: list[float] = []  # between turns of threads, when each present strict run began

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
def undisturbed() -> Iterator[None]:
    """Let other threads run only where this one waits for its event loop; the last of several puts their turns back."""
    with _lock:
        _intervals.append(sys.getswitchinterval())
        sys.setswitchinterval(_UNDISTURBED_S)
    try:
        yield
    finally:
        with _lock:
            before = _intervals.pop()
            if not _intervals:
                sys.setswitchinterval(before)
