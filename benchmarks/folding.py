"""`python -m benchmarks.folding`: what a shipped strategy costs by default, where ranks fold by themselves.

At 64 ranks it takes turns with the bare event loop (`benchmarks.floor`), which executes as many events, and with
`fold=False`. Steps of many microbatches take turns with the same steps of which all are simulated. Ratios are medians
over the turns, of processor time. Large runs are measured with all their figures, and with their page. The floor keeps
the collector's usual thresholds, and a simulation raises them while it runs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import minitrain as mt
from benchmarks.cases import floor_layers
from benchmarks.floor import floor
from benchmarks.measure import timed
from minitrain.run.folding.microbatches import Microbatches

STAGES: Mapping[str, Any] = {"pp": 2, "microbatch_size": 1}
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "ddp": {},
    "ddp_overlap": {},
    "zero1": {},
    "zero2": {},
    "zero3": {},
    "zero3_prefetch": {},
    "hsdp": {},
    "fsdp": {"replicas": 16},
    "moe": {"ep": 8},
    "megatron": {"tp": 8, "pp": 2, "microbatch_size": 1},
    "ring_attention": {"cp": 4},
    "gathered_context": {"cp": 4},
    "pp_dp": STAGES,
    "pp_zero1": STAGES,
    "pp_zero3": STAGES,
    "pp_hsdp": {**STAGES, "shard_size": 8},
    "interleaved_1f1b": STAGES,
    "looped_bfs": STAGES,
    "zb_h2": STAGES,
    "zbv": STAGES,
    "dualpipe_v": STAGES,
    "interleaved_zero_bubble": STAGES,
    "deepseek_like": STAGES,
}
"""Those whose ranks fold, with options of meshes that do."""

UNFOLDED: Mapping[str, Mapping[str, Any]] = {"gpipe": {}, "1f1b": {}, "zb_h1": {}}
"""Those whose ranks all differ, for the cost of an attempt that fails."""

MICROBATCHES: Mapping[str, Mapping[str, Any]] = {
    "tp 4 pp 2, batch 256": {"world_size": 64, "global_batch_size": 256, "tp": 4, "pp": 2},
    "tp 8 pp 8, 4,096 ranks": {"world_size": 4096, "global_batch_size": 4096, "tp": 8, "pp": 8},
}
"""Runs of megatron that train llama3-8b."""

_MOST_SHARDS = 4096  # a shard of a layer has a row at least
_SHARDED_OVER_ALL = ("zero1", "zero2", "zero3", "zero3_prefetch")
_NUM_MICROBATCHES, _FEW_RANKS = 16, 64


def parameters_of(strategy: str, world_size: int) -> dict[str, Any]:
    """Return the parameters of a run of 32 layers, with 16 microbatches a pipeline or four samples a rank.

    Pipelines have two stages, and eight in large worlds: the fewer ranks a class has, the less folding spares.
    """
    if strategy in UNFOLDED:
        return {"world_size": world_size, "num_layers": max(32, world_size), "global_batch_size": 4 * world_size}
    ranks = min(world_size, _MOST_SHARDS) if strategy in _SHARDED_OVER_ALL else world_size
    options = dict(STRATEGIES[strategy])
    if "pp" in options and world_size > _FEW_RANKS:
        options["pp"] = 8
    replicas = ranks // (options.get("pp", 1) * options.get("tp", 1))
    batch = _NUM_MICROBATCHES * replicas if "pp" in options else 4 * ranks
    return {"world_size": ranks, "num_layers": 32, "global_batch_size": batch, **options}


def turn(strategy: str, parameters: Mapping[str, Any]) -> tuple[float, float, float, int]:
    """Return the time of a run by default, of the floor with as many events, and of fold=False, and the events."""
    default_s, run = timed(lambda: mt.simulate(strategy, **parameters))
    num_ranks = parameters["world_size"]
    floor_s, num_floor = timed(lambda: floor(num_ranks, floor_layers(num_ranks, run.num_events)))
    full_s, _ = timed(lambda: mt.simulate(strategy, **parameters, fold=False))
    return default_s, floor_s * run.num_events / num_floor, full_s, run.num_events


def line_of(strategy: str, world_size: int, num_turns: int) -> str:
    """Return the row of a strategy: default against floor, and against every rank simulated."""
    parameters = parameters_of(strategy, world_size)
    turn(strategy, parameters)  # imports and caches
    turns = [turn(strategy, parameters) for _ in range(num_turns)]
    default_ms = 1e3 * median(default_s for default_s, *_ in turns)
    to_floor = median(floor_s / default_s for default_s, floor_s, *_ in turns)
    to_full = median(default_s / full_s for default_s, _, full_s, _ in turns)
    return f"{strategy:<25}{turns[0][3]:>9}{default_ms:>12.2f}{to_floor:>14.2f}{to_full:>14.3f}"


def by_few(name: str, num_turns: int) -> str:
    """Return the row of a step of many microbatches: of few, and against all, each time of another length."""
    given = {**MICROBATCHES[name], "workload": "llama3-8b", "hardware": "h100_80g_nvl8", "microbatch_size": 1}
    lengths = iter(range(1024, 8192, 32))

    def seconds() -> float:
        return timed(lambda: mt.simulate("megatron", **given, seq_len=next(lengths)))[0]

    def seconds_of_all() -> float:
        with patch.object(Microbatches, "shortened", lambda _: None):
            return seconds()

    seconds(), seconds_of_all()  # imports and caches
    found = [(seconds(), seconds_of_all()) for _ in range(num_turns)]
    few_ms = 1e3 * median(few_s for few_s, _ in found)
    return f"{name:<25}{few_ms:>12.1f}{median(few_s / all_s for few_s, all_s in found):>14.3f}"


def large(strategy: str, world_size: int, folder: Path) -> str:
    """Return the row of a large run: its ranks, and the time of the run, of its figures and of its page, s."""
    parameters = parameters_of(strategy, world_size)
    run_s, run = timed(lambda: mt.simulate(strategy, **parameters))
    figures_s, _ = timed(lambda: (run.summary(), run.by_type, run.device_memory, run.energy_joules, run.peak_watts))
    page_s, _ = timed(lambda: run.write_html(folder / "page.html", "directory"))
    return f"{strategy:<25}{run.world_size:>7}{run.num_events:>10}{run_s:>9.3f}{figures_s:>9.3f}{page_s:>9.3f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.folding", description=__doc__)
    parser.add_argument("--short", action="store_true", help="two strategies, few ranks, one turn: does it run at all?")
    asked = parser.parse_args()
    names = ["ddp", "pp_zero1"] if asked.short else [*STRATEGIES]
    print(f"{'strategy, 64 ranks':<25}{'events':>9}{'default ms':>12}{'times floor':>14}{'of fold=False':>14}")
    for name in names if asked.short else [*names, *UNFOLDED]:
        print(line_of(name, _FEW_RANKS, 1 if asked.short else 7), flush=True)
    print(f"{'megatron':<25}{'few ms':>12}{'of all':>14}")
    for name in () if asked.short else MICROBATCHES:
        print(by_few(name, 7), flush=True)
    print(f"{'strategy':<25}{'ranks':>7}{'events':>10}{'run s':>9}{'figures':>9}{'page':>9}")
    with tempfile.TemporaryDirectory() as folder:
        large(names[0], _FEW_RANKS, Path(folder))  # imports
        for name in names:
            print(large(name, _FEW_RANKS if asked.short else 16_384, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
