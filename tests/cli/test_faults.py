"""`minitrain goodput`, and `minitrain run --fault`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import minitrain as mt
from minitrain.cli import app

SMALL = ["--world-size", "4", "--layers", "2", "--batch", "8"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_goodput_prints_what_is_lost_to_each_cause() -> None:
    result = invoke("goodput", "zero3", *SMALL, "--mtbf", "50", "--samples", "20", "--recovery", "spares=1")
    assert result.exit_code == 0, result.output
    assert "zero3 on 4 ranks of h100_80g_nvl8 for 30 days: goodput" in result.output
    assert "detection" in result.output


def test_goodput_prints_json() -> None:
    result = invoke("goodput", "ddp", *SMALL, "--mtbf", "h100=50", "--samples", "3", "--interval", "600", "--json")
    found = json.loads(result.stdout)
    assert found["checkpoint_interval_s"] == 600
    assert sum(found["share_by_cause"].values()) == pytest.approx(1)


def test_goodput_on_a_cluster_has_a_rank_for_each_device() -> None:
    result = invoke(
        "goodput", "zero3", "--hw", "two_generations", "--layers", "2", "--samples", "2", "--mtbf", "9000", "--json"
    )
    assert json.loads(result.stdout)["world_size"] == mt.Cluster.load("two_generations").num_devices


def test_a_step_in_which_a_device_dies_is_priced_as_asked() -> None:
    step = ("run", "zero3", *SMALL, "--fidelity", "kernels", "--no-trace", "--json")
    undisturbed = json.loads(invoke(*step).stdout)
    found = json.loads(invoke(*step, "--fault", "1@100").stdout)  # long after the step has ended
    assert found["step_time_s"] == undisturbed["step_time_s"]


def test_run_lets_a_device_die_and_says_what_it_cost() -> None:
    result = invoke("run", "zero3", *SMALL, "--fault", "1@0.0005", "--recovery", "elastic=true", "--json")
    assert json.loads(result.stdout)["faults"] == [{"rank": 1, "at_s": 0.0005}]
    assert "rank 1 died at" in Path("traces/zero3/index.html").read_text()
    assert "rank 1 died at" in invoke("run", "zero3", *SMALL, "--fault", "1@0.0005", "--no-trace").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "ddp", "--fault", "x"), "--fault takes RANK@SECONDS, as in --fault 5@0.02; got 'x'"),
        (("run", "ddp", "--recovery", "spares=1"), "recovery is for runs with faults, and none are given"),
        (("goodput", "ddp", "--recovery", "spars=1"), "--recovery: there is no spars; did you mean spares?"),
        (("goodput", "ddp", "--recovery", "moon=1"), "--recovery: there is no moon; use one of detection_s"),
        (("goodput", "ddp", "--recovery", "elastic=maybe"), "--recovery: elastic takes true or false, got 'maybe'"),
        (("goodput", "ddp", "--mtbf", "often"), "--mtbf takes hours, as in --mtbf 50000 or --mtbf h100=50000; got"),
        (
            ("run", "ddp", "--fault", "1@0", "--recovery", "elastic=true", "--durations", "forward=1", "--no-trace"),
            "a smaller job needs new prices, and a predictor is for one number of ranks; name the hardware",
        ),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
