"""The benchmarks run; what they measure is nobody's to assert.

Those that take seconds are `slow`: without them, all modules are imported and the floor's events are counted.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks import floor, mixed, published, vector

ROOT = Path(__file__).parents[2]


def _run(*arguments: str, module: str = "benchmarks") -> str:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_the_short_form_measures_every_strategy_against_the_floor() -> None:
    rows = json.loads(_run("--short", "--json"))
    assert {row["strategy"] for row in rows} == {"ddp", "zero3", "1f1b", "interleaved_1f1b"}
    assert all(row["num_events"] > 0 and row["ratio"] > 0 for row in rows)


@pytest.mark.slow
def test_a_row_that_is_too_large_is_named() -> None:
    table = _run("--short", "--most-events", "0")
    assert table.count("is left out") == 8


@pytest.mark.slow
def test_sweeps_of_every_kind_are_measured_against_the_floor() -> None:
    head, *rows, note = _run("--short", module="benchmarks.sweep").splitlines()
    assert head.split() == ["strategy", "configurations/s", "floor", "events"]
    assert [row.split()[0] for row in rows] == ["ddp", "zero1", "zero2", "zero3", "hsdp", "pp_dp", "pp_zero1", "1f1b"]
    assert all(float(figure) > 0 for row in rows for figure in row.split()[1:])
    assert note.startswith("floor events")


@pytest.mark.ci
def test_the_floor_has_the_events_of_zero3() -> None:
    assert floor.floor(4, 3) == 4 * (7 * 3 + 1)


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(benchmarks.__path__[0]).glob("[!_]*.py")))
def test_every_benchmark_can_be_imported(name: str) -> None:
    if name in ("injected", "training"):
        pytest.importorskip("torch")
    assert importlib.import_module(f"benchmarks.{name}").__doc__


@pytest.mark.slow
def test_the_cost_of_divided_layers_is_measured_beside_that_of_whole_ones() -> None:
    code = "from benchmarks.parts import table; print(*table(1, seq_len=64, workload='megatron-1.7b'), sep='\\n')"
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in printed.splitlines()]
    assert [row[0] for row in rows] == ["pp_dp", "megatron", "megatron:sequence_parallel=True", "fsdp"]
    assert all(float(row[1]) > 0 for row in rows)


@pytest.mark.slow
def test_samples_under_noise_are_measured() -> None:
    head, _, *rows = _run("--samples", "2", module="benchmarks.noise").splitlines()
    assert head == "| strategy, 64 ranks | layers | events | s for 2 samples | samples/s |"
    assert [row.split()[1] for row in rows] == ["zero3", "zero3", "ddp", "pp_zero1", "1f1b"]


@pytest.mark.slow
def test_folding_is_measured_against_the_floor_and_every_rank() -> None:
    head, *rows = _run("--short", module="benchmarks.folding").splitlines()
    assert head.split()[-4:] == ["times", "floor", "of", "fold=False"]
    assert [row.split()[0] for row in rows] == ["ddp", "pp_zero1", "megatron", "strategy", "ddp", "pp_zero1"]
    assert all(float(figure) > 0 for row in rows[:2] for figure in row.split()[1:])


@pytest.mark.slow
def test_steps_of_real_processes_are_measured_beside_torch() -> None:
    pytest.importorskip("torch")
    head, *rows = _run("--short", module="benchmarks.training").splitlines()
    assert head == "2 processes, 8 layers of 256, batch 64, float32, fused Adam; ms a step, medians"
    steps, hosts = rows[:4], rows[4:]
    assert [row.split()[0] for row in steps] == ["ddp", "ddp_overlap", "zero3", "fsdp"]
    assert all(float(row.split()[-1]) > 0 for row in steps)
    assert [row.split()[0] for row in hosts] == ["ddp", "zero3", "ddp", "ddp_overlap", "zero3"]


def test_machines_are_priced_beside_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    vector.main(["--short"])
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head == "| strategy, folded | machines | machines/s priced | with `vary=` | swept | ratio |"
    assert [row.split("|")[1].strip() for row in rows] == list(vector.CASES)


@pytest.mark.ci
def test_plans_for_unlike_devices_are_measured_against_simple_shares(capsys: pytest.CaptureFixture[str]) -> None:
    mixed.main(["--short", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert 0 < row["step_s"]["plan"] <= min(row["step_s"]["equal"], row["step_s"]["peak"])
    assert 0 < row["all"]["throughput_of_sum"] <= 1
    text = "\n".join(mixed.lines(row))
    assert text.startswith("short (planned in ")
    assert "with no group left out: 2 kinds" in text


QUICK = [case for case in published.CASES if case.ranks <= 128 and not {"tp", "pp"} <= case.options.keys()]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: f"{case.model}-{case.hardware}-{case.ranks}-{case.precision}")
def test_the_document_has_published_figures_as_the_tool_predicts_them(case: published.Published) -> None:
    assert published.row(case) in (ROOT / "docs" / "accuracy.md").read_text().splitlines()


def test_the_document_has_every_published_figure_and_says_how_far_off_they_are() -> None:
    text = (ROOT / "docs" / "accuracy.md").read_text()
    lines = text.splitlines()
    rows = [next(line for line in lines if line.startswith(published.about(case))) for case in published.CASES]
    errors = [abs(float(line.split("|")[-2])) for line in rows]
    beyond = sum(error > 15 for error in errors)
    said = f"sizes is {sum(errors) / len(errors):.1f} %; {beyond} of {len(errors)} are beyond 15 %"
    assert said in text
