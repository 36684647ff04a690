"""`python -m benchmarks.tune`: what is claimed of the tuner, measured.

- Llama 3 70B on 512 H100s, all axes of `megatron`: how many legal configurations are priced, and how long that takes.
- Layouts of one structure: how many are priced a second and core, once the pieces are there.
- Steps of random layouts, against separate simulations: how many are equal to the last float.
- Published layouts: how much quicker the tuner's winner is, and how many of what fits are quicker than the published
  one. The search has what the published run had: without the overlaps that its framework did not have.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import minitrain as mt
from minitrain.tuning.findings import described
from minitrain.tuning.problem import Problem
from minitrain.tuning.result import Tuning
from minitrain.tuning.rows import options_of
from minitrain.tuning.space import Candidate, axes_of, candidates
from minitrain.tuning.work import price_pipelines
from minitrain.validation.cases import Case, case_of
from minitrain.validation.tables_of_package import rows_of

PUBLISHED = {
    "j3": ("j3-0061",),
    "m1": ("m1-0132",),
    "m4": ("m4-0008",),
    "b2": ("b2-0005", "b2-0006", "b2-0007", "b2-0030"),
}
"""Rows of `minitrain.validation`: Megatron and MT-NLG's size, Llama 3, BLOOM, and NeMo's GPT-3."""


def llama(world_size: int) -> dict[str, Any]:
    """Search Llama 3 70B on H100s, two samples a rank."""
    begin, cpu = time.perf_counter(), _cpu_s()
    found = mt.tune("llama3-70b", world_size=world_size, global_batch_size=2 * world_size, strategies="megatron")
    legal = sum(row["status"] != "illegal" for row in found.rows)
    seconds = time.perf_counter() - begin
    return {
        "benchmark": f"llama3-70b on {world_size} H100s",
        "legal_configurations": legal,
        "fitting": found.num_fitting,
        "seconds": seconds,
        "cpu_seconds": _cpu_s() - cpu,
        "cores": os.cpu_count(),
        "best": str(found.best),
        "best_s": found.best.step_time_s,
    }


def _cpu_s() -> float:
    """Return the processor time of this process and of those that have ended, s."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def of_one_structure(pp: int) -> dict[str, Any]:
    """Price the layouts of the structure that has most of them again and again, in this process."""
    problem = Problem("llama3-70b", "h100_80g_nvl8", 512, 1024, {})
    by_structure: dict[Any, list[Any]] = {}
    for candidate in _legal(problem):
        assert candidate.pipeline is not None
        if candidate.pipeline.pp == pp:
            by_structure.setdefault(candidate.pipeline.structure, []).append(candidate.pipeline)
    structure, layouts = max(by_structure.items(), key=lambda item: (len(item[1]), -item[0][2]))
    price_pipelines(problem, layouts)
    rates = []
    for _ in range(5):
        begin = time.process_time()
        price_pipelines(problem, layouts)
        rates.append(len(layouts) / (time.process_time() - begin))
    return {
        "benchmark": "layouts of one structure, a second and core",
        "structure": list(structure),
        "layouts": len(layouts),
        "per_second_and_core": sorted(rates)[2],
    }


def equality(count: int) -> dict[str, Any]:
    """Compare random layouts with separate simulations."""
    problem = Problem("llama3-8b", "h100_80g_nvl8", 64, 128, {})
    chosen = random.Random(0).sample(_legal(problem), count)
    found = price_pipelines(problem, [one.pipeline for one in chosen if one.pipeline is not None])
    equal = 0
    for one, figures in zip(chosen, found, strict=True):
        run = mt.simulate("megatron", **one.parameters, fold=True, check=False)
        equal += (figures.step_time_s, figures.peak_memory_bytes) == (run.step_time, run.peak_memory_bytes)
    return {"benchmark": "random layouts equal to separate simulations", "of": count, "equal": equal}


def _legal(problem: Problem) -> list[Candidate]:
    """Return the layouts of `megatron` that are put together from pieces."""
    machine = problem.machine
    found = candidates("megatron", machine, axes_of("megatron", machine, {}), 1)
    return [one for one in found if one.pipeline is not None]


def published() -> Iterator[dict[str, Any]]:
    """Yield how published layouts compare with the tuner's."""
    for table, names in PUBLISHED.items():
        for row in rows_of([table]):
            if row.row_id in names:
                yield _compared(case_of(row))


def _compared(case: Case) -> dict[str, Any]:
    """Compare a published layout with all that fit."""
    layout = case.layout
    machine: dict[str, Any] = {
        "workload": case.model,
        "hardware": case.system,
        "world_size": layout.world_size,
        "global_batch_size": layout.global_batch_size,
        "fidelity": "kernels",
        "platform": case.platform,
    }
    options = {**case.options, "microbatch_size": layout.microbatch_size}
    run = mt.simulate(case.strategy, **machine, **options, fold=True, check=False)
    begin = time.perf_counter()
    found = mt.tune(
        **machine,
        strategies="megatron",
        space=_had(case),
        head_room=max(0.0, min(0.1, 1 - run.peak_memory_bytes / (run.capacity_bytes or 1))),
    )
    return {"benchmark": f"published {case.about}", **_placed(found, run, case), "seconds": time.perf_counter() - begin}


def _had(case: Case) -> dict[str, list[Any]]:
    """Return the values of switches that the published run's framework had."""
    has_shards = case.layout.sequence_parallel
    return {
        "overlap_parts": [False],
        "overlap_replicas": [False, True] if case.options["overlap_replicas"] else [False],
        "sequence_parallel": [False, True] if has_shards else [False],
        "recompute": ["none", "selective", "full"] if case.layout.recompute != "full" else ["full"],
        "overlap_messages": [bool(case.options["overlap_messages"])],
        "batch_messages": [bool(case.options.get("batch_messages"))],
        "scatter_gather": [bool(case.options["scatter_gather"])],
        "zero": [0, 1] if case.layout.zero else [0],
        "microbatch_size": [1, 2, 4, 8, 16],
    }


def _placed(found: Tuning, run: mt.Run, case: Case) -> dict[str, Any]:
    """Return where a published layout stands among all that fit."""
    quicker = sum(row["step_time_s"] < run.step_time for row in found.ranked)
    return {
        "row": case.row_id,
        "published": described({name: value for name, value in case.options.items() if name != "layers_per_stage"}),
        "published_s": run.step_time,
        "published_gib": run.peak_memory_bytes / 2**30,
        "winner": described(options_of(found.best.row)),
        "winner_s": found.best.step_time_s,
        "winner_gib": found.best.peak_memory_bytes / 2**30,
        "fitting": found.num_fitting,
        "quicker": quicker,
        "top_share": quicker / found.num_fitting,
    }


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON, one array")
    parser.add_argument("--short", action="store_true", help="a small search alone, in seconds: does it run at all?")
    parser.add_argument("--published", action="store_true", help="only the published layouts")
    asked = parser.parse_args()
    measured: list[dict[str, Any]] = []
    for one in _asked(short=asked.short, only_published=asked.published):
        measured.append(one)
        if not asked.json:
            words = ", ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in one.items()
                if name != "benchmark"
            )
            print(f"{one['benchmark']}: {words}", flush=True)
    if asked.json:
        print(json.dumps(measured, indent=2))


def _asked(*, short: bool, only_published: bool) -> Iterator[dict[str, Any]]:
    """Yield what is measured."""
    if short:
        yield equality(3)
        return
    if not only_published:
        yield llama(512)
        yield from map(of_one_structure, (1, 8))
        yield equality(40)
    yield from published()


if __name__ == "__main__":
    main()
