"""Sparing a run the cycle collector, which would look through all its events and tensors again and again.

A run makes many objects that live until its end, and few cycles. With the thresholds of a fresh interpreter, the
collector takes a third of the time of a large run.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_RARELY = (1_000_000, 50, 1000)
_MOST_UNSEEN = 2_000_000

_lock = threading.Lock()
_before: list[tuple[int, tuple[int, int, int]]] = []  # what each run that goes on found, in whatever thread
_unseen = 0  # objects that grew old since the last look at all of them


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Let the cycle collector run rarely; the last of several runs at once restores its thresholds."""
    with _lock:
        _before.append((gc.get_count()[1], gc.get_threshold()))
        gc.set_threshold(*_RARELY)
    is_done = False
    try:
        yield
        is_done = True  # an error refers to all that was going on, in circles: that is left to the collector
    finally:
        with _lock:
            middle_aged, thresholds = _before.pop()
            if not _before:
                if is_done:
                    _grow_old(middle_aged)
                gc.set_threshold(*thresholds)


def _grow_old(middle_aged: int) -> None:
    """Count what a run leaves as old; the collector would look through it as soon as anything new is made.

    A finished run refers to itself in no circle to speak of, so that nothing is lost if it is dropped. The collector
    does not count what grows old so when it decides whether to look at everything; that is done here.

    Args:
        middle_aged: collections of the young since one of the middle-aged, when the run began.
    """
    global _unseen  # noqa: PLW0603  (there is one collector)
    if gc.get_freeze_count():  # what somebody else has frozen would thaw
        return
    young, collections, _ = gc.get_count()
    _unseen += young + max(0, collections - middle_aged) * _RARELY[0]
    gc.freeze()
    gc.unfreeze()
    if _unseen > _MOST_UNSEEN:
        _unseen = 0
        gc.collect()
