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
_MOST_UNSEEN = 5_000_000

_lock = threading.Lock()
_before: list[tuple[int, int, int]] = []  # thresholds found by each run that goes on, in whatever thread
_unseen = 0  # objects that grew old since the last look at all of them


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Let the cycle collector run rarely; the last of several runs at once restores its thresholds."""
    with _lock:
        _before.append(gc.get_threshold())
        gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        with _lock:
            found = _before.pop()
            if not _before:
                _grow_old()
                gc.set_threshold(*found)


def _grow_old() -> None:
    """Count what a run leaves as old; the collector would look through it as soon as anything new is made.

    It does not count what grows old so when it decides whether to look at everything, so that is done here.
    """
    global _unseen  # noqa: PLW0603  (there is one collector)
    if gc.get_freeze_count():  # what somebody else has frozen would thaw
        return
    _unseen += gc.get_count()[0]
    gc.freeze()
    gc.unfreeze()
    if _unseen > _MOST_UNSEEN:
        _unseen = 0
        gc.collect()
