"""Measuring one row: ours and the floor by turns, in a process of their own."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, TypeVar

from benchmarks.cases import Case, floor_layers
from benchmarks.floor import floor
from minitrain.run.event_loops import RARELY

T = TypeVar("T")

_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


@dataclass(frozen=True)
class Row:
    """What one case came to; times are processor time, the medians of the repeats.

    Args:
        strategy: its name.
        world_size: number of ranks.
        num_events: events made.
        events_per_s: ours, with set-up, complete logs, laws and memory accounting.
        us_per_event: its inverse, microseconds.
        floor_events_per_s: those of the floor, measured by turns with ours.
        ratio: ours over the floor's, the median of the repeats' own ratios, as the processor's clock changes.
        rss_bytes_per_event: growth of the process's highest resident memory in the first repeat.
    """

    strategy: str
    world_size: int
    num_events: int
    events_per_s: float
    us_per_event: float
    floor_events_per_s: float
    ratio: float
    rss_bytes_per_event: float

    def as_dict(self) -> dict[str, object]:
        """Return the row, ready for JSON."""
        return asdict(self)


def measure(case: Case, num_repeats: int) -> Row:
    """Measure one case and the floor at its size, by turns."""
    import minitrain as mt

    mt.simulate(case.strategy, world_size=2, num_layers=4, global_batch_size=2)  # imports and caches
    layers = floor_layers(case.world_size, min(case.num_events, 1_000_000))
    before_bytes = peak_rss_bytes()
    ours_s: list[float] = []
    floor_s: list[float] = []
    num_events = growth_bytes = num_floor = 0
    for repeat in range(num_repeats):
        seconds, num_events = timed(lambda: _simulate(case))
        ours_s.append(seconds)
        if not repeat:
            growth_bytes = peak_rss_bytes() - before_bytes
        seconds, num_floor = timed(lambda: floor(case.world_size, layers))
        floor_s.append(seconds)
    ours, bare = num_events / median(ours_s), num_floor / median(floor_s)
    ratios = [(num_events / own_s) / (num_floor / bare_s) for own_s, bare_s in zip(ours_s, floor_s, strict=True)]
    return Row(
        strategy=case.strategy,
        world_size=case.world_size,
        num_events=num_events,
        events_per_s=ours,
        us_per_event=1e6 / ours,
        floor_events_per_s=bare,
        ratio=median(ratios),
        rss_bytes_per_event=growth_bytes / num_events,
    )


def _simulate(case: Case) -> int:
    """Simulate every rank of a case, and return the number of its events."""
    import minitrain as mt

    parameters: dict[str, Any] = {"world_size": case.world_size, **case.parameters, "fold": False}
    return mt.simulate(case.strategy, **parameters).num_events


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the processor time of some work, s, and what it returns."""
    gc.collect()
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def about_the_collector() -> str:
    """Return how Python's cycle collector is set on both sides."""
    return (
        f"cycle collector: both sides begin after a full collection; the floor goes on with {gc.get_threshold()}, ours "
        f"with the thresholds that `simulate` sets for a run, {RARELY}"
    )


def peak_rss_bytes() -> int:
    """Return the highest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES
