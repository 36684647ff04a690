"""`python -m benchmarks`: events a second of four strategies at five sizes, and their ratio to the bare event loop."""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from benchmarks.cases import MOST_EVENTS, SHORT_NUM_EVENTS, SHORT_WORLD_SIZES, Case, cases
from benchmarks.measure import Row, about_the_collector, measure

_HEAD = f"{'strategy':<18}{'ranks':>7}{'events':>10}{'events/s':>10}{'us/event':>10}{'ratio':>7}{'B/event':>9}"


def rows(chosen: list[Case], num_repeats: int) -> Iterator[Row]:
    """Measure cases one after the other, each in a process of its own, so that memory is its own too."""
    context = multiprocessing.get_context("spawn")
    for case in chosen:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            yield pool.submit(measure, case, num_repeats).result()


def line(row: Row) -> str:
    """Return a row of the table."""
    return (
        f"{row.strategy:<18}{row.world_size:>7}{row.num_events:>10}{row.events_per_s:>10.0f}"
        f"{row.us_per_event:>10.2f}{row.ratio:>7.2f}{row.rss_bytes_per_event:>9.0f}"
    )


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON, one array")
    parser.add_argument("--short", action="store_true", help="a few small rows, in seconds: does it run at all?")
    parser.add_argument(
        "--most-events", type=int, default=MOST_EVENTS, metavar="N", help="leave out larger rows (%(default)s)"
    )
    asked = parser.parse_args()
    chosen = cases(SHORT_WORLD_SIZES, SHORT_NUM_EVENTS) if asked.short else cases()
    possible = [case for case in chosen if case.num_events <= asked.most_events]
    measured = rows(possible, 1 if asked.short else 3)
    if asked.json:
        print(json.dumps([row.as_dict() for row in measured], indent=2))
        return
    print(_HEAD)
    for row in measured:
        print(line(row), flush=True)
    for case in chosen:
        if case not in possible:
            size = f"{case.strategy} at {case.world_size} ranks"
            print(f"{size} is left out (--most-events): it makes {case.num_events:.1e} events")
    print("ratio: events/s over those of benchmarks/floor.py at the same number of ranks, the median of pairs by turns")
    print(about_the_collector())


if __name__ == "__main__":
    main()
