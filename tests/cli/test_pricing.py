"""The options that choose how operations are priced: --fidelity, --platform, --without, --prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.machine.measured_layers import LayerTime, write_layers

SIZES = ("--model", "gpt2", "--seq", "128", "--world-size", "2", "--batch", "4", "--hw", "a100_80g")


def figures(command: str, *options: str) -> Any:
    """Return what a command prints as JSON."""
    result = CliRunner().invoke(app, [command, "ddp", *SIZES, "--json", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def simulated(**changes: Any) -> float:
    """Return the step time of the same run from Python."""
    sizes: dict[str, Any] = {"world_size": 2, "workload": "gpt2", "seq_len": 128, "global_batch_size": 4}
    return mt.simulate("ddp", **{**sizes, "hardware": "a100_80g", **changes}).step_time


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [LayerTime(size, 1, 0, 13, 0.001 * size, 0.002 * size, 0.0, gpu) for size in (1, 2) for gpu in ("A", "B")]
    return write_layers(rows, tmp_path / "layers.csv")


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ((), {}),
        (("--fidelity", "kernels"), {"fidelity": "kernels"}),
        (
            ("--fidelity", "kernels", "--platform", "megatron-2021", "--without", "waves, launches"),
            {"fidelity": "kernels", "platform": "megatron-2021", "without": ("waves", "launches")},
        ),
    ],
)
def test_commands_price_as_python_does(options: tuple[str, ...], given: dict[str, Any]) -> None:
    expected = simulated(**given)
    assert figures("run", "--no-trace", *options)["step_time_s"] == expected
    assert figures("compare", "--no-trace", *options)[0]["step_time_s"] == expected
    assert figures("sweep", "--jobs", "1", "--grid", "world_size=2", *options)[0]["step_time_s"] == expected


def test_commands_take_measured_layers(table: Path) -> None:
    expected = simulated(prices=mt.MeasuredLayers.read(table, gpu="A"))
    chosen = f"{table}:gpu=A"
    assert figures("run", "--no-trace", "--prices", chosen)["step_time_s"] == expected
    assert figures("sweep", "--jobs", "1", "--grid", "world_size=2", "--prices", chosen)[0]["step_time_s"] == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fidelity", "kernel"), 'fidelity must be "roofline" or "kernels"'),
        (("--fidelity", "roofline", "--platform", "nanotron"), "platform is for prices of kernels"),
        (("--durations", "forward=1", "--fidelity", "kernels"), "give it or --fidelity, not both"),
        (("--prices", "{table}"), 'choose one, as in gpu="A"'),
        (("--prices", "{table}:tp=1"), "--prices chooses rows by gpu and model, got 'tp'"),
        (("--prices", "{table}:gpu"), "--prices takes name=value, got 'gpu'"),
        (("--prices", "nothing.csv"), "the table of layers nothing.csv cannot be read"),
    ],
)
def test_what_cannot_be_priced_is_an_error_of_use(table: Path, options: tuple[str, ...], words: str) -> None:
    arguments = [option.format(table=table) for option in options]
    sizes = SIZES[:-2]  # --durations stand for a machine
    result = CliRunner().invoke(app, ["run", "ddp", *sizes, "--no-trace", *arguments])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
