"""`python -m benchmarks.noise`: what samples of a run under noise cost, drawing and tail included.

Each line is one call of `monte_carlo` on a run of 64 ranks, with jitter on every operation and stragglers. Processor
time counts, since other processes take none of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import minitrain as mt

_NOISE = mt.Noise(jitter=0.05, straggler=(0.01, 2.0))
CASES = (("zero3", 8), ("zero3", 32), ("ddp", 8), ("pp_zero1", 8), ("1f1b", 64))


def row(strategy: str, num_layers: int, samples: int, world_size: int = 64) -> str:
    """Return the row of one case."""
    run = mt.simulate(strategy, world_size=world_size, num_layers=num_layers, global_batch_size=64)
    begin = time.process_time()
    mt.monte_carlo(run, _NOISE, samples=samples)
    seconds = time.process_time() - begin
    return f"| {strategy} | {num_layers} | {run.num_events:,} | {seconds:.2f} | {samples / seconds:,.0f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    samples = parser.parse_args(arguments).samples
    print(f"| strategy, 64 ranks | layers | events | s for {samples:,} samples | samples/s |\n|---|---|---|---|---|")
    for strategy, num_layers in CASES:
        print(row(strategy, num_layers, samples), flush=True)


if __name__ == "__main__":
    main()
