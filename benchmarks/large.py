"""`python -m benchmarks.large`: a step of 16,384 ranks with every event of every rank, and its figures.

`pp_zero1` with 16 pipeline positions, 1,024 replicas, 64 microbatches and 128 layers, in a process of its own: 21
million events. The target is two minutes and 8 GiB. Folded, the same figures take a fraction of a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.measure import peak_rss_bytes

PP, NUM_MICROBATCHES, NUM_LAYERS = 16, 64, 128


def measure(world_size: int, log: str) -> dict[str, Any]:
    """Simulate, and return what it took; meant for a process of its own."""
    import minitrain as mt

    mt.simulate("pp_zero1", world_size=2, num_layers=2, global_batch_size=2)  # imports and caches
    sizes: dict[str, Any] = {
        "world_size": world_size,
        "num_layers": NUM_LAYERS,
        "global_batch_size": world_size // PP * NUM_MICROBATCHES,
        "microbatch_size": 1,
        "pp": PP,
    }
    begun, start = time.monotonic(), time.process_time()
    run = mt.simulate("pp_zero1", log=log, fold=False, **sizes)
    simulated_s = time.process_time() - start
    start = time.process_time()
    figures = run.summary()
    return {
        "num_events": run.num_events,
        "simulated_s": simulated_s,
        "figures_s": time.process_time() - start,
        "wall_s": time.monotonic() - begun,
        "peak_rss_gib": peak_rss_bytes() / 2**30,
        "equals_folded": figures == mt.simulate("pp_zero1", fold=True, **sizes).summary(),
    }


def main() -> None:
    """Print what the step took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    parser.add_argument("--ranks", type=int, default=16_384, metavar="N", help="a multiple of 16 (%(default)s)")
    parser.add_argument("--log", choices=("full", "summary"), default="full", help="keep events, or totals alone")
    asked = parser.parse_args()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(measure, asked.ranks, asked.log).result()
    each_us = 1e6 * found["simulated_s"] / found["num_events"]
    print(
        f"pp_zero1, {asked.ranks} ranks, log={asked.log}: {found['num_events']} events in {found['simulated_s']:.0f} s "
        f"of processor time ({each_us:.1f} us an event) and {found['figures_s']:.0f} s for its figures, "
        f"{found['wall_s']:.0f} s on the clock, {found['peak_rss_gib']:.1f} GiB; figures "
        f"{'equal' if found['equals_folded'] else 'DIFFER FROM'} the folded run's"
    )


if __name__ == "__main__":
    main()
