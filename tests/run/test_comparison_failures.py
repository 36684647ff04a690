"""A strategy that fails stays in the comparison, with the same keys as those that do not."""

import runpy
import sys
from pathlib import Path

import pytest

import minitrain as mt


async def fails(model: mt.Model) -> mt.Model:
    raise ValueError(f"rank {model.rank} has had enough")


def test_a_failed_row_has_every_key_of_a_run() -> None:
    rows = mt.compare([fails, "ddp"], world_size=2, num_layers=2, global_batch_size=4, microbatch_size=1).summary()
    assert rows[0].keys() == rows[1].keys()
    assert rows[0]["hardware"] == rows[1]["hardware"] == "h100_80g_nvl8"
    assert (rows[0]["world_size"], rows[0]["num_layers"], rows[0]["options"]) == (2, 2, {"microbatch_size": 1})
    assert "microbatch_size" in rows[0]["error"]  # which `fails` does not take


def test_a_failed_row_tells_its_hardware_whatever_form_it_has() -> None:
    hardware = mt.FixedPredictor(forward=1, send=2)
    failed = mt.compare([fails], world_size=2, hardware=hardware).summary()[0]
    assert failed["hardware"] == "FixedPredictor(forward=1, send=2)"
    assert failed["error"].startswith("ValueError: rank 0 has had enough")


def test_a_strategy_file_that_raises_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("x = 1\n\ny = x / 0\n")
    with pytest.raises(mt.StrategyError, match=r"ZeroDivisionError: division by zero \(line 3\)"):
        mt.simulate(f"{file}:strategy")


def test_the_module_runs_as_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["minitrain", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("minitrain", run_name="__main__")
    assert (ended.value.code or 0, "0.1.0" in capsys.readouterr().out) == (0, True)


def test_one_name_may_stand_alone() -> None:
    assert list(mt.compare("1f1b", world_size=2, num_layers=2, global_batch_size=4).runs) == ["1f1b"]


def test_both_bubbles_of_the_papers_are_reported() -> None:
    unit = mt.FixedPredictor(forward=1, backward=2)
    row = mt.compare("gpipe", world_size=4, num_layers=4, global_batch_size=8, microbatch_size=1, hardware=unit)
    figures = row.summary()[0]
    assert figures["makespan_bubble_s"] == (4 - 1) * 3
    assert figures["span_bubble_s"] == (4 - 1) * 3  # the first rank waits longest, between its passes
