"""`minitrain tune` prints the best layouts, and says the winner in other words where it is asked to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import minitrain as mt
from minitrain.cli import app
from minitrain.search.tuning.search import Search, Task

_SPACE = ("tp=1,2", "pp=1,2", "num_chunks=1", "microbatch=1", "overlap_parts=False", "recompute=none")
_SMALL = ["tune", "megatron", "--model", "tiny", "--world-size", "4", "--batch", "8", "--jobs", "1"]
_SMALL += [word for axis in _SPACE for word in ("--space", axis)]


def run(*more: str) -> Result:
    return CliRunner().invoke(app, [*_SMALL, *more], env={"COLUMNS": "120"})


def test_the_table_has_the_best_first_and_counts_all() -> None:
    result = run()
    lines = result.stdout.splitlines()
    assert result.exit_code == 0, result.output
    assert lines[0] == "layouts with tp 1, chunks 1, microbatch 1:"
    assert lines[1].split() == ["layout", "step", "tok/s/GPU", "MFU", "%", "GiB", "USD"]
    assert lines[2].startswith("megatron pp 1, ")
    assert any(re.search(r"configurations: [\d,]+ fit\b", line) for line in lines)
    front, best, priced_by, how_sure = lines[-4:]
    assert front.endswith("are on the front of time, memory, money and energy")
    assert best.startswith("the best one: minitrain run ")
    assert priced_by.startswith("megatron is priced by kernels, platform ")
    assert how_sure.startswith("how sure, the best: ")


def test_a_table_says_once_what_all_layouts_share_and_names_the_best_of_every_other_strategy() -> None:
    more = ["--model", "llama3-8b", "--seq", "512", "--world-size", "8", "--batch", "32", "--jobs", "1"]
    more += ["--space", "tp=2", "--space", "pp=1", "--space", "microbatch=1,2", "--space", "recompute=none"]
    lines = CliRunner().invoke(app, ["tune", "fsdp", "megatron", *more], env={"COLUMNS": "120"}).stdout.splitlines()
    assert lines[0].startswith("layouts with tp 2, ")
    assert lines[0].endswith(":")
    shown = lines[2 : lines.index(next(line for line in lines if ", " in line and " configurations: " in line))]
    assert all("tp 2" not in line and line.startswith("megatron ") for line in shown)
    (other,) = [line for line in lines if line.startswith("fsdp, ")]
    assert re.fullmatch(r"fsdp, \d+ configurations: the best that was priced takes .* \(\+\d+%\): tp 2, .*", other)


def test_json_has_every_row_and_the_page_is_written(tmp_path: Path) -> None:
    result = run("--json", "--html", str(tmp_path / "page.html"), "--results", str(tmp_path / "rows.jsonl"))
    rows = json.loads(result.stdout)
    assert {row["status"] for row in rows} == {"fits"}
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(rows)
    assert "<canvas" not in (tmp_path / "page.html").read_text()
    assert 'id="lines"' in (tmp_path / "page.html").read_text()


def test_the_winner_is_said_for_another_tool_and_explained() -> None:
    result = run("--words", "megatron-lm", "--explain")
    assert "--tensor-model-parallel-size 1" in result.stdout
    assert "best: megatron" in result.stdout
    assert "next: megatron" in result.stdout


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--head-room", "0.99999999"), 1, "out of memory"),
        (("--world-size", "3"), 1, " illegal; global_batch_size (8) must be a multiple of dp x microbatch_size (3)"),
        (("--objective", "speed"), 2, "objective must be one of step_time"),
        (("--space", "tp=1"), 2, "--space: tp is given twice"),
        (("--space", "zero"), 2, "--space takes name=value,value,..., got 'zero'"),
        (("--words", "nemo"), 2, "in the words of megatron-lm"),
        (("--words", "torchtitan"), 2, "torchtitan cannot be told to train tiny: it has no words for sizes"),
    ],
)
def test_what_cannot_be_is_said_with_its_exit_code(more: tuple[str, ...], code: int, words: str) -> None:
    result = run(*more)
    assert result.exit_code == code
    assert words in result.output


def test_a_tool_without_words_for_any_layout_is_refused_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.search.tuning.tune.Search.run", lambda _: pytest.fail("the search began"))
    result = CliRunner().invoke(app, ["tune", "fsdp", *_SMALL[2:8], "--space", "tp=2", "--words", "deepspeed"])
    assert result.exit_code == 2
    assert "deepspeed has words for no configuration of this search" in result.output


def test_where_a_tool_has_no_words_for_the_best_the_best_that_it_can_say_is_printed() -> None:
    given: dict[str, Any] = {"world_size": 8, "global_batch_size": 16, "space": {"tp": [1, 2], "pp": [1]}, "jobs": 1}
    given["platform"] = "components"  # kernels alone: hosts launch fsdp's sooner
    found = mt.tune("tiny", strategies=["megatron", "fsdp"], words="fsdp", **given)
    choice, words = found.best_with_words("fsdp")
    sayable = [row for row in found.ranked if row["strategy"] == "fsdp"]
    assert found.best.strategy == "megatron"
    assert (choice.row, words) == (sayable[0], choice.words("fsdp"))


@pytest.mark.parametrize(
    ("more", "kept"),
    [((), "nothing was kept; with --results FILE"), (("--results", "rows.jsonl"), "is kept in rows.jsonl; the same")],
)
def test_ctrl_c_prints_what_was_found_says_what_is_kept_and_ends_with_130(
    more: tuple[str, ...], kept: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(search: Search, task: Task, found: Any) -> None:
        take(search, task[:1], found[:1])
        raise KeyboardInterrupt

    take = Search._take
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Search, "_take", interrupted)
    result = run(*more)
    assert result.exit_code == 130, result.output
    assert "configurations: 1 fit" in result.stdout
    assert "were not looked at: a better one may be among them" in result.stdout
    assert f"minitrain: interrupted; {kept}" in result.stderr.replace("what was simulated ", "")
