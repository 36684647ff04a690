"""`python -m benchmarks.platform`: what replaying a run on shared links costs an event, tasks and collectives.

Each line is the median of several runs with garbage collection switched off, as `simulate` and `replay` have it.
`shared` has half as many interfaces as processors, so that flows share them; `alone` has one each.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from statistics import median

import minitrain as mt
from minitrain.machine import load_config
from minitrain.machine.platform import VirtualHardwarePlatform
from minitrain.machine.platform.links import ClusterLinks

_DEVICE = {
    "device_id": "gpu0",
    "peak_tflops": {"fp16": 312},
    "memory_capacity_bytes": 80e9,
    "memory_gbps": 2000,
    "processing_units": 108,
}


def timed(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of some work, s."""
    found = []
    for _ in range(repeats):
        gc.collect()
        gc.disable()
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
        gc.enable()
    return median(found)


def replay_us(strategy: str, world_size: int, nics: int, repeats: int) -> tuple[float, int]:
    """Return what replaying a run costs an event, us, and how many events it has."""
    run = mt.simulate(strategy, world_size=world_size, num_layers=16, global_batch_size=2 * world_size)
    num_events = sum(map(len, run.logs))
    links = ClusterLinks(load_config("h100_80g_nvl8"), world_size, nics=nics)
    seconds = timed(lambda: mt.replay(run, links), repeats) / 2  # alone and together: the same here, twice
    return seconds / num_events * 1e6, num_events


def tasks_s(number: int) -> float:
    """Return how long so many tasks on one device take, s."""

    def work() -> None:
        platform = VirtualHardwarePlatform().initialize({"compute_devices": [_DEVICE]})
        for _ in range(number):
            platform.submit_computation_task("gpu0", {"flops_required_fp16": 1e9, "num_processing_units_requested": 54})
        platform.run()

    return timed(work, 1)


def collectives_s(spread: float, repeats: int) -> float:
    """Return how long 40 all_reduces of 32 ranks at the high level of detail take, s.

    Args:
        spread: how much larger each is than the one before, so that they do not end together.
        repeats: how often it is measured.
    """
    names = [f"gpu{rank}" for rank in range(32)]
    links = [{"topology": "star", "name": "switch", "endpoints": names, "bandwidth_bps": 2e11, "latency_s": 1e-6}]

    def work() -> None:
        platform = VirtualHardwarePlatform("high").initialize({"network_links": links})
        for number in range(40):
            platform.submit_collective_task("all_reduce", names, 1e8 * (1 + number * spread))
        platform.run()

    return timed(work, repeats)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000, help="platform tasks")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    print(f"{'replay':<24}{'ranks':>7}{'interfaces':>12}{'events':>10}{'us/event':>10}")
    for strategy in ("zero3", "zero3_prefetch", "ddp_overlap", "pp_zero3"):
        for world_size in (64, 1024):
            for nics in (8, 4):
                cost, number = replay_us(strategy, world_size, nics, given.repeats)
                print(f"{strategy:<24}{world_size:>7}{nics:>12}{number:>10}{cost:>10.1f}", flush=True)
    seconds = tasks_s(given.tasks)
    print(f"\n{given.tasks:,} platform tasks: {seconds:.1f} s, {seconds / given.tasks * 1e6:.1f} us each")
    for spread in (0.0, 0.01):
        seconds = collectives_s(spread, given.repeats)
        print(f"40 all_reduces of 32 ranks, each {spread:.0%} larger than the last: {seconds:.2f} s")


if __name__ == "__main__":
    main()
