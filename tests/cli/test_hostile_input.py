"""Names, options and files made to break the command line: they are shown as they are, and control nothing."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import minitrain as mt
from minitrain.cli import app
from minitrain.cli.output import Progress
from minitrain.errors import UsageError, text_of
from minitrain.lib import Model
from minitrain.plain_text import printable, spreadsheet_cell

NAMES = [
    "[/nope]",
    "[bold]x",
    "\x1b[31mred\x07",
    "=1+1",
    "../../up",
    "..",
    "a\x00b",
    "x" * 300,
    "",
    "a\nb",
    "\u202ekcab",
]
NAMES += ["\ud800", "</title><script>alert(1)</script>", ":smile:"]

STRATEGIES = """
import minitrain as mt

def named(name):
    async def trains(model, lr=0): return await mt.strategies()["ddp"](model)
    trains.__name__ = name
    return trains

class SilentError(Exception):
    def __str__(self): raise RuntimeError("no text")

async def silent(model): raise SilentError
async def loud(model): raise ValueError("[/red]\\x1b[2J" + "x" * 100_000)
"""
SIZES = ("--world-size", "2", "--layers", "2", "--batch", "4")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with strategies of every name."""
    found = tmp_path / "within"  # another folder of this test
    found.mkdir()
    monkeypatch.chdir(found)
    named = "".join(f"s{place} = named({name!a})\n" for place, name in enumerate(NAMES))
    (found / "mine.py").write_text(STRATEGIES + named)
    return found


def invoke(*words: str) -> Result:
    """Run a command line; whatever it prints must leave a terminal alone."""
    result = CliRunner().invoke(app, list(words))
    assert "Traceback" not in result.output
    assert all(char.isprintable() or char in "\n\t" for char in result.output)
    return result


@pytest.mark.few(1)
@pytest.mark.parametrize("place", range(len(NAMES)), ids=map(ascii, NAMES))
def test_a_strategy_of_any_name_is_compared_saved_and_explained(folder: Path, place: int) -> None:
    result = invoke("compare", f"mine.py:s{place}", "ddp", *SIZES)
    assert result.exit_code == 0, result.output
    pages = [path for path in folder.rglob("*.html") if path.is_file()]
    assert len(pages) == 3
    assert folder.parent not in {path.parent for path in folder.parent.rglob("run.jsonl")}
    assert not any("<script>alert(1)" in page.read_text(encoding="utf-8") for page in pages)
    runs = [path for path in folder.rglob("run.jsonl") if path.parent.name != "ddp"]
    assert invoke("trace", "explain", str(runs[0])).exit_code == 0
    assert json.loads(invoke("compare", f"mine.py:s{place}", *SIZES, "--no-trace", "--json").output)


def test_strategies_whose_folders_would_be_called_alike_get_one_each(folder: Path) -> None:
    (folder / "other.py").write_text(STRATEGIES + "alike = named('nope')\nmarkup = named('[/nope]')\n")
    assert invoke("compare", "other.py:alike", "other.py:markup", *SIZES).exit_code == 0
    strategies = [mt.load_run(path).strategy for path in sorted((folder / "traces").rglob("run.jsonl"))]
    assert sorted(strategies) == ["[/nope]", "nope"]


def test_a_name_like_markup_is_shown_as_it_is() -> None:
    result = invoke("compare", "mine.py:s0", "mine.py:s1", "mine.py:s13", *SIZES, "--no-trace")
    for name in ("[/nope]", "[bold]x", ":smile:"):
        assert name in result.output


def test_a_table_that_rich_prints_shows_a_name_like_markup() -> None:
    async def trains(model: Model) -> mt.StrategyModel:
        return await mt.strategies()["ddp"](model)

    trains.__name__ = "[/nope]"
    comparison = mt.compare([trains], world_size=2, num_layers=2, global_batch_size=4)
    console = Console(file=io.StringIO(), width=100)
    console.print(comparison.table())
    assert "[/nope]" in console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO


def test_progress_shows_a_name_like_markup() -> None:
    for terminal in (False, True):
        stream = io.StringIO()
        with Progress(Console(file=stream, force_terminal=terminal, width=80), patience_s=0) as progress:
            while not progress._is_shown:
                time.sleep(1e-3)
            progress.say("simulating [/nope]\x07")
        assert "[/nope]\\x07" in stream.getvalue()


def test_an_error_without_a_text_or_with_far_too_much_is_told() -> None:
    result = invoke("compare", "mine.py:silent", "mine.py:loud", "ddp", *SIZES, "--no-trace")
    assert result.exit_code == 1
    assert "silent failed: SilentError: (no text: RuntimeError when it was asked for)" in result.output
    assert "more characters)" in result.output
    assert len(result.output) < 30_000
    assert "ddp" in result.output


def test_an_option_that_is_no_finite_number_is_written_as_text() -> None:
    result = invoke("run", "mine.py:s0", *SIZES, "-o", "lr=1e999", "--json")
    assert json.loads(result.stdout)["options"] == {"lr": "inf"}
    (path,) = Path("traces").rglob("run.jsonl")
    assert mt.load_run(path).options == {"lr": "inf"}


def test_formulas_do_not_enter_a_table_for_spreadsheets() -> None:
    result = invoke("sweep", "mine.py:s3", *SIZES, "-g", "lr=1,@x,-1,=2+2", "--csv", "rows.csv")
    assert result.exit_code == 0
    with Path("rows.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["lr"] for row in rows] == ["1", "'@x", "-1", "'=2+2"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-x", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"])  # noqa: RUF001
def test_what_a_spreadsheet_would_compute_is_text(text: str) -> None:
    assert spreadsheet_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", [-1, 1.5, None, True, "ddp", "", "a=1", "1f1b"])
def test_other_values_stay_as_they_are(value: Any) -> None:
    assert spreadsheet_cell(value) is value


def test_texts_for_a_terminal_control_nothing() -> None:
    assert printable("\x1b[31m\x9b\u202e\ud800é\n\t漢") == "\\x1b[31m\\x9b\\u202e\\ud800é\n\t漢"
    assert text_of(ValueError("x")) == "x"


STATES = [
    "[]",
    '{"02_ddp": 5}',
    '{"02_ddp": null, "00_one_device": []}',
    '{"02_ddp": {"passed": 1}}',
    '"x"',
    "[" * 50_000,
]
STATES += [
    '{"02_ddp": {"passed": true, "best": NaN, "hints": -3}}',
    '{"02_ddp": {"passed": true, "best": 1, "hints": -3}}',
]


@pytest.mark.few(2)
@pytest.mark.parametrize("state", STATES, ids=range(len(STATES)))
def test_what_is_no_progress_counts_as_none(folder: Path, state: str) -> None:
    (folder / ".minitrain-learn.json").write_text(state)
    assert invoke("learn", "list").exit_code == 0
    assert "✓" not in invoke("learn", "list").output
    assert invoke("learn", "hint", "2").exit_code == 0
    assert json.loads((folder / ".minitrain-learn.json").read_text())["02_ddp"]["hints"] == 1


def test_what_is_known_of_other_exercises_is_kept(folder: Path) -> None:
    known = {"passed": True, "best": 90.5, "hints": 1}
    (folder / ".minitrain-learn.json").write_text(json.dumps({"00_one_device": known, "02_ddp": 5}))
    invoke("learn", "hint", "2")
    assert json.loads((folder / ".minitrain-learn.json").read_text())["00_one_device"] == known


def test_a_page_never_takes_the_place_of_a_pipe_or_a_folder(folder: Path) -> None:
    import os
    import threading

    os.mkfifo(folder / "fifo")
    invoke("run", "ddp", *SIZES)
    result = invoke("trace", "show", "traces/ddp/run.jsonl", "--out", "/")
    assert result.exit_code == 1
    assert "minitrain: /: Is a dir" in result.output
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((folder / "fifo").read_bytes()), daemon=True)
    reader.start()
    assert invoke("trace", "show", "traces/ddp/run.jsonl", "--out", "fifo").exit_code == 0
    reader.join(20)
    assert read[0].startswith(b"<!doctype html>")
    assert not (folder / "fifo").is_file()


@pytest.mark.parametrize("seconds", [5e-324, 1e-101, 1e101, 1e308])
def test_durations_stay_within_what_can_be_added_up(seconds: float) -> None:
    with pytest.raises(UsageError, match=r"the duration of forward must be 0 or lie in 1e-100\.\.1e\+100 s, got "):
        mt.FixedPredictor(forward=seconds)


def test_times_that_nanoseconds_cannot_hold_are_no_chrome_trace(folder: Path) -> None:
    run = mt.simulate("ddp", world_size=1, num_layers=1, global_batch_size=1, hardware=mt.FixedPredictor(forward=1e30))
    with pytest.raises(UsageError, match=r"times must be at most 9e\+09 s to be written in nanoseconds, got 1e\+30 s"):
        run.write_chrome_trace(folder / "trace.json")
