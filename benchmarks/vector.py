"""`python -m benchmarks.vector`: machines priced a second by one execution, beside a sweep that simulates each.

A thousand machines differ in bandwidths, latencies, rates and memories. `mt.price` runs the strategy once and makes
every column, of a config for each machine, or of one config and what varies. The sweep simulates a few of them one
after the other and makes their rows, as it does where configurations differ in more than prices. All take turns in
one process, on processor time. The ratio, of configs, is the median over the turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

import minitrain as mt
from minitrain.machine.config import SystemConfig, load_config, numbers_of, varied_configs
from minitrain.run.event_loops import run_to_end
from minitrain.search.sweeps.batches import SharedByBatch, row_of

TRANSFORMER: dict[str, Any] = {"workload": "llama3-8b", "seq_len": 2048, "num_layers": None}
CASES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "zero3": {},
    "pp_zero1": {"pp": 2},
    "1f1b": {"world_size": 8},  # at most one stage a layer, all different
    "fsdp, kernels of a transformer": {**TRANSFORMER, "fidelity": "kernels"},
    "fsdp, with contention": {**TRANSFORMER, "platform": "compiled-fsdp"},
    "megatron": {**TRANSFORMER, "seq_len": None, "world_size": 16, "global_batch_size": 16, "tp": 2, "pp": 4},
}
SIZES: dict[str, Any] = {"world_size": 64, "num_layers": 8, "global_batch_size": 64, "fold": True}
FIGURES = (
    "networks[0].bandwidth",
    "networks[0].latency",
    "networks[1].bandwidth",
    "networks[1].latency",
    "matrix.float16.tflops",
    "mem1.GBps",
    "mem1.GiB",
    "kernels.GBps",
    "kernels.matmul.float16.tflops",
)


BASE = "h100_80g_nvl8"


def varied(count: int) -> dict[str, list[float]]:
    """Return figures of machines by path, half to twice those of an H100 server."""
    numbers, random = numbers_of(load_config(BASE)), np.random.default_rng(0)
    return {path: (numbers[path] * random.uniform(0.5, 2.0, count)).tolist() for path in FIGURES}


def machines(count: int) -> list[SystemConfig]:
    """Return these machines."""
    systems = [load_config(BASE)] * count
    for path, values in varied(count).items():
        systems = varied_configs(systems, path, values)
    return systems


def _case(name: str) -> tuple[str, dict[str, Any]]:
    """Return the strategy of a case, and its parameters; those that are None are left out."""
    parameters = {key: value for key, value in {**SIZES, **CASES[name]}.items() if value is not None}
    return name.partition(",")[0], parameters


def priced(case: str, systems: Sequence[SystemConfig] | str, vary: dict[str, list[float]] | None = None) -> Any:
    """Price a case on all machines, and return all columns."""
    strategy, sizes = _case(case)
    given: dict[str, Any] = {} if vary is None else {"vary": vary}
    return mt.price(strategy, systems if isinstance(systems, str) else list(systems), **given, **sizes).columns()


def swept(case: str, systems: Sequence[SystemConfig]) -> Any:
    """Return the rows of a case on some machines, each simulated by itself."""
    strategy, sizes = _case(case)

    async def rows() -> Any:
        shared = SharedByBatch()
        return [await row_of((strategy, {**sizes, "hardware": system}), shared) for system in systems]

    return run_to_end(rows)


def _timed(work: Callable[[], Any], count: int) -> tuple[Any, float]:
    """Return what work gives, and how many machines a second of processor time takes."""
    begin = time.process_time()
    found = work()
    return found, count / (time.process_time() - begin)


def row(case: str, systems: Sequence[SystemConfig], num_swept: int, num_turns: int) -> str:
    """Return the row of one case."""
    few, vary, turns = systems[:num_swept], varied(len(systems)), []
    for _ in range(num_turns):
        figures, at_once = _timed(lambda: priced(case, systems), len(systems))
        columns, by_column = _timed(lambda: priced(case, BASE, vary), len(systems))
        rows, alone = _timed(lambda: swept(case, few), num_swept)
        if figures["step_time_s"][:num_swept].tolist() != [each["step_time_s"] for each in rows]:
            raise RuntimeError(f"{case}: the columns are not those of the sweep")
        if columns["step_time_s"].tolist() != figures["step_time_s"].tolist():
            raise RuntimeError(f"{case}: columns that vary are not those of configs")
        turns.append((at_once, by_column, alone))
    ours, columns, others = (median(turn[place] for turn in turns) for place in range(3))
    ratio = median(one / other for one, _, other in turns)
    return f"| {case} | {len(systems):,} | {ours:,.0f} | {columns:,.0f} | {others:,.0f} | {ratio:,.0f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vector", description=__doc__)
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--short", action="store_true", help="few machines and one turn: does it run at all?")
    asked = parser.parse_args(arguments)
    count, num_swept, num_turns = (20, 2, 1) if asked.short else (asked.machines, 20, 7)
    systems = machines(count)
    print(
        "| strategy, folded | machines | machines/s priced | with `vary=` | swept | ratio |\n|---|---|---|---|---|---|"
    )
    for case in CASES:
        print(row(case, systems, num_swept, num_turns), flush=True)


if __name__ == "__main__":
    main()
