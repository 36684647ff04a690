"""Predicted against measured steps of real processes: `python -m benchmarks.calibrated`.

All shipped strategies that two ranks can run are trained at four sizes. A third of these programs, drawn by chance,
calibrates the machine; the steps of the others are predicted. Printed are how far off predictions were, how many
steps lie in their intervals, and whether two steps that differ by more than a tenth are predicted in their order. How
far two runs of one program differ is the machine's noise. `--folder DIR` keeps the calibration and the predicted
programs, for `minitrain validate --table DIR/runs.csv`.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import minitrain as mt
from minitrain.evidence.real_runs import COLUMNS, write_rows
from minitrain.machine.given_durations import LEVEL
from minitrain.run.contributions import CALIBRATION_FILE, workload_text
from minitrain.training.calibration import STEPS, Measured, calibration_of, measure, predicted_s
from minitrain.workloads.matmul import DenseRows

RANKS = 2
DENSE: Sequence[dict[str, Any]] = (
    {"num_layers": 8, "global_batch_size": 64, "workload": DenseRows(256)},
    {"num_layers": 8, "global_batch_size": 256, "workload": DenseRows(512)},
    {"num_layers": 8, "global_batch_size": 64, "workload": DenseRows(1024)},
)
TRANSFORMER: dict[str, Any] = {"global_batch_size": 16, "workload": "tiny"}
DIVIDES = ("ring_attention", "gathered_context", "megatron:tp=2", "megatron:tp=2,sequence_parallel=true")
NOT_HERE = (
    "single",
    "pp_hsdp",
    "ring_attention",
    "gathered_context",
    "packed_context_parallel",
    "moe",
    "deepseek_like",
)
"""What one rank, four ranks, or another model is for."""

FAR = 1.1
"""Steps whose ratio is larger are to be predicted in their order."""


def programs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield strategies and sizes."""
    names = [f"{name}:pp=2" if name.startswith("pp_") else name for name in mt.strategies() if name not in NOT_HERE]
    for size in DENSE:
        yield from ((name, size) for name in names)
    yield from ((name, TRANSFORMER) for name in (*names, *DIVIDES))


def measured(steps: int, chance: random.Random, backend: str, ranks: int) -> list[Measured]:
    """Return what all programs took, measured in an order by chance; those that refuse these sizes are said."""
    found, drawn = [], list(programs())
    chance.shuffle(drawn)
    for name, size in drawn:
        try:
            found.append(measure(name, steps=steps, world_size=ranks, backend=backend, force=True, **size))
        except mt.MinitrainError as error:
            print(f"left out: {name}, {error!s:.90}")
    return found


def noise(found: Sequence[Measured], steps: int, backend: str) -> float:
    """Return the median distance of programs from themselves when they are measured again."""
    again = [measure(each.strategy, steps=steps, backend=backend, **each.parameters) for each in found]
    return statistics.median(abs(one.step_s / two.step_s - 1) for one, two in zip(found, again, strict=True))


def row_of(measured: Measured) -> dict[str, Any]:
    """Return a program as a row of `minitrain validate`."""
    known = {name: value for name, value in measured.parameters.items() if name in COLUMNS and name != "workload"}
    workload = workload_text(measured.parameters["workload"])
    return known | {
        "row_id": f"{measured.strategy} {workload}",
        "strategy": measured.strategy,
        "workload": workload,
        "hardware": CALIBRATION_FILE,
        "step_time_s": measured.step_s,
    }


def main() -> None:
    """Measure, predict and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to keep the calibration and a table of the others")
    parser.add_argument("--again", type=int, default=12, help="programs that are measured twice")
    parser.add_argument("--backend", default="gloo", help="nccl, on GPUs")
    parser.add_argument("--ranks", type=int, default=RANKS)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    before = os.getloadavg()[0]
    found = measured(given.steps, chance, given.backend, given.ranks)
    known, others = found[: len(found) // 3], found[len(found) // 3 :]
    calibration = calibration_of(known, given.ranks)
    if given.folder is not None:
        calibration.write(given.folder / CALIBRATION_FILE)
        write_rows(given.folder / "runs.csv", map(row_of, others))
    low, high = calibration.factors() or (0.0, float("inf"))
    pairs = [(each.step_s, predicted_s(each, calibration)) for each in others]
    for each, (real_s, predicted) in sorted(zip(others, pairs, strict=True), key=lambda both: both[1][1] / both[1][0]):
        print(f"{100 * (predicted / real_s - 1):+6.0f} %  {predicted * 1e3:7.1f} ms, {each}")
    errors = [abs(predicted / real_s - 1) for real_s, predicted in pairs]
    held = sum(low * predicted <= real_s <= high * predicted for real_s, predicted in pairs)
    far = [(a, b) for a, b in combinations(pairs, 2) if max(a[0], b[0]) > FAR * min(a[0], b[0])]
    ranked = sum((a[0] > b[0]) == (a[1] > b[1]) for a, b in far)
    load = f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    print(f"{len(known)} programs calibrate, {len(others)} are predicted; {load}")
    print(f"error: median {100 * statistics.median(errors):.0f} %, largest {100 * max(errors):.0f} %")
    print(f"interval of {100 * LEVEL:.0f} %: {calibration.how_sure()}, holds {100 * held / len(pairs):.0f} %")
    print(f"in order: {100 * ranked / len(far):.1f} % of {len(far)} pairs that differ by more than a tenth")
    apart = noise(found[: given.again], given.steps, given.backend)
    print(f"the machine: {100 * apart:.0f} % between two runs of a program (median)")


if __name__ == "__main__":
    main()
