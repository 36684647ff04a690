"""Letting the events of a large run share what they say of memory.

Every event notes how much its rank holds, a number of its own each time, and a third of what an event takes. A rank's
memory goes up and down by the same sizes, so that few of these numbers differ. A run of many operations therefore looks
over its new events from time to time, and lets equal numbers be one object; a small one never does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from minitrain.events import MEMORY, STRIDE

if TYPE_CHECKING:
    from minitrain.rank.model import Model


class SharedSizes:
    """Let events that tell the same memory share one number.

    Args:
        logs: the logs of all ranks, each with its `rows`.
    """

    __slots__ = ("_logs", "_seen")

    def __init__(self, logs: Iterable[Any]) -> None:
        self._logs = list(logs)
        self._seen = [0] * len(self._logs)

    def share(self) -> None:
        """Look over the events since the last time."""
        shared: dict[int, int] = {}  # made anew each time, in case they all differ
        for place, log in enumerate(self._logs):
            rows = log.rows
            column = slice(self._seen[place] + MEMORY, None, STRIDE)
            rows[column] = [shared.setdefault(units, units) for units in rows[column]]
            self._seen[place] = len(rows)


@contextlib.contextmanager
def sharing_sizes(models: Sequence[Model]) -> Iterator[None]:
    """Look over the events of some ranks from time to time while they run."""
    detector = models[0].dist.detector
    detector.housekeeping = SharedSizes(model.log for model in models).share
    try:
        yield
    finally:
        detector.housekeeping = None  # which keeps the logs alive
