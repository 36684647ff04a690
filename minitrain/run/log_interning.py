"""Interning the memory figures of a large run: events with equal figures share one int.

Every event notes how much memory its rank holds, as an int of its own, which is a third of the event's size. A rank's
memory goes up and down by the same sizes, so few of these figures differ. A run of many operations therefore goes over
its new events from time to time and replaces equal figures by one object. A small run never does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from minitrain.operations import MEMORY, STRIDE

if TYPE_CHECKING:
    from minitrain.engine.model import Model


class SharedSizes:
    """Lets events with the same memory figure share one int.

    Args:
        logs: the logs of all ranks, each with its `rows`.
    """

    __slots__ = ("_logs", "_seen")

    def __init__(self, logs: Iterable[Any]) -> None:
        self._logs = list(logs)
        self._seen = [0] * len(self._logs)

    def share(self) -> None:
        """Go over the events since the last time."""
        shared: dict[int, int] = {}  # new each time: if all figures differed, it would only grow
        for place, log in enumerate(self._logs):
            rows = log._rows
            column = slice(self._seen[place] + MEMORY, None, STRIDE)
            rows[column] = [shared.setdefault(units, units) for units in rows[column]]
            self._seen[place] = len(rows)


@contextlib.contextmanager
def sharing_sizes(models: Sequence[Model]) -> Iterator[None]:
    """Go over the events of some ranks from time to time while they run."""
    detector = models[0].dist.detector
    detector.housekeeping = SharedSizes(model._log for model in models).share
    try:
        yield
    finally:
        detector.housekeeping = None  # it would keep the logs alive
