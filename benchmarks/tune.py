"""`python -m benchmarks.tune`: what is claimed of the tuner, measured.

- Llama 3 70B on 512 H100s, all axes of `megatron`: how many legal configurations are priced, and how long that takes.
- Layouts of one structure: how many are priced a second and core, once their pieces were executed.
- Steps of random layouts, against separate simulations: how many are equal to the last float.
- Published layouts: how much quicker the tuner's winner is, and how many of what fits are quicker than the published
  one. The search has what the published run had: stages of whole layers, and no overlaps that its framework lacks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import minitrain as mt
from minitrain.evidence.cases import Case, case_of
from minitrain.evidence.errors_by_table import rows_of
from minitrain.evidence.layouts import stage_layers, unit_stages
from minitrain.search.tuning.explanation import Spending
from minitrain.search.tuning.findings import Choice, described
from minitrain.search.tuning.layouts import Columns, Structure
from minitrain.search.tuning.problem import Candidate, TuningProblem, axes_of, candidates
from minitrain.search.tuning.search import Search, price_pipelines
from minitrain.search.tuning.step_figures import peaks_of
from minitrain.search.tuning.tune import Tuning

PUBLISHED = {
    "j3": ("j3-0061", "j3-0064"),
    "m1": ("m1-0132",),
    "m4": ("m4-0008",),
    "b2": ("b2-0005", "b2-0006", "b2-0007", "b2-0030"),
}
"""Rows of `minitrain.evidence`: Megatron and MT-NLG's size, Llama 3, BLOOM, and NeMo's GPT-3."""


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
    problem = TuningProblem("llama3-70b", "h100_80g_nvl8", 512, 1024, {})
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
    problem = TuningProblem("llama3-8b", "h100_80g_nvl8", 64, 128, {})
    chosen = random.Random(0).sample(_legal(problem), count)
    found = price_pipelines(problem, [one.pipeline for one in chosen if one.pipeline is not None])
    equal = 0
    for one, figures in zip(chosen, found, strict=True):
        run = mt.simulate("megatron", **one.parameters, fold=True, check=False)
        equal += (figures.step_time_s, figures.peak_memory_bytes) == (run.step_time, run.peak_memory_bytes)
    return {"benchmark": "random layouts equal to separate simulations", "of": count, "equal": equal}


def _legal(problem: TuningProblem) -> list[Candidate]:
    """Return the layouts of `megatron` that are put together from pieces."""
    machine = problem.machine
    found = candidates("megatron", machine, axes_of("megatron", machine, {}), 1)
    return [one for one in found if one.pipeline is not None]


def published(wanted: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield how published layouts compare with the tuner's.

    Args:
        wanted: their rows; all if there are none.
    """
    for table, names in PUBLISHED.items():
        for row in rows_of([table]):
            if row.row_id in names and (not wanted or row.row_id in wanted):
                yield _compared(case_of(row))


def _compared(case: Case) -> dict[str, Any]:
    """Compare a published layout with all that fit and that its framework could have run."""
    layout = case.layout
    prices: dict[str, Any] = {"fidelity": "kernels", "platform": case.platform}
    problem = TuningProblem(case.model, case.system, layout.world_size, layout.global_batch_size, prices)
    options = {**case.options, "microbatch_size": layout.microbatch_size}
    run = mt.simulate(case.strategy, **problem.parameters, **options, fold=True, check=False)
    begin = time.perf_counter()
    head_room = max(0.0, min(0.1, 1 - run.peak_memory_bytes / (run.capacity_bytes or 1)))
    search = Search(list(_of_framework(problem, case)), objective="step_time", head_room=head_room)
    search.candidates = list(_fitting(search.candidates, search.most_bytes(problem.machine)))
    search.run()
    return {
        "benchmark": f"published {case.about}",
        **_placed(Tuning(search), run, case),
        "seconds": time.perf_counter() - begin,
    }


def _of_framework(problem: TuningProblem, case: Case) -> Iterator[Candidate]:
    """Yield the layouts that a framework could have run, whose stages are whole layers.

    The tuner itself cuts stages between attention and MLP too, so that the head's stage is not the slowest.
    """
    machine = problem.machine
    for one in candidates("megatron", machine, axes_of("megatron", machine, _had(case)), 1):
        if one.pipeline is not None and _is_accepted(one.options, case.model.num_layers):
            counts = unit_stages(stage_layers(case.model.num_layers, len(one.pipeline.stages)))
            stages = tuple(range(*borders) for borders in pairwise([0, *accumulate(counts)]))
            options = {**one.options, "layers_per_stage": counts}
            yield replace(one, options=options, pipeline=replace(one.pipeline, stages=stages))


def _fitting(found: Sequence[Candidate], most_bytes: float) -> Iterator[Candidate]:
    """Yield the layouts that fit: only their steps are needed here, and memory is known sooner."""
    by_structure: dict[Structure, list[Candidate]] = {}
    for one in found:
        assert one.pipeline is not None
        by_structure.setdefault(one.pipeline.structure, []).append(one)
    for alike in by_structure.values():
        machine = alike[0].problem.machine
        columns = Columns(machine.pieces, [one.pipeline for one in alike if one.pipeline is not None])
        peaks = peaks_of(columns) * machine.workload.bytes_per_element
        yield from (one for one, peak in zip(alike, peaks.tolist(), strict=True) if peak <= most_bytes)


def _is_accepted(options: Mapping[str, Any], num_layers: int) -> bool:
    """Return whether Megatron-LM takes a layout.

    Stages have equal numbers of layers, where embedding and head may count as one each. Without overlap, two ranks do
    not exchange the messages of several chunks (Megatron-LM's `arguments.py`).
    """
    num_stages = options["pp"] * options["num_chunks"]
    is_divided = num_layers % num_stages == 0 or (num_layers + 2) % num_stages == 0
    return is_divided and not (options["pp"] == 2 < num_stages and not options["overlap_messages"])


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
    quicker = [row for row in found.ranked if row["step_time_s"] < run.step_time]
    tp = case.layout.tp
    return {
        "row": case.row_id,
        "published": _described({**case.options, "microbatch_size": case.layout.microbatch_size}),
        "published_s": run.step_time,
        "published_gib": run.peak_memory_bytes / 2**30,
        "measured_s": case.measured_s,
        "winner": _described(found.best.options),
        "winner_s": found.best.step_time_s,
        "winner_gib": found.best.peak_memory_bytes / 2**30,
        "fitting": found.num_fitting,
        "quicker": len(quicker),
        "top_share": len(quicker) / found.num_fitting,
        "fitting_with_its_tp": sum(row["tp"] == tp for row in found.ranked),
        "quicker_with_its_tp": sum(row["tp"] == tp for row in quicker),
        "published_spends": _spending(found.best, run),
        "winner_spends": _spending(found.best, found.best.simulate(check=False)),
    }


def _described(options: Mapping[str, Any]) -> str:
    """Return a layout in words, without its stages."""
    return described({name: value for name, value in options.items() if name != "layers_per_stage"})


def _spending(choice: Choice, run: mt.Run) -> str:
    """Return where the time of a step goes, s."""
    return ", ".join(f"{name} {seconds:.4g}" for name, seconds in Spending.of_run(choice, run).parts().items())


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON, one array")
    parser.add_argument("--short", action="store_true", help="a small search alone, in seconds: does it run at all?")
    parser.add_argument("--published", nargs="*", metavar="ROW", help="only the published layouts, all or these rows")
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


def _asked(*, short: bool, only_published: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Yield what is measured."""
    if short:
        yield equality(3)
        return
    if only_published is None:
        yield llama(512)
        yield from map(of_one_structure, (1, 8))
        yield equality(40)
    yield from published(only_published or ())


if __name__ == "__main__":
    main()
