"""The commands of `minitrain hw` that measure this machine, and what `show` shows."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from minitrain.cli import app
from minitrain.machine import shipped_configs
from minitrain.machine.devices import calibration, validation
from minitrain.machine.devices.calibration import horner
from tests.project.mutated_files import CALIBRATION


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, in 100 columns, without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def hw(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("hw", *arguments))


@pytest.fixture
def _short_ladders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calibrate leave out the large sizes, which take seconds to make."""
    whole = calibration.rungs
    monkeypatch.setattr(calibration, "rungs", lambda largest: whole(0.2))


@pytest.mark.usefixtures("_short_ladders")
def test_calibrate_writes_a_config_that_validate_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    said = hw("calibrate", "--backend", "numpy", "--out", "mine.json", "--rounds", "1")
    assert said.exit_code == 0, said.output
    assert "mine.json: matrix" in said.stdout
    assert "noise, interquartile range over median: 0.0% in the middle" in said.stdout  # of one sample each
    assert not Path("mine.measurements.json").exists()
    assert hw("check", "mine.json").stdout == "mine.json: ok\n"
    monkeypatch.setattr(validation, "cases_of", lambda *phase: [validation.Case("small", horner(2), ((1024,),))])
    report = hw("validate", "mine.json", "--rounds", "1", "--json")
    assert json.loads(report.stdout)["rows"][0]["name"] == "small"
    shown = hw("validate", "mine.json", "--rounds", "1")
    assert "measured ms" in shown.stdout
    assert shown.exit_code == ("mine: fail" in shown.stdout)
    config = json.loads(Path("mine.json").read_text())
    Path("mine.json").write_text(json.dumps({**config, "units": 99}))
    assert "mine.json was measured on 99 cores, and" in hw("validate", "mine.json", "--rounds", "1").stderr


@pytest.mark.usefixtures("_short_ladders")
def test_calibrate_keeps_what_it_measured_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration, "sample_between", stopped)
    result = hw("calibrate", "--backend", "numpy")
    assert result.exit_code == 130
    assert "what was measured is in this_machine.measurements.json" in result.stderr.replace("\n", " ")


def test_validate_says_that_a_config_is_of_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "cases_of", lambda *phase: [validation.Case("small", horner(2), ((1024,),))])
    said = hw("validate", "a100_80g", "--rounds", "1")
    assert "a100_80g was not measured here: errors tell how far this machine is from it" in said.stderr.replace(
        "\n", " "
    )
    assert "small" in said.stdout
    missing = hw("validate", "nope.json")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "expected the name of a shipped config or of a file, found no such" in missing.stderr.replace("\n", " ")


def test_an_unknown_backend_or_phase_is_told() -> None:
    assert "backend must be one of jax, numpy, torch" in hw("calibrate", "--backend", "x").stderr
    assert "phase must be one of synthetic, models, all" in hw("validate", "esp32", "--phase", "x").stderr


def test_show_lists_every_figure_with_its_unit_and_its_source() -> None:
    lines = hw("show", "a100_80g", "--sources").stdout
    for word in ("key path", "power.tdp_W", "400 W", "price_usd_per_hour", "USD/h", "limits.registers", "source"):
        assert word in lines


@pytest.mark.few(8)
@pytest.mark.parametrize("name", shipped_configs())
def test_show_fits_on_a_terminal_of_80_columns_and_40_lines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = hw("show", name).stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"{name}: ")
    assert f"`minitrain hw show {name} --sources` lists each of them." in lines[-1]


def test_show_says_in_short_what_is_asked_first_and_how_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # rows without breaks
    shown = " ".join(hw("show", "a100_80g").stdout.split())
    assert "a100_80g: GPU by NVIDIA, 108 units at 1.41 GHz" in shown
    for words in (
        "memory 80 GiB at 2039 GB/s, 85% at best published, measured",
        "network 0 300 GB/s one way, 76% of it, 8 ranks, 10 us",
        "cache 2 40 MiB for all units published",
        "limits of a unit 64 warps, 32 blocks, 65536 registers, 164 KiB shared published",
        "power 400 W, idle 60 W published, assumed",
        "features tensor_cores, bfloat16, compute_capability 8",
        "108 figures in all: ",
    ):
        assert words in shown


def test_show_of_what_calibrate_wrote_says_its_noise() -> None:
    config = json.loads(hw("show", "xeon_8480plus", "--json").stdout)
    config["measured"] = {"rungs": {"matmul 64": {"median_s": 1e-3, "noise": 0.25}, "x": 5}}
    Path("mine.json").write_text(json.dumps(config))
    assert "Measured here; noise, interquartile range over median: 25.0% in the middle, 25.0% at" in hw(
        "show", "mine.json"
    ).stdout.replace("\n", " ")
    Path("odd.json").write_text(json.dumps({**config, "measured": 5}))
    assert hw("show", "odd.json").exit_code == 0


def test_show_of_a_file_has_no_sources(tmp_path: Path) -> None:
    Path("mine.json").write_text(hw("show", "esp32", "--json").stdout)
    for option in ([], ["--sources"]):
        head = hw("show", "mine.json", *option).stdout.splitlines()[:4]
        assert "source" not in " ".join(head)
    assert json.loads(hw("show", "esp32", "--json").stdout)["class"] == "mcu"


def test_a_calibration_by_real_steps_is_shown_and_checked() -> None:
    CALIBRATION.write("steps.json")
    assert hw("show", "steps.json").stdout.splitlines() == [
        "a machine: calibrated, 4 measured programs give an interval of 80 %, here are 1",
        "a",
    ]
    assert json.loads(hw("show", "steps.json", "--json").stdout)["machine"] == "a machine"
    Path("cut.json").write_text(Path("steps.json").read_text().replace('"cores": 2', '"cores": 0'))
    result = hw("check", "steps.json", "cut.json", "h100_80g_nvl8")
    assert (result.exit_code, result.stdout) == (2, "steps.json: ok\nh100_80g_nvl8: ok\n")
    assert "cannot read the calibration cut.json" in result.stderr


def test_check_tells_every_fault_and_knows_clusters() -> None:
    Path("many.json").write_text(json.dumps({"networks": [3] * 12}))
    result = hw("check", "many.json", "two_generations")
    assert result.exit_code == 2
    assert result.stderr.count("expected an object, one tier, found 3") == 12
    assert result.stdout == "two_generations: ok\n"


def test_show_takes_the_machines_of_clouds() -> None:
    said = hw("show", "p5.48xlarge", "--json")
    assert json.loads(said.stdout)["networks"][1]["nics"] == 32
    assert hw("show", "p5.48xlarge").stdout.startswith("h100_p5.48xlarge: GPU by NVIDIA")
