"""`python -m benchmarks.steps`: what a thousand steps cost beside one, on 64 ranks, folded and rank by rank.

Both take turns. Ratios are medians over the turns, of processor time.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from statistics import median
from typing import Any

import minitrain as mt
from benchmarks.measure import timed

STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "zero3": {"global_batch_size": 256},
    "megatron": {"global_batch_size": 256, "tp": 8, "pp": 2, "microbatch_size": 8},
    "zb_h2": {"global_batch_size": 256, "pp": 8, "num_layers": 64, "microbatch_size": 2},
    "diloco": {"global_batch_size": 512, "local_steps": 8},
}


def ratio(strategy: str, options: Mapping[str, Any], num_turns: int) -> tuple[float, float, int]:
    """Return the time of one step, s, that of 1,000 by it, and how many of these were simulated."""
    sizes = {"world_size": 64, "num_layers": 32, **options}
    ones, ratios, simulated = [], [], 0
    for turn in range(num_turns + 1):
        one_s, _ = timed(lambda: mt.simulate(strategy, **sizes).step_time)
        run_s, run = timed(lambda: mt.simulate(strategy, steps=1000, **sizes))
        simulated = 0 if run.steps is None else len(run.steps.ends)
        if turn:  # the first turn imports and fills caches
            ones.append(one_s)
            ratios.append(run_s / one_s)
    return median(ones), median(ratios), simulated


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--turns", type=int, default=15, metavar="N", help="how often both are measured (%(default)s)")
    num_turns = parser.parse_args().turns
    print(f"{'strategy':<12}{'ranks':>14}{'one step, ms':>14}{'1,000 by one':>14}{'simulated':>11}")
    for strategy, options in STRATEGIES.items():
        for fold in ("auto", False):
            one_s, times, simulated = ratio(strategy, {**options, "fold": fold}, num_turns)
            ranks = "64, one by one" if fold is False else "64"
            print(f"{strategy:<12}{ranks:>14}{one_s * 1e3:>14.1f}{times:>14.2f}{simulated:>11}")


if __name__ == "__main__":
    main()
