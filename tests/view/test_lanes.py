"""What ranks do in a terminal: shares of columns, letters, one row for ranks that do the same, and again on save."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.view.lanes import WIDTH, lanes, letters_of

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 32, "microbatch_size": 4}


@pytest.fixture(scope="module")
def pipeline() -> mt.Run:
    return mt.simulate("1f1b", **SIZES, hardware=mt.FixedPredictor(forward=1, backward=2))


def test_letters_are_those_of_the_schedule(pipeline: mt.Run) -> None:
    text = [line.plain for line in lanes(pipeline, 17 + 33, color=False, blocks=False)]
    assert text[0] == "a column is 2 s"  # 11 times 2 + 4 passes of two layers
    assert text[1].split() == ["0", "33", "s", "66", "s"]
    rows = {line[:8].strip(): line[17:] for line in text if "compute" in line}
    assert rows["rank 3"] == "...FBBFBBFBBFBBFBBFBBFBBFBB......"
    assert rows["rank 0"].startswith("FFFF")


def test_a_block_is_as_high_as_the_share_of_its_column_that_is_busy(pipeline: mt.Run) -> None:
    drawn = [line.plain for line in lanes(pipeline, 17 + 33, color=True)]
    for rank in range(4):
        row = next(line for line in drawn if line.startswith(f"rank {rank}"))[17:]
        busy = sum(" ▁▂▃▄▅▆▇█".index(block) for block in row) / 8 / 33
        assert busy == pytest.approx(1 - pipeline.breakdown.waiting[rank] / pipeline.step_time, abs=0.02)


def test_no_line_is_wider_than_the_terminal() -> None:
    run = mt.simulate("megatron", workload="tiny", world_size=16, global_batch_size=16, tp=2, pp=2, microbatch_size=1)
    for options in ({"color": True}, {"color": False}, {"color": False, "blocks": False}):
        assert max(len(line) for line in lanes(run, **options)) <= WIDTH


def test_ranks_that_do_the_same_have_one_row_and_at_most_eight_are_drawn() -> None:
    folded = mt.simulate("zero3", world_size=64, num_layers=4, global_batch_size=64)
    assert sum("compute" in line.plain for line in lanes(folded)) == 1
    assert any(line.plain.startswith("0 (x64)") for line in lanes(folded))
    many = mt.simulate("1f1b", world_size=32, num_layers=32, global_batch_size=32, microbatch_size=1, fold=False)
    named = [line.plain[:8].strip() for line in lanes(many) if "compute" in line.plain]
    assert len(named) == 8
    assert (named[0], named[-1]) == ("rank 0", "rank 31")


def test_each_type_has_a_letter_of_its_own() -> None:
    run = mt.simulate("megatron", workload="tiny", world_size=8, global_batch_size=16, tp=2, pp=2, zero=1)
    letters = letters_of(run.timeline)
    assert len(set(letters.values())) == len(letters)
    assert letters["forward"] == "F"
    assert all(
        letter.isupper() == (typ in {"forward", "backward", "loss", "update"}) for typ, letter in letters.items()
    )


def test_run_draws_if_asked(tmp_path: Path) -> None:
    words = ["run", "1f1b:microbatch_size=4", "--world-size", "4", "--layers", "8", "--batch", "32", "--no-trace"]
    plain, drawn = (CliRunner().invoke(app, [*words, *more]).stdout for more in ([], ["--ascii"]))
    assert drawn.startswith(plain)
    assert "rank 3   compute" in drawn.removeprefix(plain)
    refused = CliRunner().invoke(app, [*words, "--ascii", "--log", "summary"])
    assert refused.exit_code == 2
    assert "--ascii needs every event" in refused.stderr


STRATEGY = """
async def mine(model):
    weights, states, *_ = model.storage()
    for layer in range(model.num_layers):
        weights[layer], states[layer] = model.load_weights(layer)
    {fault}
    return model
"""


def test_watch_runs_again_when_a_file_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, waits = tmp_path / "mine.py", iter(range(100))
    file.write_text(STRATEGY.format(fault="raise ValueError('first')"), encoding="utf-8")

    def save(_seconds: float) -> None:
        if next(waits) == 2:
            raise KeyboardInterrupt
        file.write_text(STRATEGY.format(fault="raise ValueError('second, longer')"), encoding="utf-8")
        os.utime(file, ns=(1, 1))

    monkeypatch.setattr("minitrain.cli.commands.time.sleep", save)
    result = CliRunner().invoke(app, ["run", str(file), "--world-size", "1", "--watch"])
    assert result.exit_code == 130
    assert [line.partition(",")[0] for line in result.stderr.splitlines()] == [
        "minitrain: ValueError: first",
        "minitrain: ValueError: second",
    ]
    assert result.stdout.count(f"watching {file}; Ctrl-C ends it") == 2
    assert not (tmp_path / "traces").exists()


def test_watch_is_for_files() -> None:
    result = CliRunner().invoke(app, ["run", "ddp", "--watch"])
    assert result.exit_code == 2
    assert "--watch is for a strategy of your own" in result.stderr


def test_shares_of_a_lane_are_exact() -> None:
    from minitrain.view.lanes import _before

    starts, ends = np.array([0.5, 2.0]), np.array([1.5, 2.25])
    edges = np.array([0.0, 1.0, 2.0, 3.0])
    assert np.diff(_before(starts, edges) - _before(ends, edges)).tolist() == [0.5, 0.5, 0.25]
