"""What an event of a divided layer costs, beside events of whole layers: `python -m benchmarks.parts`.

The ranks, the model and the number of microbatches are those of a small training step; CPU time is taken, the least of
several runs, so that other work on the machine matters little.
"""

from __future__ import annotations

import time
from typing import Any

import minitrain as mt

SIZES: dict[str, Any] = {"workload": "llama3-8b", "world_size": 64, "microbatch_size": 1, "check": False}
WHOLE = "pp_dp"
CASES: dict[str, dict[str, Any]] = {
    WHOLE: {"pp": 8, "global_batch_size": 128},
    "megatron": {"tp": 8, "pp": 4, "global_batch_size": 16},
    "megatron:sequence_parallel=True": {"tp": 8, "pp": 2, "global_batch_size": 32},
    "fsdp": {"replicas": 8, "global_batch_size": 128},
}


def microseconds(strategy: str, parameters: dict[str, Any], repeats: int) -> float:
    """Return the CPU time of an event, us: the least of some runs."""
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        run = mt.simulate(strategy, fold=False, **SIZES | parameters)
        found.append((time.process_time() - begin) / run.num_events * 1e6)
    return min(found)


def table(repeats: int = 3, **smaller: Any) -> list[str]:
    """Return a line a case: its name, us an event, and how many times that of whole layers."""
    costs = {name: microseconds(name, {**parameters, **smaller}, repeats) for name, parameters in CASES.items()}
    return [f"{name:34}{cost:7.2f} us{cost / costs[WHOLE]:7.2f} x" for name, cost in costs.items()]


if __name__ == "__main__":
    print("\n".join(table()))
