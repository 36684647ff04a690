"""Platforms fitted to measured runs: runs that the tool itself has made with known numbers are the measurements."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.errors import UsageError
from minitrain.evidence.cases import case_of, predict
from minitrain.evidence.fitting import fit_platform
from minitrain.evidence.rows import Row
from minitrain.machine.platforms import COMPONENTS, Platform, find_platform

COMMON = {
    "gpu": "A100", "model": "gpt", "vocab": "50304", "mlp": "gelu", "precision": "bf16", "framework": "mine",
    "n_gpus": "8", "gpus_per_node": "8", "pp": "1", "recompute": "none", "attention": "flash", "status": "ok",
}  # fmt: skip
SIZES = [  # layers, hidden size, heads, tokens of a sample, samples of a microbatch, tp
    (4, 1024, 16, 2048, 8, 1), (4, 2048, 16, 2048, 4, 1), (2, 4096, 32, 2048, 4, 1), (4, 1024, 16, 8192, 2, 1),
    (2, 1536, 16, 1024, 16, 1), (2, 5120, 40, 4096, 1, 1), (2, 2048, 16, 16384, 1, 1), (6, 1024, 16, 512, 16, 1),
    (2, 4096, 32, 2048, 4, 8), (2, 5120, 40, 4096, 2, 4),
]  # fmt: skip


def values_of(place: int) -> dict[str, str]:
    """Return the columns of a run but for its time."""
    layers, hidden, heads, tokens, samples, tp = SIZES[place]
    sizes = {"n_layers": layers, "hidden": hidden, "ffn": 4 * hidden, "n_heads": heads, "seq_len": tokens}
    layout = {"mbs": samples, "tp": tp, "sp": 0, "dp": 8 // tp, "gbs": samples * 8 // tp, "zero": 0}
    return COMMON | {name: str(value) for name, value in {**sizes, **layout, "row_id": f"r{place}"}.items()}


def runs(path: Path, platform: Platform, noise: Mapping[int, float] | None = None, num: int = len(SIZES)) -> Path:
    """Write runs whose times are those of a platform."""
    rows = []
    for place in range(num):
        values = values_of(place)
        case = case_of(Row("mine", values | {"step_time_s": "1"}, 2))
        own = replace(case, platform=replace(case.platform or COMPONENTS, **platform.numbers()))
        seconds = predict(own).seconds * (noise or {}).get(place, 1.0)
        rows.append(values | {"step_time_s": repr(seconds)})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_numbers_that_made_the_runs_are_found(tmp_path: Path) -> None:
    truth = Platform(name="truth", clock=0.8, eager=1.6)
    fitted = fit_platform(runs(tmp_path / "runs.csv", truth))
    assert fitted.platform.clock == pytest.approx(0.8, rel=0.01)
    assert fitted.platform.eager == pytest.approx(1.6, rel=0.02)
    assert fitted.before > 0.1
    assert fitted.after < 0.003
    assert fitted.left_out < 0.005
    low, high = fitted.intervals["clock"]
    assert low <= fitted.platform.clock * 1.001
    assert high >= fitted.platform.clock * 0.999


@pytest.mark.ci
def test_a_host_that_launches_slowly_is_found(tmp_path: Path) -> None:
    truth = Platform(name="truth", launch_s=8e-5, clock=0.9)
    fitted = fit_platform(runs(tmp_path / "runs.csv", truth), numbers=("clock", "launch_s"))
    assert fitted.platform.launch_s == 8e-5
    assert fitted.platform.clock == pytest.approx(0.9, rel=0.01)


def test_runs_that_scatter_leave_wide_intervals_and_say_so(tmp_path: Path) -> None:
    scatter = {place: 1.1 if place % 2 else 0.9 for place in range(len(SIZES))}
    fitted = fit_platform(runs(tmp_path / "runs.csv", Platform(name="truth", clock=0.7), scatter), numbers=("clock",))
    low, high = fitted.intervals["clock"]
    assert high / low > 1.05
    assert fitted.left_out > 0.05
    assert fitted.platform.fitted_error is not None
    assert fitted.platform.fitted_error > 0.05


@pytest.mark.ci
def test_a_number_that_no_run_tells_of_is_left_alone(tmp_path: Path) -> None:
    fitted = fit_platform(runs(tmp_path / "runs.csv", Platform(name="truth", clock=0.8), num=8))
    assert fitted.platform.parts_exposed == 1.0  # no run divides its layers
    assert "parts_exposed" not in fitted.intervals


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"numbers": ("clock", "speed")}, r"numbers must be some of clock, .*, got speed"),
        ({"numbers": ()}, "got none"),
        ({"start": "nothing"}, "platform must be a framework .*, one of components"),
    ],
)
def test_what_cannot_be_fitted_is_refused(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    path = runs(tmp_path / "runs.csv", COMPONENTS, num=3)
    with pytest.raises(UsageError, match=words):
        fit_platform(path, **given)


def test_too_few_runs_are_refused(tmp_path: Path) -> None:
    path = runs(tmp_path / "runs.csv", COMPONENTS, num=2)
    with pytest.raises(UsageError, match="at least 3 runs with a step time, got 2; add runs"):
        fit_platform(path)


def test_the_command_writes_a_platform_that_runs_take(tmp_path: Path) -> None:
    path, out = runs(tmp_path / "runs.csv", Platform(name="truth", clock=0.8), num=4), tmp_path / "mine.json"
    options = ["--numbers", "clock", "--jobs", "1", "--out", str(out)]
    result = CliRunner().invoke(app, ["hw", "fit-platform", str(path), *options])
    assert result.exit_code == 0, result.output
    assert "mean error" in result.output
    platform = find_platform(str(out))
    assert platform.clock == pytest.approx(0.8, rel=0.01)
    assert platform.fitted_on == "4 runs of one's own (runs): clock"
    model = mt.Transformer(num_layers=2, hidden_size=1024, num_heads=8, vocab_size=512, seq_len=1024)
    given: dict[str, Any] = {"world_size": 2, "global_batch_size": 8, "workload": model, "hardware": "a100_80g"}
    slow = mt.simulate("ddp", **given, platform=str(out))
    plain = mt.simulate("ddp", **given, platform="components")
    assert slow.step_time > plain.step_time
    assert slow.sureness == "+- 0 % (90 % of the runs that mine was fitted to, each left out in turn)"


def test_a_platform_file_says_what_it_may_hold(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"clock": 0.9, "clok": 2}))
    with pytest.raises(
        UsageError, match=r"cannot read the platform p.json: no key .clok. did you mean .clock..; give a JSON file"
    ):
        Platform.read(path)
    path.write_text("[1]")
    with pytest.raises(UsageError, match=r"cannot read the platform p.json"):
        Platform.read(path)
    mine = Platform(name="m", about="a", fitted_on="b", clock=0.5, launch_s=1e-5, fitted_error=0.1)
    assert Platform.read(mine.write(path)) == mine
