"""`python -m benchmarks.growth`: how cost grows with ranks, layers and microbatches, and what folding costs.

Times are processor time, the best of three. An exponent is the slope of a line fitted to log(time) over log(size).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable
from typing import Any

import minitrain as mt


def seconds(strategy: str, **parameters: Any) -> float:
    """Return the processor time of a simulation, s, the best of three."""
    found = []
    for _ in range(3):
        start = time.process_time()
        mt.simulate(strategy, **parameters)
        found.append(time.process_time() - start)
    return min(found)


def exponent(points: Iterable[tuple[float, float]]) -> float:
    """Return b of the line log(y) = a + b log(x) fitted to points."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


GROWTH: dict[str, tuple[str, tuple[int, ...], Any]] = {
    "zero3, 8 layers, in ranks": (
        "zero3",
        (64, 256, 1024, 4096),
        lambda n: {"world_size": n, "num_layers": 8, "global_batch_size": n, "fold": False},
    ),
    "zero3, 64 ranks, in layers": (
        "zero3",
        (8, 32, 128, 512),
        lambda n: {"world_size": 64, "num_layers": n, "global_batch_size": 64, "fold": False},
    ),
    "1f1b, 8 ranks, in microbatches": (
        "1f1b",
        (32, 128, 512, 2048),
        lambda n: {"world_size": 8, "num_layers": 8, "global_batch_size": n, "microbatch_size": 1, "fold": False},
    ),
    "hsdp folded, 126 layers, in ranks": (
        "hsdp",
        (2**10, 2**14, 2**18, 2**20),
        lambda n: {
            "world_size": n,
            "num_layers": 126,
            "global_batch_size": n,
            "hardware": "h200_141g_nvl8",
            "fold": True,
        },
    ),
    "zero3 folded, 64 ranks, in layers": (
        "zero3",
        (32, 128, 512, 2048),
        lambda n: {"world_size": 64, "num_layers": n, "global_batch_size": 64, "fold": True},
    ),
}

MESH = {"world_size": 16384, "num_layers": 128, "global_batch_size": 65536, "pp": 16, "microbatch_size": 1}
FOLDED: dict[str, tuple[str, dict[str, Any]]] = {
    "hsdp, 1,048,576 ranks, 126 layers": (
        "hsdp",
        {"world_size": 2**20, "num_layers": 126, "global_batch_size": 2**20, "hardware": "h200_141g_nvl8"},
    ),
    "pp_zero1, 16,384 ranks, p=16, 64 microbatches, 128 layers": ("pp_zero1", MESH),
    "pp_zero3, the same": ("pp_zero3", MESH),
}


def main() -> None:
    """Print exponents and folded times."""
    mt.simulate("zero3", fold=True)  # imports and caches
    for name, (strategy, sizes, parameters) in GROWTH.items():
        points = [(size, seconds(strategy, **parameters(size))) for size in sizes]
        shown = ", ".join(f"{size}: {taken:.4f} s" for size, taken in points)
        print(f"{name}: exponent {exponent(points):.2f} ({shown})", flush=True)
    for name, (strategy, given) in FOLDED.items():
        print(f"folded {name}: {seconds(strategy, fold=True, **given):.3f} s", flush=True)


if __name__ == "__main__":
    main()
