"""`minitrain plan` prints a plan and what else was considered, and writes what it is asked to write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from minitrain.cli import app

_CLUSTER = """
name: pair
groups:
  - {name: new, kind: h100_80g_nvl8, count: 1}
  - {name: old, kind: a100_80g, count: 1}
between_groups: {bytes_per_s: 2.0e+11, latency_s: 5.0e-6}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("clusters") / "pair.yaml"
    path.write_text(_CLUSTER)
    return str(path)


def run(cluster: str, *more: str) -> Result:
    small = ["--layers", "2", "--batch", "64", "--strategy", "zero1"]
    return CliRunner().invoke(app, ["plan", "--hw", cluster, *small, *more], env={"COLUMNS": "120"})


def test_the_plan_and_what_was_considered_are_printed(cluster: str) -> None:
    result = run(cluster)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("zero1 on 2 ranks: step ")
    assert "considered:" in result.stdout


def test_a_plan_is_written_as_json_and_as_a_page(cluster: str, tmp_path: Path) -> None:
    result = run(cluster, "--json", "--out", str(tmp_path / "plan.json"), "--html", str(tmp_path / "page.html"))
    printed, saved = json.loads(result.stdout), json.loads((tmp_path / "plan.json").read_text())
    assert saved == {"format": "minitrain-plan", **printed}
    assert sum(printed["samples"]) == 64
    assert "zero1" in (tmp_path / "page.html").read_text()


def test_a_budget_of_power_caps_devices(cluster: str) -> None:
    caps = json.loads(run(cluster, "--power-budget", "600", "--json").stdout)["power_caps_watts"]
    assert None not in caps.values()
    assert sum(caps.values()) == pytest.approx(600)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--hw", "h100_80g_nvl8"), "for equal devices there is mt.tune"),
        (("--precision", "bf16"), "precisions are for transformers"),
        (("--strategy", "nonsense"), "there is no strategy 'nonsense'"),
        (("--all-devices", "--batch", "1"), "no layout of pair divides a batch of 1 samples"),
        (("--power-budget", "-5"), "power_budget_watts must be"),
        (("--power-budget", "10"), "no layout of pair keeps to 10 W"),
        (("--model", "llama3-8b"), "--layers does not go with --model"),
        (("--seq", "64"), "--seq is for transformers"),
    ],
)
def test_what_cannot_be_is_said(cluster: str, more: tuple[str, ...], words: str) -> None:
    result = run(cluster, *more)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
