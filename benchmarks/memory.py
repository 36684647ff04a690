"""`python -m benchmarks.memory`: how many bytes a kept event takes, at ten million events.

The same step is simulated with all events and with totals alone (`log="summary"`), in a process each. The difference of
their highest resident memory is the log: its rows, and the objects that only they refer to.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from benchmarks.measure import peak_rss_bytes
from minitrain.run.summary_log import EVENTS_OF_RUN

NUM_EVENTS = 10_000_000


class Cost(NamedTuple):
    """What one simulation took.

    Args:
        num_events: events made.
        seconds: processor time, s.
        growth_bytes: growth of the process's highest resident memory.
    """

    num_events: int
    seconds: float
    growth_bytes: int


def parameters(strategy: str, num_events: int) -> dict[str, Any]:
    """Return sizes with about so many events: on many ranks, since summing many microbatches takes long."""
    if strategy == "zero3":
        return {"world_size": 64, "num_layers": max(1, num_events // (7 * 64)), "global_batch_size": 64}
    num_microbatches = max(1, num_events // (6 * 1024))
    return {"world_size": 1024, "num_layers": 1024, "global_batch_size": num_microbatches, "microbatch_size": 1}


def cost(strategy: str, given: dict[str, Any]) -> Cost:
    """Simulate and return what it took; meant for a process of its own."""
    import minitrain as mt

    mt.simulate(strategy, world_size=2, num_layers=2, global_batch_size=2)  # imports and caches
    before_bytes, start = peak_rss_bytes(), time.process_time()
    num_events = mt.simulate(strategy, **given, fold=False).num_events
    return Cost(num_events, time.process_time() - start, peak_rss_bytes() - before_bytes)


def in_process(strategy: str, given: dict[str, Any]) -> Cost:
    """Return what a simulation takes in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(cost, strategy, given).result()


def _words(cost: Cost) -> str:
    """Return what a simulation took, in words."""
    return f"{cost.growth_bytes / 2**20:.0f} MiB and {cost.seconds:.0f} s"


def main() -> None:
    """Print how many bytes a kept event takes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--events", type=int, default=NUM_EVENTS, metavar="N", help="about so many (%(default)s)")
    parser.add_argument("--strategy", choices=("1f1b", "zero3"), action="append", help="both by default")
    asked = parser.parse_args()
    for strategy in asked.strategy or ("1f1b", "zero3"):
        given = parameters(strategy, asked.events)
        full, totals = in_process(strategy, given), in_process(strategy, given | {"log": "summary"})
        each = (full.growth_bytes - totals.growth_bytes) / (full.num_events - EVENTS_OF_RUN)  # a summary keeps so many
        print(
            f"{strategy}, {given['world_size']} ranks, {full.num_events} events: {each:.0f} bytes an event kept "
            f"(with events {_words(full)}, without {_words(totals)})",
            flush=True,
        )


if __name__ == "__main__":
    main()
