"""`python -m benchmarks.strict`: how many times as long a strict run takes as a plain one, by turns."""

from __future__ import annotations

import gc
import time
from statistics import median

import minitrain as mt

STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "gpipe", "1f1b", "zero3_prefetch", "hsdp", "zbv")


def seconds(strategy: str, *, strict: bool) -> float:
    """Return the processor time of one run, s."""
    gc.collect()
    begin = time.process_time()
    mt.simulate(strategy, world_size=8, num_layers=32, global_batch_size=64, strict=strict, fold=False)
    return time.process_time() - begin


def ratio(strategy: str, num_repeats: int = 15) -> float:
    """Return how many times as long a strict run takes: the median over pairs that ran one after the other."""
    seconds(strategy, strict=True)
    return median(seconds(strategy, strict=True) / seconds(strategy, strict=False) for _ in range(num_repeats))


def main() -> None:
    """Print a row a strategy, and their mean."""
    ratios = {strategy: ratio(strategy) for strategy in STRATEGIES}
    for strategy, value in ratios.items():
        print(f"{strategy:<18}{value:6.2f}")
    print(f"{'mean':<18}{sum(ratios.values()) / len(ratios):6.2f}")


if __name__ == "__main__":
    main()
